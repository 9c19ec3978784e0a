"""Readers of inputs and targets: what is cut, what is said of it, and how often."""

import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.formats.lines import Line
from t5x_lite.inference.checkpoint import InputReader, TargetReader


@pytest.fixture
def model(tiny_run, compile_once):
    from t5x_lite.inference.checkpoint import Checkpoint

    return Checkpoint.load([str(tiny_run)], inputs_length=3)


def lengths(rows):
    return [len(row) for row in rows]


def test_inputs(model, caplog):
    some = [Line("f:1", {"inputs": "the"}), Line("f:2", {"inputs": "the the the"})]
    reader = InputReader("cut")
    assert lengths(reader.tokens(model, some)) == [2, 3]
    assert lengths(reader.tokens(model, some[1:])) == [3]
    reader.report()
    assert caplog.messages == [
        "f:2: truncating this input and all further long inputs to 3 tokens (--inputs-length)",
        "truncated 2 inputs that were longer than --inputs-length",
    ]
    with pytest.raises(InputError, match=r"^f:2: the input is longer than 3 tokens; shorten it"):
        InputReader("refuse").tokens(model, some)


def test_targets(model, caplog):
    texts = ["the the", "the the the"]
    whole = TargetReader("refuse", None).tokens(model, texts, names=["a", "b"])
    assert lengths(whole) == [3, 4]
    reader = TargetReader("cut", 3)
    cut = reader.tokens(model, texts, names=["a", "b"])
    assert lengths(cut) == [3, 3]
    assert np.array_equal(cut[1], whole[1][:3])  # without its end
    reader.report()
    assert caplog.messages == [
        "b is longer than 3 tokens (--targets-length); truncating this and all further long "
        "targets, so that log-likelihoods cover only the kept tokens"
    ]
    with pytest.raises(InputError, match=r"^b is longer than 3 tokens; shorten it, raise --target"):
        TargetReader("refuse", 3).tokens(model, texts, names=["a", "b"])
