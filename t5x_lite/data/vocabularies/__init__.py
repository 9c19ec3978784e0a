"""Vocabularies without TensorFlow: SentencePiece, bytes, WordPiece, tokenizer.json, spm.model.

`loading.load_vocabulary` reads any of them; `encoder_tokens` has their special ids for encoders.
"""
