import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_lite.adapters.delta import Delta
from t5x_lite.adapters.grammar import parse_module, parse_trees, write_module
from t5x_lite.adapters.lora import DirectedBranch, Lora, LowRankBranch, PissaBranch
from t5x_lite.adapters.whole_arrays import Copy
from t5x_lite.core.errors import InputError
from t5x_lite.core.sharding import MeshConfig, make_mesh
from t5x_lite.core.trees import count_parameters, flatten, unflatten
from t5x_lite.layouts.base import ADAPTER_IDS
from t5x_lite.models.published import bert_base, t5_base
from t5x_lite.nn.dense import Dense
from t5x_lite.nn.slots import stacked, with_dropout
from t5x_lite.objectives.learner import Learner
from t5x_lite.objectives.likelihood import Seq2Seq
from t5x_lite.objectives.task_heads import Classify
from t5x_lite.optim.partial import joint_optimizer
from t5x_lite.train.restoring import with_start
from t5x_lite.train.step import init_state, make_train_step, state_shardings
from tests.adapters.hosts import HOSTS, learner, outputs, random


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
    with pytest.raises(InputError, match="dropout does not support the site 'embedding', because"):
        Lora(dropout=0.1, sites=("embedding", "mlp/in"))


PATTERNS = Lora(
    rank=2,
    rank_pattern=(("encoder/.*", 1), ("0/attention/value", 3), (".*/cross_attention/query", 1)),
    alpha_pattern=(("decoder/1/attention/(query|value)", 2.0), ("attention/query", 4.0)),
)


def test_ranks_and_scales_by_layer():
    made, _ = learner("t5", PATTERNS)
    sizes = {path: leaf.shape for path, leaf in flatten(made.shapes["adapters"]).items()}
    assert sizes["lora/encoder/attention/query/a"] == (2, 8, 1)
    assert sizes["lora/decoder/attention/query/b"] == (2, 2, 8)
    assert sizes["lora/decoder/attention/value/a"] == (2, 8, 3)
    assert sizes["lora/decoder/cross_attention/query/a"] == (2, 8, 1)
    assert made.num_unused() == 8 + 8  # one column of A and row of B in layer 1
    model = nnx.eval_shape(lambda: HOSTS["t5"][0].build(rngs=nnx.Rngs(0)))
    a = PATTERNS.build(model, rngs=nnx.Rngs(0)).at("decoder", "attention/value").a[...]
    np.testing.assert_array_equal(np.any(a, axis=1), [[True, True, True], [True, True, False]])
    assert PATTERNS.scale_at("decoder/0/attention/value") == 8 / 3
    assert PATTERNS.scale_at("decoder/1/attention/value") == 2 / 2
    assert PATTERNS.scale_at("encoder/1/attention/query") == 4 / 1  # not of cross_attention
    assert PATTERNS.scale_at("decoder/0/cross_attention/query") == 8 / 1
    assert parse_module(write_module(PATTERNS)) == PATTERNS
    text = "a = lora(r=2, rank_pattern={'encoder/.*': 1}, alpha_pattern={'.*/query': 3})"
    expected = Lora(
        name="a", rank=2, rank_pattern=(("encoder/.*", 1),), alpha_pattern=((".*/query", 3.0),)
    )
    assert parse_module(text) == expected


@functools.cache
def _plain():
    made, batch = learner("bert")
    return jax.jit(lambda params: outputs(made, params, batch))


OF_BERT = Lora(
    rank=2, rank_pattern=(("0/attention/value", 1),), alpha_pattern=((".*/1/.*query", 2.0),)
)


@pytest.mark.parametrize("dora", [False, True])
def test_patterns_merged_and_as_delta(dora):
    """Outputs are equal as branches, merged and as a delta; missing columns have no gradient."""
    made, batch = learner("bert", dataclasses.replace(OF_BERT, dora=dora))
    params = random(made.shapes)
    query, value = (params["adapters"]["lora"]["encoder"]["attention"][x] for x in QUERY_VALUE)
    value["a"], value["b"] = value["a"].at[0, :, 1].set(0), value["b"].at[0, 1].set(0)

    @jax.jit
    def run(params):
        def loss(params):
            states = outputs(made, params, batch)
            return jnp.sum(jnp.square(states)), states

        return jax.grad(loss, has_aux=True)(params)

    grads, with_it = run(params)
    own = grads["adapters"]["lora"]["encoder"]["attention"]["value"]
    assert not np.any(own["a"][0, :, 1])
    assert not np.any(own["b"][0, 1])
    assert np.all(own["b"][1] != 0)
    base = {part: tree for part, tree in params.items() if part != "adapters"}
    merged = {**base, "model": made.merged(params)}
    np.testing.assert_allclose(_plain()(merged), with_it, rtol=1e-4, atol=1e-5)
    parts, rest = made.delta_form(params["adapters"])
    assert rest == ()
    applied = flatten(Delta(parts).apply(base))
    for path, array in flatten(merged).items():
        np.testing.assert_allclose(applied[path], array, rtol=1e-5, atol=1e-6)
    if not dora:
        path = "layers/attention/query/kernel"
        change = flatten(merged["model"])[path] - flatten(params["model"])[path]
        scales = np.array([8 / 2, 2 / 2])[:, None, None]
        np.testing.assert_allclose(change, scales * (query["a"] @ query["b"]), rtol=1e-4, atol=1e-5)


