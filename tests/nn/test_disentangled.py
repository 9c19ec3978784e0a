import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_lite.nn import pallas_disentangled
from t5x_lite.nn.attention_pattern import Pattern
from t5x_lite.nn.disentangled import (
    DisentangledAttention,
    DisentangledLayer,
    RelativePositions,
    log_buckets,
)
from t5x_lite.nn.layers import PostNormConfig
from t5x_lite.nn.masks import Visibility, segments
from t5x_lite.nn.slots import bind, split

CONFIG = PostNormConfig(d_model=12, d_ff=20, num_heads=3, norm_epsilon=1e-7)
LENGTH = 7


def published_buckets(position_buckets, max_positions, num=None):
    """The formula of microsoft/DeBERTa's da_utils.py, in float64."""
    mid = position_buckets // 2
    distance = np.arange(max_positions if num is None else num)
    reach = np.where(distance < mid, mid - 1, distance)
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = np.log(reach / mid) / np.log((max_positions - 1) / mid)
        buckets = np.where(reach <= mid, distance, np.ceil(spread * (mid - 1)) + mid)
    return tuple(buckets.astype(int))


def test_log_buckets():
    assert log_buckets(8, 16) == (0, 1, 2, 3, 4, 5, 5, 6, 6, 6, 7, 7, 7, 7, 7, 7)
    assert log_buckets(2, 4) == (0, 1, 1, 1)
    assert log_buckets(4, 20) == (0, 1, 2) + (3,) * 17
    # With many buckets for few distances some are never used.
    assert log_buckets(12, 9) == (0, 1, 2, 3, 4, 5, 6, 9, 11)
    # Beyond max_positions they grow on.
    assert log_buckets(8, 16, 20)[14:] == (7, 7, 8, 8, 8, 8)
    assert log_buckets(8, 16, 3) == (0, 1, 2)


def test_log_buckets_of_the_released_models():
    buckets = log_buckets(256, 512)
    assert buckets[:129] == tuple(range(129))
    assert [buckets[n] for n in (129, 130, 140, 150, 200, 256, 300, 400, 500, 510, 511)] == [
        129, 130, 137, 143, 169, 192, 207, 233, 254, 255, 255,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("position_buckets", "max_positions"),
    [(2, 9), (4, 20), (5, 31), (8, 16), (16, 100), (32, 128), (64, 512), (256, 512), (256, 2048)],
)
def test_log_buckets_are_the_published_formula(position_buckets, max_positions):
    found = log_buckets(position_buckets, max_positions)
    assert found == published_buckets(position_buckets, max_positions)
    assert max(found) < position_buckets
    num = 3 * max_positions
    longer = log_buckets(position_buckets, max_positions, num)
    assert longer == published_buckets(position_buckets, max_positions, num)


@pytest.mark.parametrize(("position_buckets", "max_positions"), [(1, 9), (8, 5), (8, 0)])
def test_sizes_that_make_no_buckets(position_buckets, max_positions):
    with pytest.raises(ValueError, match="position_buckets of at least 2"):
        log_buckets(position_buckets, max_positions)


def test_rows_of_the_table():
    relative = RelativePositions(position_buckets=4, max_positions=6)
    # b: 0 1 2 3 3 3 4 4 and as many to the left, on 4; the last row is 7
    assert relative.index(3).tolist() == [2, 3, 4, 5, 6]
    assert relative.index(8).tolist() == [0, 0, 1, 1, 1, 2, 3, 4, 5, 6, 7, 7, 7, 7, 7]
    assert relative.index(1).tolist() == [4]
    distances = relative.distances(jnp.arange(8.0)[:, None], 3)
    assert distances.rows.ravel().tolist() == [2, 3, 4, 5, 6]
    assert distances.index.tolist() == [0, 1, 2, 3, 4]


def test_rows_without_log_buckets():
    relative = RelativePositions(position_buckets=0, max_positions=3)
    assert relative.span == 3
    assert relative.index(5).tolist() == [0, 0, 1, 2, 3, 4, 5, 5, 5]


@pytest.mark.parametrize("terms", [("c2p", "p2p"), ("p2p",), (), ("c2p", "c2p")])
def test_other_terms_are_refused(terms):
    with pytest.raises(ValueError, match="terms c2p, p2c, each once"):
        RelativePositions(terms=terms)


