"""What vocabularies have in common: the special ids, the names of their files, writing one."""

from pathlib import Path

from t5x_lite.errors import InputError
from t5x_lite.files import made_directory, reason, write_atomically

PAD_ID, EOS_ID, UNK_ID = 0, 1, 2
MOST_EXTRA_IDS = 1 << 16
"""Each is made as a piece: a number from a file may be any."""
MODEL_NAME = "sentencepiece.model"
BYTES_NAME = "bytes.json"
LAYOUT_NAME = "special_tokens.json"
"""Beside a SentencePiece model that does not read special tokens as seqio does."""
WORDPIECE_NAME = "vocab.txt"
SPM_NAME = "spm.model"
"""DeBERTa's: a SentencePiece model of an encoder."""
XLM_NAME = "sentencepiece.bpe.model"
"""XLM-RoBERTa's: a SentencePiece model whose ids are one less than the encoder's."""
BPE_NAME, MERGES_NAME = "vocab.json", "merges.txt"
"""RoBERTa's: byte-level pieces with their ids, and the pairs that are merged, in order."""
ADDED_NAME = "added_tokens.json"
"""Ids of tokens that the model does not have, such as [MASK] of an spm.model."""
SPECIAL_MAP_NAME = "special_tokens_map.json"
FAST_NAME = "huggingface_tokenizer.json"
"""Next to a SentencePiece model: the tokenizer.json that reads text in its place."""
TOKENIZER_NAME = "tokenizer.json"
TOKENIZER_CONFIG_NAME = "tokenizer_config.json"
"""Beside either of these two: the names of the special pieces, and how text is normalised."""


def write_file(content: bytes, target: Path) -> Path:
    """Writes a file whole or not at all.

    Args:
      content: of the file.
      target: its path; parents are made.

    Returns:
      The path.

    Raises:
      InputError: it cannot be written.
    """
    try:
        with made_directory(target.parent):
            write_atomically(target, content)
    except OSError as error:
        raise InputError(f"cannot write {target}: {reason(error)}") from error
    return target
