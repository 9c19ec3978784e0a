import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.test_util import check_grads

from t5x_lite.core.sharding import MeshConfig, make_mesh, partition_spec
from t5x_lite.nn import attention as attention_module
from t5x_lite.nn import masks
from t5x_lite.nn.attention import (
    Attention,
    attention_by_head,
    dot_product_attention,
    headwise_attention,
    softmax_attention,
)
from t5x_lite.nn.attention_pattern import Pattern
from t5x_lite.nn.cache import to_blocks
from t5x_lite.nn.dense import WeightDropout
from t5x_lite.nn.fused_attention import blocked_attention
from t5x_lite.nn.masks import Visibility
from t5x_lite.nn.slots import bind, cast, shapes, split

B, T, S, H, K = 2, 4, 5, 3, 6

# Segment 0 of the queries is padding: query 3 of the first row sees no key at all.
QUERY_SEGMENTS = jnp.array([[1, 1, 2, 0], [1, 2, 2, 2]])
KEY_SEGMENTS = jnp.array([[1, 2, 2, 0, 0], [1, 1, 2, 2, 2]])
MASKS = {
    "none": None,
    "padding": masks.padding(jnp.array([[5, 6, 7, 0, 0], [5, 6, 7, 8, 9]])),
    "causal": masks.causal(S)[:, :, :T],
    "fully masked row": masks.segments(QUERY_SEGMENTS, KEY_SEGMENTS),
}


def normal(*shape, seed=0, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape).astype(dtype))


def operands(*, dtype=jnp.float32):
    """Query, key, value, bias and a cotangent."""
    query, cotangent = (normal(B, T, H, K, seed=seed, dtype=dtype) for seed in (0, 4))
    key, value = (normal(B, S, H, K, seed=seed, dtype=dtype) for seed in (1, 2))
    return query, key, value, normal(1, H, T, S, seed=3), cotangent


def numpy_attention(query, key, value, *, bias=None, mask=None):
    """Row by row, head by head, over the keys that may be seen; over all where there are none."""
    query, key, value = (np.asarray(x, np.float64) for x in (query, key, value))
    seen = np.ones((B, 1, T, S), bool) if mask is None else np.broadcast_to(mask, (B, 1, T, S))
    out = np.zeros((B, T, H, K))
    for b, t, h in np.ndindex(B, T, H):
        logits = key[b, :, h] @ query[b, t, h]
        if bias is not None:
            logits = logits + np.asarray(bias)[0, h, t]
        weights = np.exp(logits - logits.max()) * seen[b, 0, t]
        if not seen[b, 0, t].any():
            weights = np.ones(S)
        out[b, t, h] = weights / weights.sum() @ value[b, :, h]
    return out


def plain(query, key, value, bias, mask):
    logits = jnp.einsum("BTHK,BSHK->BHTS", query, key)
    logits = logits if bias is None else logits + bias
    logits = logits if mask is None else jnp.where(mask, logits, -1e10)
    return jnp.einsum("BHTS,BSHK->BTHK", jax.nn.softmax(logits, axis=-1), value)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("biased", [True, False], ids=["bias", "no bias"])
def test_against_numpy(mask, biased):
    query, key, value, bias, _ = operands()
    bias = bias if biased else None
    got = jax.jit(lambda q, k, v: dot_product_attention(q, k, v, pattern=Pattern(mask, bias)))(
        query, key, value
    )
    expected = numpy_attention(query, key, value, mask=mask, bias=bias)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("biased", [True, False], ids=["bias", "no bias"])
def test_gradients_equal_autodiff_of_a_plain_softmax(mask, biased):
    *inputs, bias, cotangent = operands()
    inputs = [*inputs, bias] if biased else inputs

    @jax.jit
    def gradients(inputs, g):
        def attend(function):
            return lambda q, k, v, bias=None: function(q, k, v, bias, mask)

        return [jax.vjp(attend(f), *inputs)[1](g) for f in (softmax_attention, plain)]

    got, expected = gradients(inputs, cotangent)
    assert len(got) == len(inputs)
    for ours, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows_of_bias", [0, 1, B], ids=["no bias", "bias", "bias of each row"])
