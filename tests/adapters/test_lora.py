import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_lite.adapters.delta import Delta
from t5x_lite.adapters.grammar import parse_trees
from t5x_lite.adapters.lora import DirectedBranch, Lora, LowRankBranch
from t5x_lite.adapters.whole_arrays import Copy
from t5x_lite.core.errors import InputError
from t5x_lite.core.sharding import MeshConfig, make_mesh
from t5x_lite.core.trees import count_parameters, flatten
from t5x_lite.layouts.base import ADAPTER_IDS
from t5x_lite.models.published import bert_base, t5_base
from t5x_lite.nn.dense import Dense
from t5x_lite.nn.slots import with_dropout
from t5x_lite.objectives.learner import Learner
from t5x_lite.objectives.likelihood import Seq2Seq
from t5x_lite.objectives.task_heads import Classify
from t5x_lite.optim.partial import joint_optimizer
from t5x_lite.train.step import init_state, make_train_step, state_shardings
from tests.adapters.hosts import learner, outputs, random


def test_the_branch_by_hand():
    dense = Dense(2, 3, axes=("embed", "mlp"), bias=True, rngs=nnx.Rngs(0))
    branch = LowRankBranch(dense, rank=1, scale=0.5, rngs=nnx.Rngs(0))
    assert np.all(np.abs(branch.a[...]) <= 2**-0.5)
    assert not np.any(branch.b[...])
    dense.kernel[...] = jnp.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    branch.a[...] = jnp.array([[1.0], [2.0]])
    branch.b[...] = jnp.array([[1.0, 0.0, 4.0]])
    x = jnp.array([[1.0, 1.0]])
    dense.slot = branch
    # x A = 3, times B = [3, 0, 12], halved.
    np.testing.assert_allclose(dense(x), [[2.5, 1.0, 6.0]])
    np.testing.assert_allclose(
        dense.effective_kernel(), [[1.5, 0.0, 2.0], [1.0, 1.0, 4.0]]
    )  # fmt: skip
    half = dense(x.astype(jnp.bfloat16))
    assert half.dtype == jnp.bfloat16


def test_scale_and_size():
    assert Lora(rank=4, alpha=8.0).scale == 2.0
    assert Lora(rank=4, alpha=8.0, rank_stabilised=True).scale == 4.0
    made, _ = learner("bert", Lora(rank=2))
    paths = set(flatten(made.shapes["adapters"]))
    assert paths == {
        f"lora/encoder/attention/{name}/{part}" for name in ("query", "value") for part in "ab"
    }
    # Two layers, two sites, A and B of 8 x 2.
    assert count_parameters(made.shapes["adapters"]) == 2 * 2 * 2 * 16
    made, _ = learner("t5", Lora(rank=2))
    assert "lora/decoder/cross_attention/value/b" in flatten(made.shapes["adapters"])
    with pytest.raises(InputError, match="rank must be at least 1: got 0"):
        Lora(rank=0)


@pytest.mark.gate("bert")
@pytest.mark.parametrize("host", ["t5", "bert"])
@pytest.mark.slow
def test_the_table_of_tokens(host):
    """E + s A B, in the output layer that reads the table, too; as a delta and merged alike."""
    made, _ = learner(host, Lora(rank=1, alpha=2.0, sites=("embedding",)))
    plain, batch = learner(host)
    table = "token_embedding/table" if host == "t5" else "embedding/token"
    fresh = jax.jit(made.init)(jax.random.key(0))
    its = fresh["adapters"]["lora"]["embedding"]
    assert (its["a"].shape, its["b"].shape) == ((16, 1), (1, 8))
    assert not np.any(its["a"])
    assert np.std(its["b"]) > 0.3
    base = {part: tree for part, tree in fresh.items() if part != "adapters"}
    without = outputs(plain, base, batch)
    np.testing.assert_array_equal(outputs(made, fresh, batch), without)

    a, b = np.zeros((16, 1), np.float32), np.arange(8, dtype=np.float32)[None]
    a[5] = 0.5
    fresh["adapters"]["lora"]["embedding"] = {"a": jnp.array(a), "b": jnp.array(b)}
    moved = flatten(fresh["model"])
    expected = np.array(moved[table])
    expected[5] += b[0]  # 2 * 0.5 * b
    parts, rest = made.delta_form(fresh["adapters"])
    assert (set(parts), rest) == ({f"model/{table}"}, ())
    merged = flatten(made.merged(fresh))
    np.testing.assert_allclose(merged.pop(table), expected, rtol=1e-6)
    applied = flatten(Delta(parts).apply({"model": fresh["model"]}))
    np.testing.assert_allclose(applied[f"model/{table}"], expected, rtol=1e-6)
    assert all(np.array_equal(array, moved[path]) for path, array in merged.items())
    with_it = outputs(made, fresh, batch)
    np.testing.assert_allclose(
        with_it, outputs(plain, {**base, "model": made.merged(fresh)}, batch), rtol=1e-5, atol=1e-6
    )
    assert np.abs(np.asarray(with_it - without)).max() > 1e-3


