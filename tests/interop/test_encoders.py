import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.interop.encoders import (
    BERT,
    dense_rules,
    encoder_tensors,
    learner_shapes,
    norm_rules,
    number,
    with_prefix,
)
from t5x_lite.interop.rules import LazyArray, Rule
from t5x_lite.models.encoder import BertConfig
from t5x_lite.models.heads import Mlm, Rtd

MODEL = BertConfig(
    vocab_size=9, d_model=4, d_ff=6, num_heads=2, num_layers=2, max_positions=5, embedding_size=3
)
HEADS = {
    None: {},
    Mlm(): {
        "dense/kernel": (4, 3),
        "dense/bias": (3,),
        "norm/scale": (3,),
        "norm/bias": (3,),
        "bias": (9,),
    },
    Rtd(kind="electra"): {
        "dense/kernel": (4, 4),
        "dense/bias": (4,),
        "out/kernel": (4, 1),
        "out/bias": (1,),
    },
    Rtd(kind="deberta"): {
        "norm/scale": (4,),
        "norm/bias": (4,),
        "dense/kernel": (4, 4),
        "dense/bias": (4,),
        "out/kernel": (4, 1),
        "out/bias": (1,),
    },
}


@pytest.mark.parametrize("head", HEADS)
def test_shapes_of_encoder_and_head(head):
    found = learner_shapes(MODEL, head)
    start = "heads/" if head is None else f"heads/{head.name}/"
    heads = {path.removeprefix(start): s for path, s in found.items() if path.startswith(start)}
    assert heads == HEADS[head]
    assert found["model/projection/kernel"] == (3, 4)
    assert found["model/layers/mlp/wi/kernel"] == (2, 4, 6)


def test_rules_of_layers():
    assert dense_rules("a", "b") == [
        Rule("a/kernel", "b.weight", transpose=True),
        Rule("a/bias", "b.bias"),
    ]
    assert norm_rules("a", "b") == [
        Rule("a/scale", "b.weight", aliases=("b.gamma",)),
        Rule("a/bias", "b.bias", aliases=("b.beta",)),
    ]


@pytest.mark.parametrize(
    ("written", "first", "others"),
    [
        (True, "bert.b.bias", ("bert.b.beta", "b.bias", "b.beta")),
        (False, "b.bias", ("b.beta", "bert.b.bias", "bert.b.beta")),
    ],
)
def test_names_with_a_prefix_and_without(written, first, others):
    rule = with_prefix(norm_rules("a", "b"), "bert.", written=written)[1]
    assert (rule.theirs, rule.aliases) == (first, others)


@pytest.mark.parametrize(
    ("value", "default", "message"),
    [
        (None, None, "x.json: size is missing"),
        (1.5, None, "size must be a whole number, got 1.5"),
        (True, 3, "size must be a whole number, got True"),
        ("a", 0.5, "size must be a number, got 'a'"),
    ],
)
def test_numbers_that_are_none(tmp_path, value, default, message):
    with pytest.raises(InputError, match=message):
        number(tmp_path / "x.json", {"size": value}, "size", default=default)


def test_numbers(tmp_path):
    assert number(tmp_path, {"size": 3}, "size") == 3
    assert number(tmp_path, {"size": None}, "size", default=4) == 4
    assert number(tmp_path, {"size": 1}, "size", default=0.5) == 1


def test_arrays_of_another_model_are_refused():
    arrays = {
        path: LazyArray(shape, np.dtype(np.float32), lambda: np.zeros(()))
        for path, shape in learner_shapes(MODEL.replace(token_types=1), None).items()
    }
    with pytest.raises(InputError, match=r"somewhere: the parameters do not match.*token_type"):
        encoder_tensors(BERT, MODEL, None, arrays, model_type="electra", where="somewhere")
