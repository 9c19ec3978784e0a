"""Checkpoints of the tiny encoders of tests/golden/encoders, with a vocabulary of 20 pieces."""

from pathlib import Path

from scripts import encoder_goldens as goldens
from t5x_lite.run.interchange import import_hf

_BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_ROBERTA = ("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]")


def write_checkpoint(directory: Path, variant: str) -> Path:
    """A step directory in float32; the letters a to o are words, 5 to 19, and 12 is d_model."""
    golden = goldens.read(variant)
    source = directory / f"{variant}_source"
    goldens.write_release(golden, source)
    special = _ROBERTA if golden.config["pad_token_id"] == 1 else _BERT
    (source / "vocab.txt").write_text("\n".join([*special, *"abcdefghijklmno"]) + "\n")
    (source / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    import_hf(source, directory / variant, dtype="float32")
    return directory / variant
