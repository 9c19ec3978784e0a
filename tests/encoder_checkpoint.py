"""Checkpoints of the tiny encoders of tests/golden/encoders, with a vocabulary of 20 pieces."""

from pathlib import Path

from scripts import encoder_goldens as goldens
from t5x_lite.commands.weights import import_hf

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


def write_ranker(directory: Path, *, objective=None, heads=(), **data) -> Path:
    """A step directory: the same BERT with random weights, a cross-encoder or another objective."""
    import dataclasses

    import numpy as np

    from t5x_lite.checkpoints import items
    from t5x_lite.config.file import to_json
    from t5x_lite.core import trees
    from t5x_lite.core.trees import LazyArray
    from t5x_lite.inference.loading import Loaded, learner_of
    from t5x_lite.layouts import Ranked
    from t5x_lite.objectives.m3 import Ranker

    encoder = Loaded.from_checkpoint(str(write_checkpoint(directory, "bert")), step=None)
    own = {"layout": Ranked(), "pack": False, "inputs_length": 6, "targets_length": 12, **data}
    experiment = dataclasses.replace(
        encoder.experiment,
        objective=objective or Ranker(),
        heads=tuple(heads),
        data=dataclasses.replace(encoder.experiment.data, **own),
    )
    learner = learner_of(experiment)
    rng = np.random.default_rng(7)
    arrays = {}
    for path, leaf in trees.flatten(learner.shapes).items():
        value = rng.normal(scale=0.4, size=leaf.shape).astype(np.float32)
        value = value + 1 if path.endswith("scale") else value
        arrays[path] = LazyArray(value.shape, value.dtype, lambda value=value: value)
    target = directory / "ranker"
    files = target / "files"
    files.mkdir(parents=True)
    (files / "config.json").write_text(to_json(experiment))
    for name, content in encoder.vocabulary.files().items():
        path = files / "vocabulary" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    items.write_params(target / "params", arrays)
    items.write(target)
    return target
