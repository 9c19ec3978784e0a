"""The table mechanism: literals in both layouts, and what is refused."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.interop.rules import LazyArray, Rule, check_finite, check_names, check_shape, pieces


def test_a_rule_with_layers_is_one_piece_for_each():
    rule = Rule("mlp/wo/kernel", "block.{layer}.wo.weight", transpose=True)
    first, second = pieces([rule], {"mlp/wo/kernel": (2, 3, 1)})
    assert (first.name, second.name) == ("block.0.wo.weight", "block.1.wo.weight")
    assert (first.layer, second.layer) == (0, 1)
    assert first.shape == (1, 3)
    ours = np.arange(6).reshape(2, 3, 1)
    np.testing.assert_array_equal(second.to_theirs(second.of(ours)), [[3, 4, 5]])
    np.testing.assert_array_equal(second.to_ours(np.array([[3, 4, 5]])), [[3], [4], [5]])


def test_layers_on_an_axis():
    (piece,) = pieces([Rule("scale", "norm", stack_axis=1)], {"scale": (2, 3)})
    assert (piece.layer, piece.shape) == (None, (3, 2))
    theirs = np.array([[1, 10], [2, 20], [3, 30]])
    np.testing.assert_array_equal(piece.to_ours(theirs), [[1, 2, 3], [10, 20, 30]])


def test_heads_that_are_apart_there():
    (piece,) = pieces([Rule("query", "query", shape=(3, 2, 2))], {"query": (3, 4)})
    assert piece.shape == (3, 2, 2)
    theirs = np.arange(12).reshape(3, 2, 2)
    np.testing.assert_array_equal(piece.to_ours(theirs), np.arange(12).reshape(3, 4))


@st.composite
def rules_and_shapes(draw):
    """Arguments of a rule, which is made outside: beartype draws random numbers of its own."""
    layers, rows, heads, size = draw(st.tuples(*[st.integers(1, 3)] * 4))
    stacked, split = draw(st.booleans()), draw(st.booleans())
    named = stacked and draw(st.booleans())
    rank = 1 if not split and draw(st.booleans()) else 2
    arguments = {
        "theirs": "theirs.{layer}" if named else "theirs",
        "transpose": not split and rank == 2 and draw(st.booleans()),
        "stack_axis": draw(st.integers(0, rank)) if stacked and not named else None,
        "shape": (rows, heads, size) if split else None,
    }
    layer = (rows, heads * size)[:rank]
    return arguments, (layers, *layer) if stacked else layer


@hypothesis.given(rules_and_shapes())
def test_back_and_forth_is_the_identity(case):
    arguments, shape = case
    rule = Rule("ours", **arguments)
    ours = np.arange(np.prod(shape)).reshape(shape)
    found = pieces([rule], {"ours": shape})
    for piece in found:
        theirs = piece.to_theirs(piece.of(ours))
        assert theirs.shape == piece.shape
        np.testing.assert_array_equal(piece.to_ours(theirs), piece.of(ours))
    assert sum(np.prod(piece.shape) for piece in found) == ours.size


def test_a_rule_has_its_layers_in_one_place():
    with pytest.raises(ValueError, match="in the tensor name or on stack_axis"):
        Rule("a", "b.{layer}", stack_axis=0)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([Rule("a", "x")], "missing: b"),
        ([Rule("a", "x"), Rule("b", "y"), Rule("c", "z")], "unexpected: c"),
        ([Rule("a", "x"), Rule("a", "y"), Rule("b", "z")], r"repeated paths: \['a'\]"),
        ([Rule("a", "x"), Rule("b", "x")], "two conversion rules have the same tensor name"),
    ],
)
def test_a_table_names_each_array_once(table, message):
    with pytest.raises(ValueError, match=message):
        pieces(table, {"a": (1,), "b": (1,)})


WANTED = pieces(
    [Rule("table", "shared", aliases=("embed",)), Rule("norm", "norm.{layer}")],
    {"table": (2, 2), "norm": (2, 3)},
)


def test_names_that_are_there_or_stand_for_others():
    found = check_names(
        "f", WANTED, ["embed", "norm.0", "norm.1", "old.bias"], ignored=[r"old\..*"]
    )
    assert found == {"shared": "embed", "norm.0": "norm.0", "norm.1": "norm.1"}
    both = check_names("f", WANTED, ["embed", "shared", "norm.0", "norm.1"])
    assert both["shared"] == "shared"


def test_names_that_are_missing_and_unexpected_are_listed():
    with pytest.raises(InputError) as error:
        check_names("model.bin", WANTED, ["norm.0", "norm.2", "head"])
    assert str(error.value) == (
        "model.bin: the tensors do not match its config: "
        "missing: norm.1, shared; unexpected: head, norm.2"
    )


def test_a_wrong_shape_is_named():
    check_shape("f", WANTED[1], (3,))
    with pytest.raises(
        InputError, match=r"^f: norm\.0 has shape \(4,\), but the config requires \(3,"
    ):
        check_shape("f", WANTED[1], (4,))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, "bfloat16"])
def test_weights_that_are_no_numbers_are_counted(dtype):
    import ml_dtypes

    tensor = np.ones((4, 3), ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    check_finite("f", "w", tensor)
    tensor[1, 1], tensor[3, 2] = np.nan, -np.inf
    with pytest.raises(InputError, match=r"^f: w holds 2 of 12 weights that are NaN or infinite$"):
        check_finite("f", "w", tensor.T)


def test_a_lazy_array_knows_its_size():
    array = LazyArray((2, 3), np.dtype(np.float16), lambda: np.zeros((2, 3), np.float16))
    assert (array.size, array.nbytes) == (6, 12)