def test_sizes_that_are_refused():
    with pytest.raises(ValueError, match="position_buckets must be at least 0"):
        RelativePositions(position_buckets=-1)
    with pytest.raises(ValueError, match="position_buckets of at least 2"):
        RelativePositions(position_buckets=1024, max_positions=512)


def random_params(module, seed):
    """The module's structure and random parameters, none of them 0 or 1."""
    graphdef, params, _ = split(module)
    rng = np.random.default_rng(seed)
    leaves, tree = jax.tree.flatten(params)
    leaves = [jnp.asarray(rng.normal(size=x.shape) * 0.5, jnp.float32) for x in leaves]
    return graphdef, jax.tree.unflatten(tree, leaves)


def dense(params, x):
    return x @ np.asarray(params["kernel"], np.float64) + np.asarray(params["bias"], np.float64)


def reference(params, relative, x, source, mask, table):
    """The definition, pair by pair, in float64."""
    num_heads, d_model = CONFIG.num_heads, CONFIG.d_model
    heads = (-1, num_heads, d_model // num_heads)
    keys_of = params["key"] if relative.shared else params.get("position_key")
    queries_of = params["query"] if relative.shared else params.get("position_query")
    zero_row = relative.span
    out = []
    for x_row, source_row, seen in zip(x, source, mask, strict=True):
        query = dense(params["query"], x_row).reshape(heads)
        key, value = (dense(params[n], source_row).reshape(heads) for n in ("key", "value"))
        mixed = np.zeros_like(query)
        for head in range(num_heads):
            for q in np.flatnonzero(seen.any(axis=1)):
                scores = []
                for k in range(len(key)):
                    r = q - k
                    if relative.position_buckets:
                        sizes = relative.position_buckets, relative.max_positions
                        r = np.sign(r) * published_buckets(*sizes, len(key))[abs(r)]
                    row = table[np.clip(r + zero_row, 0, 2 * relative.span - 1)]
                    score = query[q, head] @ key[k, head]
                    if "c2p" in relative.terms:
                        score += query[q, head] @ dense(keys_of, row).reshape(heads)[0, head]
                    if "p2c" in relative.terms:
                        score += key[k, head] @ dense(queries_of, row).reshape(heads)[0, head]
                    scores.append(score / math.sqrt(heads[-1] * (1 + len(relative.terms))))
                weights = np.exp(np.array(scores) - max(scores)) * seen[q]
                mixed[q, head] = (weights / weights.sum()) @ value[:, head]
        out.append(dense(params["out"], mixed.reshape(len(x_row), d_model)))
    return np.stack(out)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("terms", [("p2c", "c2p"), ("c2p",), ("p2c",)])
@pytest.mark.parametrize(("position_buckets", "max_positions"), [(4, 5), (0, 5), (8, 64)])
def test_attention_is_its_definition(shared, terms, position_buckets, max_positions):
    relative = RelativePositions(
        position_buckets=position_buckets, max_positions=max_positions, terms=terms, shared=shared
    )
    module = DisentangledAttention(CONFIG, relative, rngs=nnx.Rngs(0))
    graphdef, params = random_params(module, 1)
    rng = np.random.default_rng(2)
    x, source = rng.normal(size=(2, 2, LENGTH, CONFIG.d_model))
    table = rng.normal(size=(2 * relative.span, CONFIG.d_model))
    ids = np.array([[1] * LENGTH, [1, 1, 2, 2, 2, 0, 0]])
    mask = (ids[:, :, None] == ids[:, None]) & (ids > 0)[:, None]
    wanted = reference(params, relative, x, source, mask, table)
    ids = jnp.asarray(ids)
    blocks = Visibility(keys=ids, queries=ids, block_size=3)
    distances = relative.distances(jnp.asarray(table, jnp.float32), LENGTH)
    for seen in (segments(ids, ids), blocks):
        found = bind(graphdef, params)(
            jnp.asarray(x, jnp.float32),
            jnp.asarray(source, jnp.float32),
            pattern=Pattern(seen, distances),
        )
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_blocks_see_segments_alone():
    layer, x, distances = layer_and_inputs()
    mask = Visibility(keys=jnp.ones((2, LENGTH), jnp.int32), causal=True)
    with pytest.raises(ValueError, match="requires a mask made only of segment ids"):
        layer(x, pattern=Pattern(mask, distances))


def test_the_kernel_for_tpus_attends_without_a_prefix(monkeypatch):
    layer, x, distances = layer_and_inputs()
    ids = jnp.asarray([[1] * LENGTH, [1, 1, 2, 2, 2, 0, 0]])
    kernel, calls = pallas_disentangled.pallas_disentangled, []

    def interpreted(operands, segment_ids, **options):
        calls.append(options["block"])
        return kernel(operands, segment_ids, **options, interpret=True)

    monkeypatch.setattr(pallas_disentangled, "pallas_disentangled", interpreted)

    def attend(**fields):
        mask = Visibility(keys=ids, queries=ids, block_size=8, **fields)
        return layer.attention(x, x, pattern=Pattern(mask, distances))

    np.testing.assert_allclose(attend(kernel=True), attend(), rtol=1e-5, atol=1e-5)
    assert calls == [8]
    before = jnp.ones((1, 2, 3, 4))
    monkeypatch.setattr(DisentangledAttention, "own_prefix", lambda *_: (before, before))
    np.testing.assert_array_equal(attend(kernel=True), attend())
    assert calls == [8]


def test_distances_are_needed():
    layer, x, _ = layer_and_inputs()
    with pytest.raises(ValueError, match="requires a bias of class Distances"):
        layer(x, pattern=Pattern(jnp.ones((1, 1, 1, LENGTH), bool)))


def test_parameters_of_attention():
    for shared, own in ((True, set()), (False, {"position_key", "position_query"})):
        relative = RelativePositions(position_buckets=4, max_positions=8, shared=shared)
        layer = DisentangledLayer(CONFIG, relative, rngs=nnx.Rngs(0))
        attention = split(layer)[1]["attention"]
        assert attention.keys() == {"query", "key", "value", "out"} | own


def layer_and_inputs(*, rates=0.0):
    relative = RelativePositions(position_buckets=4, max_positions=8)
    config = PostNormConfig(
        d_model=12,
        d_ff=20,
        num_heads=3,
        dropout_rate=rates,
        attention_dropout_rate=rates,
        initializer_stddev=0.3,
    )
    layer = DisentangledLayer(config, relative, rngs=nnx.Rngs(0))
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(2, LENGTH, 12)), jnp.float32)
    distances = relative.distances(jnp.asarray(rng.normal(size=(8, 12)), jnp.float32), LENGTH)
    return layer, x, distances


