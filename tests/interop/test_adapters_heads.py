"""Heads of the library `adapters`; test_adapters_setups.py runs those that it saved."""

import json

import numpy as np
import pytest

from t5x_lite.adapters.lora import Lora
from t5x_lite.errors import InputError
from t5x_lite.heads.choice import Choice
from t5x_lite.heads.classifier import Classifier
from t5x_lite.heads.mlm import Mlm
from t5x_lite.heads.span import Span
from t5x_lite.heads.token import Token
from t5x_lite.interop.adapters_heads import read_head, write_head
from t5x_lite.interop.peft import Module
from tests.interop.test_adapters_library import write_tensors

MODULE = Module(adapter=Lora(name="m"), arrays={})
TWO = {"head_type": "classification", "layers": 2, "num_labels": 3, "activation_function": "tanh"}
SHAPES = {"1.weight": (4, 4), "1.bias": (4,), "4.weight": (3, 4), "4.bias": (3,)}


def saved(directory, config, shapes=SHAPES):
    """A head of that config, with numbers in turn."""
    directory.mkdir()
    (directory / "head_config.json").write_text(json.dumps({"config": config, "name": "m"}))
    arrays = {
        f"heads.m.{name}": np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        for name, shape in shapes.items()
    }
    write_tensors(directory / "model_head.safetensors", arrays)
    return directory


def test_a_classifier_of_two_layers(tmp_path):
    labels = {"no": 0, "yes": 2, "perhaps": 1}
    found = read_head(saved(tmp_path / "in", {**TWO, "label2id": labels}))
    assert found is not None
    made = found.beside(MODULE)
    assert made.head == Classifier(num_classes=3, kind="roberta", labels=("no", "perhaps", "yes"))
    np.testing.assert_array_equal(
        made.arrays["heads/classifier/out/kernel"], np.arange(12.0).reshape(3, 4).T
    )
    assert set(made.arrays) == {
        f"heads/classifier/{layer}/{leaf}"
        for layer in ("dense", "out")
        for leaf in ("kernel", "bias")
    }
    assert read_head(tmp_path) is None


@pytest.mark.parametrize(
    "changes",
    [{"use_pooler": True}, {"layers": 1}, {"activation_function": "relu"}, {"bias": False}],
)
def test_a_head_like_none_of_ours_is_left_out(tmp_path, changes, caplog):
    found = read_head(saved(tmp_path / "in", {**TWO, **changes}))
    assert found is not None
    assert found.beside(MODULE) == MODULE
    assert "no head of ours is like it" in caplog.text


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"num_labels": "x"}, "head_config.json: num_labels must be a whole number, got 'x'"),
        ({"num_labels": None}, "head_config.json: lacks num_labels"),
        ({"label2id": ["no", "yes"]}, "label2id must be an object of whole numbers"),
        ({"label2id": {"no": "0", "yes": 1}}, "label2id must be an object of whole numbers"),
    ],
)
def test_a_damaged_config(tmp_path, changes, match):
    with pytest.raises(InputError, match=match):
        read_head(saved(tmp_path / "in", {**TWO, **changes})).beside(MODULE)


def test_tensors_that_are_not_those_of_the_config(tmp_path):
    few = read_head(saved(tmp_path / "few", TWO, {"1.weight": (4, 4)}))
    assert few is not None
    with pytest.raises(InputError, match=r"a Classifier has heads.m.1.bias"):
        few.beside(MODULE)
    more = read_head(saved(tmp_path / "more", {**TWO, "num_labels": 5}))
    assert more is not None
    with pytest.raises(InputError, match=r"heads.m gives 3 numbers, and its config says 5"):
        more.beside(MODULE)
    (tmp_path / "more" / "head_config.json").write_text(json.dumps({"name": "m"}))
    with pytest.raises(InputError, match="must have the head's name, and its config as an object"):
        read_head(tmp_path / "more")


@pytest.mark.parametrize(
    ("head", "again"),
    [
        (Classifier(num_classes=2, labels=("a", "b")), Classifier(num_classes=2, kind="roberta",
                                                                   labels=("a", "b"))),
        (Classifier(num_classes=1, kind="deberta"), Classifier(num_classes=1, kind="electra")),
        (Choice(kind="electra"), Choice(kind="electra")),
        (Token(num_classes=5), Token(num_classes=5)),
        (Span(), Span()),
    ],
)  # fmt: skip
def test_what_is_written_is_read(head, again, tmp_path):
    """In training alone do the kinds of one activation differ."""
    size = {"Choice": 1, "Span": 2}.get(type(head).__name__) or head.num_classes
    own = f"heads/{head.name}"
    arrays = {f"{own}/out/kernel": np.ones((4, size), np.float32)}
    arrays[f"{own}/out/bias"] = np.arange(size, dtype=np.float32)
    if isinstance(head, Classifier | Choice):
        arrays |= {f"{own}/dense/kernel": np.eye(4, dtype=np.float32)}
        arrays |= {f"{own}/dense/bias": np.ones(4, np.float32)}
    assert write_head(tmp_path, head, arrays, name="m", said={}, where="work")
    found = read_head(tmp_path)
    assert found is not None
    made = found.beside(MODULE)
    assert made.head == again
    for path, array in arrays.items():
        np.testing.assert_array_equal(made.arrays[path], array)


def test_a_head_that_the_library_does_not_have(tmp_path):
    assert not write_head(tmp_path, Mlm(), {}, name="m", said={}, where="work")
    assert not list(tmp_path.iterdir())