def test_one_head_at_a_time_is_attention(rows_of_bias):
    query, key, value, bias, cotangent = operands()
    bias = jnp.tile(bias, (rows_of_bias, 1, 1, 1)) if rows_of_bias else None

    @jax.jit
    def run(mask):
        out, pullback = jax.vjp(
            lambda *inputs: headwise_attention(*inputs, mask), query, key, value, bias
        )
        return out, pullback(cotangent)

    for mask in MASKS.values():
        out, pullback = jax.vjp(
            lambda *inputs, mask=mask: softmax_attention(*inputs, mask), query, key, value, bias
        )
        for got, wanted in zip(
            jax.tree.leaves(run(mask)), jax.tree.leaves((out, pullback(cotangent))), strict=True
        ):
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_four_heads_at_a_time_are_attention():
    """Heads of 132 tokens; four at a time cross from one row to the next."""
    length, heads = 132, 6
    inputs = [normal(B, length, heads, K, seed=seed) for seed in range(3)]
    bias, cotangent = (normal(1, heads, length, length, seed=3), normal(*inputs[0].shape, seed=4))
    mask = masks.padding(jnp.asarray([[1] * length, [1] * 100 + [0] * (length - 100)]))

    @jax.jit
    def run(inputs, g):
        sides = (
            jax.vjp(lambda *x, of=of: of(*x, mask), *inputs)
            for of in (headwise_attention, softmax_attention)
        )
        return [(out, pullback(g)) for out, pullback in sides]

    heads_at_once, plain = map(jax.tree.leaves, run([*inputs, bias], cotangent))
    for got, wanted in zip(heads_at_once, plain, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_one_head_at_a_time_in_bfloat16():
    """Its products are in float32, so it is nearer to float32 than plain attention is."""
    *inputs, cotangent = operands(dtype=jnp.bfloat16)
    mask = MASKS["padding"]

    def results(attention, *operands):
        out, pullback = jax.vjp(lambda *x: attention(*x, mask), *operands)
        return [np.asarray(x, np.float32) for x in (out, *pullback(cotangent.astype(out.dtype)))]

    exact = results(softmax_attention, *(x.astype(jnp.float32) for x in inputs))
    heads, plain = (results(each, *inputs) for each in (headwise_attention, softmax_attention))
    for got, other, wanted in zip(heads, plain, exact, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2**-7, atol=2**-6)
        assert np.abs(got - wanted).max() <= np.abs(other - wanted).max()


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_one_head_at_a_time_drops_the_weights_of_blocks(rate):
    """Dropout for each query and key: the same weights as in attention in blocks, also backward."""
    query, key, value, _, cotangent = operands()
    keys = jnp.asarray([[1] * S, [1] * (S - 2) + [0] * 2])
    draws = WeightDropout(jax.random.key(0), rate)

    def heads(*inputs):
        streams = draws.streams(B, H, T)
        return headwise_attention(*inputs, None, masks.padding(keys), streams, rate)

    def blocks(*inputs):
        return blocked_attention(*inputs, visible=Visibility(keys=keys, block_size=2), draws=draws)

    def results(attention):
        out, pullback = jax.vjp(attention, query, key, value)
        return [np.asarray(x) for x in (out, *pullback(cotangent))]

    for got, wanted in zip(results(heads), results(blocks), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_when_one_head_at_a_time_begins(monkeypatch):
    """It begins where it is faster; dropout for each query next to a prefix is plain."""
    query, key, value, bias, _ = operands()
    taken = []
    monkeypatch.setattr(
        attention_module, "headwise_attention", lambda *inputs: taken.append(1) or inputs[0]
    )
    pattern = Pattern(MASKS["padding"], bias, by_head=True)
    dot_product_attention(query, key, value, pattern=pattern)
    assert not taken
    long = [jnp.tile(x, (1, 64, 1, 1)) for x in (query, key, value)]
    dot_product_attention(*long, pattern=Pattern(by_head=True))
    assert taken == [1]
    draws = {"dropout_rate": 0.5, "dropout_key": jax.random.key(0), "share_dropout": False}
    dot_product_attention(*long, pattern=Pattern(by_head=True), **draws)
    assert taken == [1, 1]
    prefix = key[:, :2], value[:, :2]
    dot_product_attention(*long, pattern=Pattern(by_head=True), prefix=prefix, **draws)
    assert taken == [1, 1]


def test_gradients_equal_finite_differences():
    mask = MASKS["fully masked row"]
    function = jax.jit(lambda *inputs: softmax_attention(*inputs, mask))
    check_grads(function, operands()[:4], order=1, modes=["rev"], atol=1e-2, rtol=1e-2)


def test_logits_are_not_divided_by_the_root_of_d_kv():
    # Logits 4 and 0: weights e^4 / (e^4 + 1) = 0.982014 and 0.017986.
    query = jnp.ones((1, 1, 1, 4))
    keys = jnp.array([[[[1.0, 1.0, 1.0, 1.0]], [[0.0, 0.0, 0.0, 0.0]]]])
    values = jnp.array([[[[1.0, 0.0, 0.0, 0.0]], [[0.0, 1.0, 0.0, 0.0]]]])
    got = dot_product_attention(query, keys, values)
    np.testing.assert_allclose(got, [[[[0.982014, 0.017986, 0, 0]]]], rtol=1e-5, atol=1e-6)


def test_a_query_that_sees_nothing_attends_to_all_equally():
    query, key, value, bias, _ = operands()
    pattern = Pattern(MASKS["fully masked row"], bias)
    got = dot_product_attention(query, key, value, pattern=pattern)
    np.testing.assert_allclose(got[0, 3], np.mean(value[0], axis=0), rtol=1e-5, atol=1e-6)


def test_large_logits_do_not_overflow():
    query, key, value, _, cotangent = operands()

    @jax.jit
    def attend(*inputs):
        out, pullback = jax.vjp(lambda *qkv: softmax_attention(*qkv, None, None), *inputs)
        return out, *pullback(cotangent)

    assert all(np.all(np.isfinite(array)) for array in attend(query * 1e4, key, value))


def test_softmax_is_float32_whatever_the_compute_dtype():
    # Logits 256 and 257; bfloat16 has no 257, and would weigh both keys alike.
    query = jnp.array([[[[16.0, 1.0]]]], jnp.bfloat16)
    keys = jnp.array([[[[16.0, 0.0]], [[16.0, 1.0]]]], jnp.bfloat16)
    values = jnp.array([[[[1.0, 0.0]], [[0.0, 1.0]]]], jnp.bfloat16)
    got = dot_product_attention(query, keys, values)
    assert got.dtype == jnp.bfloat16
    expected = [[[[0.268941, 0.731059]]]]
    # Two roundings to 8 bits: of the weights, and of the result.
    np.testing.assert_allclose(got.astype(jnp.float32), expected, rtol=2**-7)


def test_bfloat16_gradients_are_near_those_of_float32():
    low = operands(dtype=jnp.bfloat16)

    @jax.jit
    def gradients(query, key, value, bias, g):
        def attend(query, key, value, bias):
            return softmax_attention(query, key, value, bias, MASKS["causal"])

        return jax.vjp(attend, query, key, value, bias)[1](g)

    got = gradients(*low)
    assert [grad.dtype for grad in got] == [jnp.bfloat16] * 3 + [jnp.float32]
    for ours, expected in zip(got, gradients(*(x.astype(np.float32) for x in low)), strict=True):
        largest = np.max(np.abs(expected))
        np.testing.assert_allclose(ours.astype(np.float32), expected, atol=0.02 * largest)


def test_dropout_drops_softmax_weights_with_a_mask_shared_over_the_queries():
    query, key, value, bias, _ = operands()

    @jax.jit
    def dropped(query, key, value, bias=None):
        return dot_product_attention(
            query,
            key,
            value,
            pattern=Pattern(bias=bias),
            dropout_rate=0.5,
            dropout_key=jax.random.key(9),
        )

    # Uniform weights over values that are unit vectors show the weights that are left; S < K.
    unit = jnp.asarray(np.broadcast_to(np.eye(S, K, dtype=np.float32)[:, None], (B, S, H, K)))
    left = np.asarray(dropped(jnp.zeros((B, T, H, K)), key, unit))[..., :S]
    assert {round(float(x), 4) for x in np.unique(left)} == {0.0, round(2 / S, 4)}
    kept = left > 0
    assert np.all(kept == kept[:, :1])
    assert np.any(kept[0] != kept[1])
    assert np.any(kept[:, :, 0] != kept[:, :, 1])

    logits = np.einsum("bthk,bshk->bhts", query, key) + np.asarray(bias)
    weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    weights = weights * kept.transpose(0, 2, 1, 3) * 2
    expected = np.einsum("bhts,bshk->bthk", weights, value)
    got = dropped(query, key, value, bias)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_dropout_may_draw_for_each_query_and_key():
    query, key, value, bias, _ = operands()
    mask = MASKS["padding"]
    draws = WeightDropout(jax.random.key(9), 0.25)

    def dropped(query, key, value, bias):
        return dot_product_attention(
            query,
            key,
            value,
            pattern=Pattern(mask, bias),
            dropout_rate=0.25,
            dropout_key=draws.key,
            share_dropout=False,
        )

    def plain(query, key, value, bias):
        logits = jnp.einsum("bthk,bshk->bhts", query, key) + bias
        weights = jax.nn.softmax(jnp.where(mask, logits, masks.MASKED), axis=-1)
        kept = draws.kept(weights.shape)
        assert (kept != kept[:, :, :1]).any()
        return jnp.einsum("bhts,bshk->bthk", weights * kept * draws.scale, value)

    for one, other in zip(
        *(
            jax.vjp(function, query, key, value, bias)[1](normal(B, T, H, K, seed=8))
            for function in (dropped, plain)
        ),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        dropped(query, key, value, bias), plain(query, key, value, bias), rtol=1e-5, atol=1e-5
    )


def test_no_key_is_deterministic():
    query, key, value, _, _ = operands()
    attend = jax.jit(dot_product_attention, static_argnames="dropout_rate")
    got = attend(query, key, value, dropout_rate=0.5)
    np.testing.assert_array_equal(got, attend(query, key, value))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_attention_by_head_is_attention(dtype):
    query, key, value, bias, _ = operands(dtype=dtype)
    mask = MASKS["fully masked row"]

    @jax.jit
    def both(query, key, value):
        by_head = key.transpose(0, 2, 3, 1), value.swapaxes(1, 2)
        return (
            attention_by_head(query, *by_head, pattern=Pattern(mask, bias)),
            dot_product_attention(query, key, value, pattern=Pattern(mask, bias)),
        )

    got, expected = both(query, key, value)
    assert got.dtype == expected.dtype == dtype
    tolerance = 1e-5 if dtype == jnp.float32 else 2**-7
    np.testing.assert_allclose(
        got.astype(jnp.float32), expected.astype(jnp.float32), rtol=tolerance, atol=tolerance
    )


def attention(d_model=8, *, num_heads=H, d_kv=K):
    return Attention(d_model, num_heads=num_heads, d_kv=d_kv, dropout_rate=0.0, rngs=nnx.Rngs(0))


def test_parameters():
    _, params, axes = split(attention())
    assert jax.tree.map(jnp.shape, params) == {
        "query": {"kernel": (8, 18)},
        "key": {"kernel": (8, 18)},
        "value": {"kernel": (8, 18)},
        "out": {"kernel": (18, 8)},
    }
    assert axes == {
        "query": {"kernel": ("embed", "joined_kv")},
        "key": {"kernel": ("embed", "joined_kv")},
        "value": {"kernel": ("embed", "joined_kv")},
        "out": {"kernel": ("joined_kv", "embed")},
    }


def test_initialisers():
    module = attention(256, num_heads=16, d_kv=64)
    variances = {
        name: float(np.var(getattr(module, name).kernel[...]))
        for name in ("query", "key", "value", "out")
    }
    # Fan-in 256 into the heads (the query's also divided by d_kv 64), 16 * 64 out of them.
    expected = {"query": 1 / (256 * 64), "key": 1 / 256, "value": 1 / 256, "out": 1 / 1024}
    assert variances == pytest.approx(expected, rel=0.02)
    # Normal, not truncated at two standard deviations.
    assert np.max(np.abs(module.key.kernel[...])) > 4 / math.sqrt(256)


@pytest.mark.parametrize("crossed", [False, True], ids=["self", "cross"])
def test_module_against_numpy(crossed):
    graphdef, params, _ = split(attention())
    x = normal(B, T, 8, seed=1)
    source = normal(B, S, 8, seed=2) if crossed else None
    seen = np.asarray(x if source is None else source)
    kernel = {name: np.asarray(leaf["kernel"]) for name, leaf in params.items()}
    queries, keys, values = (
        np.asarray(x) @ kernel["query"],
        seen @ kernel["key"],
        seen @ kernel["value"],
    )
    mixed = np.zeros((B, T, H * K))
    for head in range(H):
        part = slice(head * K, (head + 1) * K)  # heads are contiguous
        logits = queries[..., part] @ keys[..., part].swapaxes(1, 2)
        weights = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        mixed[..., part] = weights @ values[..., part]
    got = jax.jit(lambda params: bind(graphdef, params)(x, source))(params)
    np.testing.assert_allclose(got, mixed @ kernel["out"], rtol=1e-5, atol=1e-5)


def test_project_then_attend_is_the_call():
    graphdef, params, _ = split(attention())
    x, mask = normal(B, T, 8), masks.causal(T)

    @jax.jit
    def both(params):
        module = bind(graphdef, params)
        queries, (keys, values) = module.project_all(x)
        pattern = Pattern(mask)
        attended = module.attend(queries, keys, values, pattern=pattern)
        return attended, module(x, pattern=pattern)

    np.testing.assert_array_equal(*both(params))


def test_attend_by_head_is_attend():
    graphdef, params, _ = split(attention())
    x, mask = normal(B, T, 8), MASKS["padding"][..., :T]

    @jax.jit
    def both(params):
        module = bind(graphdef, params)
        keys, values = module.project(x)
        by_head = keys.transpose(0, 2, 3, 1), values.swapaxes(1, 2)
        pattern = Pattern(mask)
        attended = module.attend_by_head(module.queries(x), *by_head, pattern=pattern)
        return attended, module(x, pattern=pattern)

    np.testing.assert_allclose(*both(params), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("slots", [64, 70])
def test_keys_in_blocks_are_keys(slots):
    query, key, value = normal(B, 2, H, K), normal(B, slots, H, K), normal(B, slots, H, K)
    mask = jnp.arange(slots) % 3 < jnp.array([1, 2])[:, None, None, None]
    blocks = to_blocks(key.transpose(0, 2, 3, 1))
    assert blocks.shape[1] > H
    got = attention_by_head(query, blocks, value.swapaxes(1, 2), pattern=Pattern(mask))
    expected = dot_product_attention(query, key, value, pattern=Pattern(mask))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_joined_projections_are_the_projections():
    module = attention()
    x = normal(B, T, 8)
    apart = module.project_all(x)
    kernels = split(module)[1]
    module.join()
    joined = split(module)[1]
    np.testing.assert_array_equal(
        joined["joint"]["kernel"].T,
        jnp.concatenate([kernels[name]["kernel"] for name in ("query", "key", "value")], axis=1),
    )
    assert sorted(joined) == ["joint", "joint_out"]
    np.testing.assert_array_equal(joined["joint_out"]["kernel"].T, kernels["out"]["kernel"])
    crossing = attention()
    expected = crossing.queries(x)
    crossing.join(crosses=True)
    assert sorted(split(crossing)[1]) == ["joint", "joint_out", "key", "value"]
    np.testing.assert_allclose(crossing.queries(x), expected, rtol=1e-5, atol=1e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5),
        jax.jit(module.project_all)(x),
        apart,
    )


def test_bfloat16_output():
    graphdef, params, _ = split(attention())
    x = normal(B, T, 8)

    @jax.jit
    def low_and_full(params):
        low = bind(graphdef, cast(params, jnp.bfloat16))(x.astype(jnp.bfloat16))
        return low, bind(graphdef, params)(x)

    low, full = low_and_full(params)
    assert low.dtype == jnp.bfloat16
    np.testing.assert_allclose(low.astype(np.float32), full, atol=0.05)


def test_heads_are_constrained():
    """Queries, keys and values by length; keys and values once more, whole, for every query."""
    graphdef, params, _ = split(attention())
    with jax.set_mesh(make_mesh(MeshConfig(), devices=jax.devices()[:1])):
        traced = jax.make_jaxpr(lambda params: bind(graphdef, params)(normal(B, T, 8)))(params)
    constrained = [
        equation.params["sharding"].spec
        for equation in traced.jaxpr.eqns
        if equation.primitive.name == "sharding_constraint"
    ]
    by_length = partition_spec(("batch", "length", "heads", "kv"))
    whole = partition_spec(("batch", None, "heads", "kv"))
    hidden = partition_spec(("batch", "length", "activation_embed"))
    assert constrained.count(by_length) == 4  # query, key, value, mixed
    assert constrained.count(whole) == 2
    assert constrained[-1] == hidden
    assert len(constrained) == 7


def test_attention_with_biases_is_not_fused():
    def build(rngs):
        options = {"num_heads": 2, "d_kv": 2, "dropout_rate": 0.0}
        return Attention(4, **options, bias=True, scaled=True, stddev=0.02, rngs=rngs)

    graphdef, abstract, _ = shapes(build)
    attention = bind(graphdef, jax.tree.map(lambda leaf: jnp.ones(leaf.shape), abstract))
    with pytest.raises(ValueError, match="biases or scaled logits"):
        attention.join()