QUERY_VALUE = ("query", "value")


def test_rows_of_adapters_with_different_ranks():
    """Row i of MultiTask is the row of adapter i alone, with ranks and scales of its own."""
    adapters = (dataclasses.replace(OF_BERT, name="a"), Lora(name="b", rank=3))
    made, batch = learner("bert", *adapters, use=parse_trees("MultiTask(a, b)"))
    params = random(made.shapes)
    ids = jnp.array([0, 1] * 4)

    @jax.jit
    def run(params):
        model = made.bind_model(params, adapter_ids=ids)
        rows = {"segment_ids": batch["encoder_segment_ids"]}
        return model(batch["encoder_input_tokens"], **rows)

    mixed = run(params)
    for number, adapter in enumerate(adapters):
        alone, _ = learner("bert", adapter)
        own = {**params, "adapters": {adapter.name: params["adapters"][adapter.name]}}
        merged = {"model": alone.merged(own), "heads": params["heads"]}
        expected = _plain()(merged)[number::2]
        np.testing.assert_allclose(mixed[number::2], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank_pattern": (("attention/query", 0),)}, "query' must be at least 1: got 0"),
        ({"alpha_pattern": (("attention/query", 0.0),)}, "alpha must be finite and not 0, got 0.0"),
        ({"rank_pattern": (("(", 2),)}, "rank_pattern.*regular expression|rank_pattern: "),
        ({"alpha_pattern": (("mlp/in", 2.0),)},
         "'mlp/in' in alpha_pattern matches no layer of its sites, such as encoder/0/attention"),
    ],
)  # fmt: skip
def test_patterns_that_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        learner("bert", Lora(**options))


def test_pissa_by_hand():
    """W = diag(4, 1) in layer 0: rank 1 trains the value 4, with scale 4 as A0 B0 = 1."""
    dense = stacked(lambda rngs: Dense(2, 2, axes=("embed", "mlp"), rngs=rngs), nnx.Rngs(0), num=2)
    dense.kernel[...] = kernel = jnp.array([[[4.0, 0.0], [0.0, 1.0]], [[0.0, 2.0], [3.0, 0.0]]])
    branch = stacked(
        lambda rngs: PissaBranch(dense, rank=2, scale=4.0, rngs=rngs), nnx.Rngs(0), num=2
    )
    branch.set_layers((1, 2), (4.0, 4.0))
    np.testing.assert_allclose(branch.of_kernel(kernel), kernel)
    branch.start(kernel)
    product = np.asarray(branch.a[...] @ branch.b[...])
    np.testing.assert_allclose(product[0], [[1.0, 0.0], [0.0, 0.0]], atol=1e-6)
    np.testing.assert_allclose(product[1], kernel[1] / 4, atol=1e-6)
    np.testing.assert_allclose(np.abs(branch.a[...])[0], [[1.0, 0.0], [0.0, 0.0]], atol=1e-6)
    np.testing.assert_array_equal(branch.of_kernel(kernel), kernel)
    branch.a[...] = 2 * branch.a[...]
    np.testing.assert_allclose(branch.of_kernel(kernel)[0], [[8.0, 0.0], [0.0, 1.0]], atol=1e-5)
    kept = branch.start_a[...]
    branch.start(2 * kernel)  # A0 is set, so nothing changes
    np.testing.assert_array_equal(branch.start_a[...], kept)
    np.testing.assert_allclose(branch.of_kernel(kernel)[0], [[8.0, 0.0], [0.0, 1.0]], atol=1e-5)
    assert branch.num_unused() == 2 + 2


PISSA = Lora(
    rank=2, init="pissa", rank_pattern=(("0/attention/value", 1),),
    alpha_pattern=(("1/attention/value", 2.0),),
)  # fmt: skip


