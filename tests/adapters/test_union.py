"""Unions: their places, and modules that are those of their methods."""

import dataclasses

import jax
import numpy as np
import pytest
from flax import nnx

from t5x_lite.adapters.adapter_tree import Modules
from t5x_lite.adapters.bottleneck import par_bn, seq_bn
from t5x_lite.adapters.delta_merging import Union, UnionModules
from t5x_lite.adapters.lora import Lora
from t5x_lite.adapters.sparse import BitFit, SparseTuning
from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import flatten
from tests.adapters.hosts import learner

LORA = Lora(rank=2, sites=("attention/query", "embedding"))
UNION = Union(
    name="u", members=(seq_bn(reduction=4.0, leave_out=(1,)), LORA, BitFit(sites=("mlp/in",)))
)


def test_a_union_is_its_methods():
    made, _ = learner("t5", UNION)
    shapes = flatten(made.shapes["adapters"]["u"])
    assert {path.split("/")[0] for path in shapes} == {"bottleneck", "lora", "bitfit"}
    assert shapes["lora/encoder/attention/query/a"].shape == (2, 8, 2)
    assert shapes["lora/embedding/a"].shape == (16, 2)
    assert all(made.trains(f"adapters/u/{path}") for path in shapes)
    assert made.trains("model/encoder/final_norm/scale")  # of BitFit
    assert not made.trains("model/token_embedding/table")
    alone, _ = learner("t5", seq_bn(reduction=4.0, leave_out=(1,)))
    assert made.num_unused() == alone.num_unused() > 0


def test_members_have_the_name_of_the_union():
    assert {member.name for member in dataclasses.replace(UNION, name="v").members} == {"v"}
    loss = jax.eval_shape(
        lambda p: learner("t5", UNION)[0].loss(p, learner("t5")[1]).value(),
        learner("t5", UNION)[0].shapes,
    )
    assert loss.shape == ()


def test_what_has_no_union():
    with pytest.raises(
        InputError, match="has both bottleneck and bottleneck_2 at the site encoder/after_mlp"
    ):
        learner("bert", Union(members=(seq_bn(reduction=4.0), par_bn(reduction=4.0))))
    with pytest.raises(InputError, match="must combine at least two adapter methods"):
        Union(members=(Lora(),))
    with pytest.raises(InputError, match="must not contain another union"):
        Union(members=(UNION, Lora()))
    with pytest.raises(InputError, match="sparsetuning changes whole arrays of the model"):
        Union(members=(SparseTuning(), Lora()))


def test_modules_of_several():
    first = Modules({"encoder": {"mlp/in": nnx.Module()}})
    second = Modules({"encoder": {"mlp/out": nnx.Module()}})
    both = UnionModules("u", ["x", "x"], [first, second])
    assert both.claims() == ("encoder/mlp/in", "encoder/mlp/out")
    assert both.methods == ("x", "x_2")
    assert both.at("encoder", "mlp/out") is second.at("encoder", "mlp/out")
    assert (both.read({}), both.array_parts({}), both.copied()) == ({}, {}, ())
    with pytest.raises(KeyError):
        both.at("encoder", "mlp/gate")
    np.testing.assert_equal(both.num_unused(), 0)
