import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_lite.core.trees import flatten
from t5x_lite.nn import cache as caching
from t5x_lite.nn import masks
from t5x_lite.nn.attention_pattern import Pattern
from t5x_lite.nn.slots import bind, shapes, split
from t5x_lite.nn.stack import Decoder, Encoder, Running
from tests.nn.tiny_layers import DROPPING, KEY, SMALL, filled, normal, silence


def encoder(config=SMALL, *, num_layers=3, **running):
    how = Running(**running)
    return lambda rngs: Encoder(config, num_layers=num_layers, running=how, rngs=rngs)


def decoder(config=SMALL, *, num_layers=3, cross_attention=True, **running):
    return lambda rngs: Decoder(
        config,
        num_layers=num_layers,
        running=Running(**running),
        cross_attention=cross_attention,
        rngs=rngs,
    )


def test_encoder_parameters():
    _, abstract, axes = shapes(encoder())
    leaves, names = flatten(abstract), flatten(axes)
    assert {path: (leaves[path].shape, names[path]) for path in leaves} == {
        "relative_bias/table": ((32, 2), ("relpos_buckets", "heads")),
        "layers/attention_norm/scale": ((3, 8), ("layers", "embed")),
        "layers/attention/query/kernel": ((3, 8, 6), ("layers", "embed", "joined_kv")),
        "layers/attention/key/kernel": ((3, 8, 6), ("layers", "embed", "joined_kv")),
        "layers/attention/value/kernel": ((3, 8, 6), ("layers", "embed", "joined_kv")),
        "layers/attention/out/kernel": ((3, 6, 8), ("layers", "joined_kv", "embed")),
        "layers/mlp_norm/scale": ((3, 8), ("layers", "embed")),
        "layers/mlp/wi_0/kernel": ((3, 8, 10), ("layers", "embed", "mlp")),
        "layers/mlp/wi_1/kernel": ((3, 8, 10), ("layers", "embed", "mlp")),
        "layers/mlp/wo/kernel": ((3, 10, 8), ("layers", "mlp", "embed")),
        "final_norm/scale": ((8,), ("embed",)),
    }


def test_decoder_has_cross_attention_and_one_bias_table():
    _, abstract, _ = shapes(decoder(dataclasses.replace(SMALL, feed_forward="relu")))
    assert sorted(flatten(abstract)) == [
        "final_norm/scale",
        "layers/cross_attention/key/kernel",
        "layers/cross_attention/out/kernel",
        "layers/cross_attention/query/kernel",
        "layers/cross_attention/value/kernel",
        "layers/cross_attention_norm/scale",
        "layers/mlp/wi/kernel",
        "layers/mlp/wo/kernel",
        "layers/mlp_norm/scale",
        "layers/self_attention/key/kernel",
        "layers/self_attention/out/kernel",
        "layers/self_attention/query/kernel",
        "layers/self_attention/value/kernel",
        "layers/self_attention_norm/scale",
        "relative_bias/table",
    ]


def test_a_table_for_each_layer():
    config = dataclasses.replace(SMALL, relative_bias_per_layer=True)
    for build in (encoder(config), decoder(config)):
        _, abstract, axes = shapes(build)
        leaves, names = flatten(abstract), flatten(axes)
        assert "relative_bias/table" not in leaves
        assert leaves["layers/relative_bias/table"].shape == (3, 32, 2)
        assert names["layers/relative_bias/table"] == ("layers", "relpos_buckets", "heads")


def test_decoders_without_cross_attention():
    whole = set(flatten(shapes(decoder())[1]))
    alone = set(flatten(shapes(decoder(cross_attention=False))[1]))
    assert alone == {path for path in whole if "cross_attention" not in path}


def slices(layers):
    """The layers of a stacked module, one by one."""
    graphdef, params, _ = split(layers)
    num = flatten(params)["mlp_norm/scale"].shape[0]
    for index in range(num):
        yield bind(graphdef, jax.tree.map(lambda array, index=index: array[index], params))


