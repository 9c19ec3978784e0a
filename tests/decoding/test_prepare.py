"""When a model is laid out, and that it is kept."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from t5x_lite.decoding.search import Preparation, prepared


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Doubling:
    """A model laid out as twice its weight."""

    weight: Any

    def prefill(self, inputs, *, max_length, prompt=None): ...
    def step(self, tokens, cache): ...
    def repeat(self, cache, num): ...
    def select(self, cache, rows): ...

    def prepared(self):
        return Doubling(2 * self.weight)


def test_prepared(markov):
    assert prepared(Doubling(3)) == Doubling(6)
    plain = markov([[0.5, 0.5]] * 2)
    assert prepared(plain) is plain


def test_a_preparation_is_made_once_for_the_same_arrays():
    traced = []

    def bind(params):
        traced.append(params)
        return Doubling(params["weight"])

    prepare = Preparation(bind)
    params = {"weight": jnp.float32(3.0)}
    first = prepare(params)
    assert first == Doubling(6.0)
    assert prepare({"weight": params["weight"]}) is first  # another dict of the same array
    other = prepare({"weight": jnp.float32(3.0)})
    assert other is not first
    assert other == first
    assert prepare({"weight": jnp.float32(4.0)}) == Doubling(8.0)
    assert len(traced) == 1