def test_the_table_is_named_by_its_word_alone():
    made, _ = learner("bert", Lora(rank=2, sites=(".*",)))
    assert not any("embedding" in path for path in flatten(made.shapes["adapters"]))
    with pytest.raises(
        InputError, match="dora does not support the site 'embedding'; use only one"
    ):
        Lora(dora=True, sites=("embedding",))
    with pytest.raises(InputError, match="another adapter both use the site model/embedding/token"):
        learner("bert", Lora(sites=("embedding",)), Copy(of=("model/embedding/token",)))


@pytest.mark.parametrize(
    ("model", "objective", "count"),
    [(bert_base(), Classify(num_classes=2), 294_912), (t5_base(), Seq2Seq(), 884_736)],
)
def test_sizes_of_published_models(model, objective, count):
    made = Learner.of(model, objective, adapters=(Lora(),))
    assert count_parameters(made.shapes["adapters"]) == count
    made = Learner.of(model, objective, adapters=(Lora(dora=True),))
    assert count_parameters(made.shapes["adapters"]) == count + count // 16  # m is as one row of B


def test_dora_by_hand():
    """The bias is not scaled, and s is part of the norm: the library `adapters` has both wrong."""
    dense = Dense(2, 2, axes=("embed", "mlp"), bias=True, rngs=nnx.Rngs(0))
    dense.kernel[...] = jnp.array([[3.0, 1.0], [0.0, 0.0]])
    dense.bias[...] = jnp.array([10.0, 20.0])
    dense.slot = branch = DirectedBranch(dense, rank=1, scale=2.0, rngs=nnx.Rngs(0))
    branch.a[...] = jnp.array([[0.0], [1.0]])
    x = jnp.array([[1.0, 1.0]])
    np.testing.assert_array_equal(dense(x), [[13.0, 21.0]])
    branch.b[...] = jnp.array([[2.0, 0.0]])
    branch.magnitude[...] = jnp.array([0.0, 1.0])
    # W + s A B = [[3, 1], [4, 0]], its norms 5 and 1; m = 3 and 2.
    np.testing.assert_allclose(dense(x), [[0.6 * 7 + 10, 2.0 * 1 + 20]], rtol=1e-6)
    np.testing.assert_allclose(dense.effective_kernel(), [[1.8, 2.0], [2.4, 0.0]], rtol=1e-6)

    def gradients(layer):
        grads = nnx.grad(lambda layer: jnp.sum(layer(x)))(layer)
        return grads.slot.magnitude[...], grads.slot.b[...]

    by_m, by_b = gradients(dense)
    # The norm has no gradient: dy/dm = (x V) / |V|, dy/dB = m / |V| s x A.
    np.testing.assert_allclose(by_m, [7 / 5, 1.0], rtol=1e-6)
    np.testing.assert_allclose(by_b, [[0.6 * 2, 2.0 * 2]], rtol=1e-6)


def seeded(module, *, key=0):
    return with_dropout(module, jax.random.key(key), "attention/query")