def test_encoder_scanned_is_unrolled_is_a_loop():
    x = normal(2, 5, 8)
    mask = masks.padding(jnp.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]))

    graphdef, params = filled(encoder())
    unrolled_graphdef = shapes(encoder(unroll=True))[0]

    @jax.jit
    def run(params):
        scanned, unrolled = bind(graphdef, params), bind(unrolled_graphdef, params)
        positions = jnp.arange(5)
        bias = scanned.relative_bias(positions, positions, bidirectional=True)
        y = x
        for layer in slices(scanned.layers):
            y = layer(y, pattern=Pattern(mask, bias))
        return scanned(x, mask=mask), unrolled(x, mask=mask), scanned.final_norm(y)

    scanned, unrolled, looped = run(params)
    np.testing.assert_allclose(scanned, looped, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(unrolled, looped, rtol=1e-5, atol=1e-5)


def test_decoder_scanned_is_unrolled_is_a_loop():
    x, encoded = normal(2, 4, 8), normal(2, 5, 8, seed=1)
    mask = masks.causal(4)
    cross_mask = masks.padding(jnp.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]))

    graphdef, params = filled(decoder())
    unrolled_graphdef = shapes(decoder(unroll=True))[0]

    @jax.jit
    def run(params):
        scanned, unrolled = bind(graphdef, params), bind(unrolled_graphdef, params)
        positions = jnp.arange(4)
        bias = scanned.relative_bias(positions, positions, bidirectional=False)
        y = x
        for layer in slices(scanned.layers):
            y = layer(y, encoded, pattern=Pattern(mask, bias), across=Pattern(cross_mask))
        whole = [
            stack(x, encoded, mask=mask, cross_mask=cross_mask) for stack in (scanned, unrolled)
        ]
        return *whole, scanned.final_norm(y)

    scanned, unrolled, looped = run(params)
    np.testing.assert_allclose(scanned, looped, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(unrolled, looped, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", ["scanned", "unrolled", "apart", "joined"])
@pytest.mark.slow
def test_prefill_and_steps_are_the_whole(layout):
    """A stack without cross-attention, some positions of it both ways; two rows for each input."""
    x = normal(2, 6, 8)
    valid = jnp.array([[0, 0, 1, 1], [1, 1, 1, 1]], bool)
    both_ways = jnp.array([[0, 0, 1, 0], [1, 1, 0, 0]], bool)
    unroll = 1 if layout == "scanned" else True
    graphdef, params = filled(decoder(unroll=unroll, cross_attention=False))
    # The whole mask: nothing sees the padding; tokens 0 and 1 of row 1 see each other.
    mask = masks.causal(6) & jnp.pad(valid, ((0, 0), (0, 2)), constant_values=True)[:, None, None]
    mask = mask.at[1, 0, 0, 1].set(True)

    @jax.jit
    def run(params):
        stack = bind(graphdef, params)
        seconds = jnp.concatenate([x[:, :4], 2 * x[:, 4:]], axis=1)
        wholes = [stack(rows, None, mask=mask, cross_mask=None) for rows in (x, seconds)]
        if layout in ("apart", "joined"):
            stack.lay_out(join=layout == "joined")
        hidden, cache = stack.prefill(x[:, :4], valid=valid, both_ways=both_ways, max_length=3)
        cache = caching.repeat(cache, 2)
        steps = []
        for position in (4, 5):
            # The second of an input's rows gets another token, and sees another past.
            new = jnp.stack([x[:, position], 2 * x[:, position]], axis=1)
            out, cache = stack.step(new, cache)
            steps.append(out)
        return hidden, jnp.stack(steps, axis=2), jnp.stack(wholes, axis=1)

    hidden, steps, wholes = map(np.asarray, run(params))
    real = np.asarray(valid)
    np.testing.assert_allclose(hidden[real], wholes[:, 0, :4][real], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(steps, wholes[:, :, 4:], rtol=1e-5, atol=1e-5)


def test_dropout_is_the_same_scanned_and_unrolled():
    x, mask = normal(2, 5, 8), masks.padding(jnp.ones((2, 5), jnp.int32))
    config = dataclasses.replace(SMALL, dropout_rate=0.5)
    graphdef, params = filled(encoder(config, num_layers=2))
    unrolled_graphdef = shapes(encoder(config, num_layers=2, unroll=True))[0]

    @jax.jit
    def run(key):
        return [bind(g, params)(x, mask=mask, key=key) for g in (graphdef, unrolled_graphdef)]

    scanned, unrolled = run(KEY)
    np.testing.assert_allclose(scanned, unrolled, rtol=1e-5, atol=1e-5)
    assert np.any(np.asarray(scanned) != run(jax.random.fold_in(KEY, 1))[0])


def is_shared_over_length(kept):
    return bool(np.all(kept == kept[:, :1]))


def test_the_encoders_final_dropout_alone_is_not_shared_over_the_length():
    graphdef, params = filled(encoder(DROPPING, num_layers=1))
    params = silence(params, "layers/attention/out/kernel", "layers/mlp/wo/kernel")
    mask = masks.padding(jnp.ones((2, 30), jnp.int32))
    x = normal(2, 30, 64)
    y = jax.jit(lambda key: bind(graphdef, params)(x, mask=mask, key=key))(KEY)
    kept = np.asarray(y) != 0
    assert not is_shared_over_length(kept)
    # The input's dropout is shared: it takes half of the features at all positions of a row ...
    seen = kept.any(axis=1)
    assert 0.3 < seen.mean() < 0.7
    # ... and the final one takes half of what is left, position by position.
    assert 0.4 < kept.mean() / seen.mean() < 0.6


def test_the_decoders_input_and_final_dropout_are_shared_over_the_length():
    graphdef, params = filled(decoder(DROPPING, num_layers=1))
    blocks = ("self_attention/out", "cross_attention/out", "mlp/wo")
    params = silence(params, *(f"layers/{block}/kernel" for block in blocks))
    x, encoded = normal(2, 30, 64), normal(2, 9, 64, seed=1)
    cross_mask = masks.padding(jnp.ones((2, 9), jnp.int32))

    @jax.jit
    def call(key):
        stack, mask = bind(graphdef, params), masks.causal(30)
        return stack(x, encoded, mask=mask, cross_mask=cross_mask, key=key)

    kept = np.asarray(call(KEY)) != 0
    assert is_shared_over_length(kept)
    assert 0.15 < kept.mean() < 0.35  # a half of a half


class Identity(nnx.Module):
    def __call__(self, x):
        return x


def test_every_layer_drops_out_by_a_key_of_its_own():
    def without_dropout_of_its_own(rngs):
        stack = encoder(DROPPING, num_layers=2)(rngs)
        stack.dropout_rate, stack.final_norm = 0.0, Identity()
        return stack

    graphdef, params = filled(without_dropout_of_its_own)
    params = silence(params, "layers/attention/out/kernel")
    x, mask = normal(2, 5, 64), masks.padding(jnp.ones((2, 5), jnp.int32))
    run = jax.jit(lambda params: bind(graphdef, params)(x, mask=mask, key=KEY))
    kernel = params["layers"]["mlp"]["wo"]["kernel"]
    kept = []
    for layer in range(2):
        params["layers"]["mlp"]["wo"]["kernel"] = kernel.at[1 - layer].set(0.0)
        kept.append(np.asarray(run(params)) != np.asarray(x))
        assert is_shared_over_length(kept[-1])
    assert 0.3 < np.mean(kept[0] != kept[1]) < 0.7


TOKENS = jnp.array([[5, 6, 7, 8, 9], [5, 6, 7, 0, 0]])
OWN_BIAS = dataclasses.replace(SMALL, relative_bias_per_layer=True)


def traced(function, *arguments):
    return str(jax.make_jaxpr(function)(*arguments))


@pytest.mark.parametrize("config", [SMALL, OWN_BIAS], ids=["one table", "a table in each layer"])
@pytest.mark.slow
def test_an_encoder_in_blocks_is_an_encoder(config):
    x, visible = normal(2, 5, 8), masks.of_encoder(TOKENS)
    graphdef, params = filled(encoder(config, num_layers=2))
    blocked = shapes(encoder(config, num_layers=2, attention_block=2))[0]

    @jax.jit
    def both(params):
        def gradient(graphdef, mask):
            return jax.grad(lambda p: jnp.sum(jnp.sin(bind(graphdef, p)(x, mask=mask))))(params)

        return gradient(blocked, visible), gradient(graphdef, visible.dense(5))

    for ours, expected in zip(*map(jax.tree.leaves, both(params)), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)


def test_what_is_seen_as_an_array_or_by_its_structure():
    """Without a block size both give the same; with one, the structure goes in blocks."""
    x, visible = normal(2, 5, 8), masks.of_encoder(TOKENS)
    graphdef, params = filled(encoder(num_layers=1))
    blocked = shapes(encoder(num_layers=1, attention_block=2))[0]

    def program(graphdef, mask):
        return traced(lambda params: bind(graphdef, params)(x, mask=mask()), params)

    by_structure = bind(graphdef, params)(x, mask=visible)
    np.testing.assert_array_equal(by_structure, bind(graphdef, params)(x, mask=visible.dense(5)))
    assert "while" not in program(graphdef, lambda: visible)
    assert "while" in program(blocked, lambda: visible)
    assert "while" not in program(blocked, lambda: visible.dense(5))


def test_decoding_is_plain():
    """A prefill makes a cache of all keys and values anyway, and remembers nothing else."""
    graphdef, params = filled(decoder(num_layers=1, cross_attention=False))
    other = shapes(decoder(num_layers=1, cross_attention=False, attention_block=2, remat="full"))[0]

    def program(graphdef):
        def prefill(params):
            valid = jnp.ones((2, 4), bool)
            return bind(graphdef, params).prefill(normal(2, 4, 8), valid=valid, max_length=3)[0]

        return traced(prefill, params)

    assert program(other) == program(graphdef)
