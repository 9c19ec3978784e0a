"""What is stored against what is read."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.core import tied_parameters
from t5x_lite.core.tied_parameters import Difference, Repeat, Same
from t5x_lite.core.trees import LazyArray, flatten, unflatten

ONE, TWO, BOTH = np.array([1.0, 2.0]), np.array([10.0, 20.0]), np.array([11.0, 22.0])


def tree(**leaves):
    """Double underscores stand for "/"."""
    return unflatten({path.replace("__", "/"): jnp.asarray(x) for path, x in leaves.items()})


def equal(found, expected):
    assert flatten(found).keys() == flatten(expected).keys()
    for path, leaf in flatten(found).items():
        np.testing.assert_array_equal(leaf, flatten(expected)[path], err_msg=path)


def described(seen, *statements, axes=("embed",)):
    """Shapes and axes of what is stored."""
    names = unflatten(dict.fromkeys(flatten(seen), axes))
    shapes, its_axes = tied_parameters.stored(statements, jax.eval_shape(lambda: seen), names)
    assert flatten(shapes).keys() == flatten(its_axes).keys()
    return {path: (leaf.shape, flatten(its_axes)[path]) for path, leaf in flatten(shapes).items()}


def test_without_views_nothing_is_touched():
    params = tree(a=ONE)
    assert tied_parameters.read((), params) is params
    assert tied_parameters.write((), params) is params
    assert tied_parameters.fresh((), params) is params


def test_an_array_that_is_read_from_another():
    view = Same("b", "a")
    seen = tree(a=ONE, b=ONE, c=TWO)
    assert described(seen, view).keys() == {"a", "c"}
    stored = tree(a=ONE, c=TWO)
    equal(tied_parameters.read([view], stored), seen)
    equal(tied_parameters.write([view], seen), stored)
    equal(tied_parameters.fresh([view], tree(a=ONE, b=TWO, c=TWO)), stored)


def test_arrays_below_a_path_that_are_read_from_others():
    view = Same("decoder/mlp/*", "encoder/mlp/*")
    stored = tree(encoder__mlp__wi=ONE, encoder__mlp__wo__kernel=TWO, decoder__mlps=BOTH)
    seen = tied_parameters.read([view], stored)
    assert seen["decoder"]["mlp"]["wo"]["kernel"] is stored["encoder"]["mlp"]["wo"]["kernel"]
    assert flatten(seen).keys() == flatten(stored).keys() | {
        "decoder/mlp/wi", "decoder/mlp/wo/kernel",
    }  # fmt: skip
    assert described(seen, view).keys() == flatten(stored).keys()
    equal(tied_parameters.write([view], seen), stored)


def test_copies_are_not_stored():
    with pytest.raises(ValueError, match="b is tied to a, so it must not be stored"):
        tied_parameters.read([Same("b", "a")], tree(a=ONE, b=TWO))


def test_arrays_that_are_read_when_they_are_needed():
    def lazy(array):
        reads = []
        return LazyArray(array.shape, array.dtype, lambda: reads.append(1) or array), reads

    (a, read_a), (b, read_b), (c, read_c) = lazy(ONE), lazy(TWO), lazy(ONE)
    both = (Difference("b", "a"), Same("d", "c"))
    seen = tied_parameters.read_lazily(both, {"a": a, "b": b, "c": c})
    assert seen["d"] is c
    assert not read_c
    np.testing.assert_array_equal(seen["b"].read(), BOTH)
    assert read_a
    assert read_b
    with pytest.raises(ValueError, match="the model has no parameters at 'a'"):
        tied_parameters.read_lazily(both, {"b": b})


def test_the_owner_gets_both_gradients():
    def loss(stored):
        seen = tied_parameters.read([Same("b", "a")], stored)
        return jnp.sum(seen["a"]) + 3.0 * jnp.sum(seen["b"])

    np.testing.assert_array_equal(jax.grad(loss)(tree(a=ONE))["a"], [4.0, 4.0])


def test_an_array_that_is_stored_as_a_difference():
    view = Difference("model/*", "generator/*")
    stored, seen = tree(model__a=ONE, generator__a=TWO), tree(model__a=BOTH, generator__a=TWO)
    assert described(seen, view) == {
        "model/a": ((2,), ("embed",)), "generator/a": ((2,), ("embed",)),
    }  # fmt: skip
    equal(tied_parameters.read([view], stored), seen)
    equal(tied_parameters.write([view], seen), stored)
    equal(tied_parameters.fresh([view], seen), tree(model__a=np.zeros(2), generator__a=TWO))


def test_a_difference_does_not_move_its_base():
    def loss(stored):
        return jnp.sum(tied_parameters.read([Difference("m", "g")], stored)["m"] ** 2)

    gradient = jax.grad(loss)(tree(m=ONE, g=TWO))
    np.testing.assert_array_equal(gradient["m"], [22.0, 44.0])
    np.testing.assert_array_equal(gradient["g"], [0.0, 0.0])


def test_one_array_for_all_layers():
    view = Repeat("layers/shared/*", 3)
    stored = tree(layers__shared__a=ONE, layers__own=np.zeros((3, 2)))
    seen = tree(layers__shared__a=np.stack([ONE] * 3), layers__own=np.zeros((3, 2)))
    assert described(seen, view, axes=("layers", "embed")) == {
        "layers/shared/a": ((2,), ("embed",)),
        "layers/own": ((3, 2), ("layers", "embed")),
    }
    equal(tied_parameters.read([view], stored), seen)
    equal(tied_parameters.write([view], seen), stored)
    equal(tied_parameters.fresh([view], seen), stored)


def test_views_are_read_in_their_order_and_written_in_the_opposite_one():
    both = (Difference("b", "a"), Same("c", "b"))
    stored, seen = tree(a=TWO, b=ONE), tree(a=TWO, b=BOTH, c=BOTH)
    assert described(seen, *both).keys() == {"a", "b"}
    equal(tied_parameters.read(both, stored), seen)
    equal(tied_parameters.write(both, seen), stored)


def test_the_paths_that_a_view_has_to_do_with():
    both = (Same("x/*", "y/*"), Difference("a", "b"), Repeat("r", 2))
    paths = {"x/1", "y/1/2", "a", "b", "r"}
    assert tied_parameters.mentioned(both, [*paths, "xy", "c/a", "y"]) == paths


@pytest.mark.parametrize(
    ("view", "message"),
    [
        (Same("d/*", "a"), "the model has no parameters at d/"),
        (
            Same("a", "b"),
            r"at a and b must have equal shapes, but have {'b': \(2,\)} and {'b': \(3,\)}",
        ),
        (Same("a", "d"), "and d must have equal shapes, but have .* and {}"),
        (Difference("a", "b"), "and b must have equal shapes"),
        (Repeat("b", 2), r"b must have 2 layers as its first axis, but its shape is \(3,\)"),
    ],
)
def test_refuses_parameters_that_are_not_those(view, message):
    with pytest.raises(ValueError, match=message):
        described(tree(a=ONE, b=np.zeros(3)), view)