def test_the_residual_follows_the_query():
    layer, x, distances = layer_and_inputs()
    everything = jnp.ones((1, 1, 1, LENGTH), bool)
    attended = layer.attention(x, 2 * x, pattern=Pattern(everything, distances))
    wanted = layer.feed_forward(layer.attention_norm(x + attended))
    found = layer(x, keys_from=2 * x, pattern=Pattern(everything, distances))
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(
        layer(x, pattern=Pattern(everything, distances)),
        layer(x, keys_from=x, pattern=Pattern(everything, distances)),
    )


def test_a_key_turns_dropout_on():
    layer, x, distances = layer_and_inputs(rates=0.5)
    mask = jnp.ones((1, 1, 1, LENGTH), bool)
    first, again, other = (
        layer(x, pattern=Pattern(mask, distances), key=jax.random.key(seed)) for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)
    assert not np.allclose(first, layer(x, pattern=Pattern(mask, distances)))


def test_the_table_is_dropped_out():
    layer, x, distances = layer_and_inputs()
    attention = layer.attention
    attention.position_dropout_rate = 0.5
    mask = jnp.ones((1, 1, 1, LENGTH), bool)
    dropped = attention(x, x, pattern=Pattern(mask, distances), key=jax.random.key(0))
    assert not np.allclose(dropped, attention(x, x, pattern=Pattern(mask, distances)), atol=1e-3)


def test_bfloat16_is_near_float32():
    layer, x, distances = layer_and_inputs()
    mask = jnp.ones((1, 1, 1, LENGTH), bool)
    graphdef, params, _ = split(layer)
    half = bind(graphdef, jax.tree.map(lambda p: p.astype(jnp.bfloat16), params))
    low = distances._replace(rows=distances.rows.astype(jnp.bfloat16))
    found = half(x.astype(jnp.bfloat16), pattern=Pattern(mask, low))
    assert found.dtype == jnp.bfloat16
    wanted = layer(x, pattern=Pattern(mask, distances))
    np.testing.assert_allclose(found.astype(jnp.float32), wanted, atol=0.05)