@functools.cache
def _pissa():
    """BERT with PiSSA at the start of a run, and after two steps."""
    made, batch = learner("bert", PISSA)
    updates, mesh = made.updates(), make_mesh(MeshConfig())
    layout = state_shardings(mesh, made.axes, made.optimizer_axes())
    step = make_train_step(updates, mesh=mesh, layout=layout, seed=0, microbatches=1)
    with jax.set_mesh(mesh):
        state = init_state(made.init, joint_optimizer(updates), layout, seed=0)
        state = with_start(state, made)
        start = jax.tree.map(jnp.copy, state.params)
        for _ in range(2):
            state, _ = step(state, batch)
    return made, batch, start, state.params


def test_pissa_starts_at_the_base_and_trains_a_and_b():
    made, batch, start, trained = _pissa()
    flat, after = flatten(start), flatten(trained)
    for path, array in flat.items():
        moves = path.startswith("heads/") or path.endswith(("/a", "/b"))
        assert np.array_equal(array, after[path]) != moves, path
    stem = "adapters/lora/encoder/attention/value"
    kernel = flat["model/layers/attention/value/kernel"]
    values = np.linalg.svd(kernel, compute_uv=False)
    rest = np.linalg.svd(
        kernel - np.array([8, 1])[:, None, None] * (flat[f"{stem}/a"] @ flat[f"{stem}/b"]),
        compute_uv=False,
    )
    np.testing.assert_allclose(rest[0], [*values[0, 1:], 0], atol=1e-5)  # rank 1
    np.testing.assert_allclose(rest[1], [*values[1, 2:], 0, 0], atol=1e-5)
    np.testing.assert_array_equal(flat[f"{stem}/start_a"], flat[f"{stem}/a"])
    assert not np.any(after[f"{stem}/a"][0, :, 1])
    base = {part: tree for part, tree in start.items() if part != "adapters"}
    run = jax.jit(lambda params: outputs(made, params, batch))
    np.testing.assert_allclose(run(start), _plain()(base), rtol=1e-6, atol=1e-6)
    merged = {"model": made.merged(trained), "heads": trained["heads"]}
    np.testing.assert_allclose(run(trained), _plain()(merged), rtol=1e-4, atol=1e-5)
    assert np.abs(run(trained) - run(start)).max() > 1e-3


def test_pissa_as_a_delta_and_as_plain_lora():
    """Both have the factors [A, A0] and [B, -B0]."""
    made, _, start, trained = _pissa()
    expected = flatten(made.merged(trained))
    parts, rest = made.delta_form(trained["adapters"])
    assert rest == ()
    assert parts["model/layers/attention/value/kernel"].rank == 4
    applied = flatten(Delta(parts).apply({"model": start["model"]}))
    own = {f"adapters/{path}": x for path, x in flatten(trained["adapters"]).items()}
    adapter, arrays = PISSA.plain(own)
    assert (adapter.rank, adapter.alpha, adapter.init) == (4, 16.0, "zero")
    assert adapter.rank_at("encoder/0/attention/value") == 2
    assert adapter.scale_at("encoder/1/attention/value") == 1.0
    assert not np.any(arrays["adapters/lora/encoder/attention/value/a"][0, :, 2:])
    twice, _ = learner("bert", adapter)
    named = {path.removeprefix("adapters/"): x for path, x in arrays.items()}
    merged = flatten(twice.merged({**trained, "adapters": unflatten(named)}))
    for path, array in expected.items():
        np.testing.assert_allclose(applied[f"model/{path}"], array, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(merged[path], array, rtol=1e-4, atol=1e-5)
    assert Lora().plain(own) == (Lora(), own)
    stabilised = dataclasses.replace(PISSA, rank_stabilised=True)
    assert stabilised.plain({})[0].scale == pytest.approx(stabilised.scale)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dora": True}, "init='pissa' does not support dora"),
        ({"gate": "real_tokens"}, "init='pissa' does not support a gate"),
        ({"sites": ("embedding",)}, "init='pissa' does not support the site 'embedding'"),
        ({"alpha": -1.0}, "init='pissa' does not support alpha < 0"),
        (
            {"rank": 9},
            "needs a rank of at most 8, the number of singular values .* attention/query, got 9",
        ),
    ],
)
def test_pissa_that_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        learner("bert", Lora(init="pissa", **options))
    with pytest.raises(InputError, match="such as init='pissa', cannot be part of a union"):
        parse_module("m = seq_bn() + lora(init='pissa')")