def test_dropout_of_the_input_by_hand():
    """s (drop(x) A) B: A and B are the identity, so half of x is 0 and half doubled."""
    dense = Dense(64, 64, axes=("embed", "mlp"), rngs=nnx.Rngs(0))
    branch = LowRankBranch(dense, rank=64, scale=1.0, rate=0.5, rngs=nnx.Rngs(0))
    branch.a[...] = branch.b[...] = jnp.eye(64)
    x, y = jnp.ones((3, 64)), jnp.zeros((3, 64))
    once = np.asarray(seeded(branch)(x, y, dense.kernel[...]))
    assert set(np.unique(once)) == {0.0, 2.0}
    assert 0.3 < np.mean(once == 0) < 0.7
    assert not np.array_equal(once[0], once[1])
    np.testing.assert_array_equal(once, seeded(branch)(x, y, dense.kernel[...]))
    assert not np.array_equal(once, seeded(branch, key=1)(x, y, dense.kernel[...]))
    np.testing.assert_array_equal(branch(x, y, dense.kernel[...]), x)  # without a key
    merged = seeded(branch).of_kernel(dense.kernel[...])
    np.testing.assert_array_equal(merged, branch.of_kernel(dense.kernel[...]))
    assert with_dropout(branch, None, "") is branch
    plain = LowRankBranch(dense, rank=1, scale=1.0, rngs=nnx.Rngs(0))
    assert seeded(plain) is plain


@functools.cache
def _multi_task():
    """BERT with MultiTask(a, b): A of b is that of a, and both have dropout."""
    made, batch = learner(
        "bert", *(Lora(name=name, rank=2, dropout=0.5) for name in "ab"),
        use=parse_trees("MultiTask(a, b)"),
    )  # fmt: skip
    params = random(made.shapes)
    params["adapters"]["b"] = params["adapters"]["a"]
    row = {name: jnp.tile(x[:1], (len(x), 1)) for name, x in batch.items()}
    return made, params, {**row, ADAPTER_IDS: jnp.array([[0], [1]] * 4)}


@functools.cache
def _run():
    made, _, _ = _multi_task()

    def run(params, batch, key):
        model = made.bind(params, adapter_ids=batch[ADAPTER_IDS][:, 0]).model
        rows = {"segment_ids": batch["encoder_segment_ids"], "key": key}
        return model(batch["encoder_input_tokens"], **rows)

    return jax.jit(run)


def test_each_row_and_call_has_its_own_dropout():
    _, params, batch = _multi_task()
    once = np.asarray(_run()(params, batch, jax.random.key(0)))
    np.testing.assert_array_equal(once, _run()(params, batch, jax.random.key(0)))
    assert np.abs(once - _run()(params, batch, jax.random.key(1))).max() > 1e-3
    assert len(np.unique(once, axis=0)) == len(once)  # equal rows, of which each has a mask
    without = jax.jit(lambda *given: _run()(*given, None))(params, batch)
    np.testing.assert_allclose(without, np.tile(without[:1], (8, 1, 1)), rtol=1e-5, atol=1e-6)


def test_steps_with_dropout_resume_exactly():
    """Two steps are equal to one, a checkpoint and the other: the key is made of seed and step."""
    made, batch = learner("bert", Lora(rank=2, dropout=0.5))
    updates, mesh = made.updates(), make_mesh(MeshConfig())
    layout = state_shardings(mesh, made.axes, made.optimizer_axes())
    step = make_train_step(updates, mesh=mesh, layout=layout, seed=0, microbatches=1)
    state = init_state(made.init, joint_optimizer(updates), layout, seed=0)
    with jax.set_mesh(mesh):
        first, _ = step(state, batch)
        saved = jax.tree.map(np.asarray, first)
        second, _ = step(first, batch)
        expected = jax.tree.map(np.asarray, second)
        again, _ = step(jax.tree.map(jnp.asarray, saved), batch)
        other, _ = step(
            jax.tree.map(jnp.asarray, dataclasses.replace(saved, step=np.int32(5))), batch
        )
    jax.tree.map(np.testing.assert_array_equal, again.params, expected.params)
    b = flatten(expected.params)["adapters/lora/encoder/attention/query/b"]
    assert np.abs(flatten(other.params)["adapters/lora/encoder/attention/query/b"] - b).max() > 1e-4


def test_dropout_that_is_refused():
    with pytest.raises(InputError, match=r"dropout must be in \[0, 1\)"):
        Lora(dropout=1.0)
    with pytest.raises(InputError, match="dropout does not support the site 'embedding', whose"):
        Lora(dropout=0.1, sites=("embedding", "mlp/in"))
