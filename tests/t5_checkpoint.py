"""A checkpoint of the tiny T5 of tests/golden/hf, with no training and no TensorFlow."""

from pathlib import Path

from scripts import goldens
from t5x_lite.commands.weights import import_hf


def write_checkpoint(directory: Path, vocabulary: Path) -> Path:
    """A step directory of random weights.

    Args:
      directory: where it is written.
      vocabulary: a SentencePiece model, such as the fixture tiny_vocabulary.
    """
    source = directory / "t5_source"
    goldens.write_release(goldens.read("t5_1_1"), source, spiece=vocabulary)
    import_hf(source, directory / "t5", dtype="float32")
    return directory / "t5"
