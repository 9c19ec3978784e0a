"""Modules of whole arrays: which arrays, what else may stand at them, keys and penalties."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_lite.adapters.delta_parts import Dense
from t5x_lite.adapters.sparse import SparseTuning
from t5x_lite.adapters.whole_arrays import ArrayAdapter, ArrayModule, ArrayModules, Copy
from t5x_lite.core import trees
from t5x_lite.core.errors import InputError
from tests.adapters.hosts import learner, random

NORM = "layers/attention_norm/scale"


class Shifted(ArrayModule):
    def __init__(self, leaf):
        self.by = nnx.Param(jnp.zeros(leaf.shape), logical=leaf.axes)

    def __call__(self, base, *, key):
        drawn = 0.0 if key is None else jax.random.normal(key, base.shape)
        return base + self.by[...] + drawn

    def part(self, shape):
        return Dense(np.asarray(self.by[...]).reshape(shape))

    def penalty(self):
        return jnp.sum(jnp.abs(self.by[...]))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shift(ArrayAdapter):
    name: str = "shift"
    targets: tuple[str, ...] = ("model/layers/.*norm/scale",)

    def build(self, model, *, rngs):
        return ArrayModules(self.leaves(model), lambda path, leaf: Shifted(leaf))


@pytest.mark.slow
def test_arrays_change_in_float32_with_draws_of_their_own():
    made, batch = learner("bert", Shift(), dtype="bfloat16")
    params = random(made.shapes)
    base, own = trees.flatten(params["model"]), trees.flatten(params["adapters"]["shift"])
    plain = trees.flatten(made.changed(params)["model"])
    changed = [path for path, leaf in plain.items() if not np.array_equal(leaf, base[path])]
    assert changed == [path.removesuffix("/by") for path in own]
    assert NORM in changed
    np.testing.assert_array_equal(plain[NORM], base[NORM] + own[f"{NORM}/by"])
    drawn = trees.flatten(made.changed(params, key=jax.random.key(0))["model"])
    noise = [np.asarray(drawn[path] - plain[path]) for path in changed[:2]]
    assert not np.allclose(noise[0], noise[1])
    total = sum(float(np.abs(x).sum()) for x in own.values())
    term = made.loss(params, batch, jax.random.key(0)).terms["shift_penalty"]
    assert (float(term.total), float(term.weight)) == (pytest.approx(total, rel=1e-5), 1.0)
    assert "shift_penalty" not in made.loss(params, batch).terms


def test_sums_stand_together_and_others_do_not():
    sparse = SparseTuning(entries=((NORM, 1),))
    learner("bert", Shift(), sparse)
    with pytest.raises(InputError, match=f"both use the site model/{NORM}"):
        learner("bert", Shift(), Shift(name="b"))
    with pytest.raises(InputError, match="targets selects no array"):
        Shift(targets=())
    with pytest.raises(InputError, match="is not a regular expression"):
        Shift(targets=("(",))


def test_a_copy_may_have_a_penalty():
    made, batch = learner("bert", Copy(of=(f"model/{NORM}",), l1=8.0))
    params = random(made.shapes)
    own = params["adapters"]["copy"]["layers"]["attention_norm"]["scale"]
    term = made.loss(params, batch, jax.random.key(0)).terms["copy_penalty"].total
    assert float(term) == pytest.approx(8 * np.abs(own).mean(), rel=1e-5)
    with pytest.raises(InputError, match="l1 must be at least 0"):
        Copy(l1=-1.0)
