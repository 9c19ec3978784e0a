"""Vocabularies without TensorFlow: SentencePiece, bytes, WordPiece, tokenizer.json, spm.model.

`loading.load_vocabulary` loads a vocabulary of any kind; `encoder_tokens` has special ids.
"""
