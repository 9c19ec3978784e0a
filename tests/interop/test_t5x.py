"""Imports of t5x checkpoints: every array, in every layout, and the model that they make."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.core import trees
from t5x_lite.core.errors import InputError
from t5x_lite.interop.t5x import read_t5x
from t5x_lite.models.t5 import T5Config
from t5x_lite.nn.slots import bind, shapes
from tests.interop.t5x_writer import (
    flat,
    heads_apart,
    nested,
    parameters,
    per_layer_bias,
    scanned,
    write_legacy,
    write_orbax,
)

CONFIG = T5Config(
    vocab_size=19,
    d_model=8,
    d_kv=3,
    d_ff=12,
    num_heads=2,
    num_encoder_layers=2,
    num_decoder_layers=3,
)
T5_1_1 = parameters()
T5_1_0 = parameters(gated=False, tied=True)
UMT5 = per_layer_bias(T5_1_1)

ALL = ("scale", "kernel", "embedding", "rel_embedding")
"""Errors are looked for in checkpoints whose arrays all are in the index: that is faster."""

# Ours and t5x's, a layer at a time.
ENCODER = {
    "attention_norm/scale": "pre_attention_layer_norm/scale",
    "attention/query/kernel": "attention/query/kernel",
    "attention/key/kernel": "attention/key/kernel",
    "attention/value/kernel": "attention/value/kernel",
    "attention/out/kernel": "attention/out/kernel",
    "mlp_norm/scale": "pre_mlp_layer_norm/scale",
    "mlp/wi_0/kernel": "mlp/wi_0/kernel",
    "mlp/wi_1/kernel": "mlp/wi_1/kernel",
    "mlp/wo/kernel": "mlp/wo/kernel",
}
DECODER = {
    "self_attention_norm/scale": "pre_self_attention_layer_norm/scale",
    "self_attention/query/kernel": "self_attention/query/kernel",
    "self_attention/key/kernel": "self_attention/key/kernel",
    "self_attention/value/kernel": "self_attention/value/kernel",
    "self_attention/out/kernel": "self_attention/out/kernel",
    "cross_attention_norm/scale": "pre_cross_attention_layer_norm/scale",
    "cross_attention/query/kernel": "encoder_decoder_attention/query/kernel",
    "cross_attention/key/kernel": "encoder_decoder_attention/key/kernel",
    "cross_attention/value/kernel": "encoder_decoder_attention/value/kernel",
    "cross_attention/out/kernel": "encoder_decoder_attention/out/kernel",
    "mlp_norm/scale": "pre_mlp_layer_norm/scale",
    "mlp/wi_0/kernel": "mlp/wi_0/kernel",
    "mlp/wi_1/kernel": "mlp/wi_1/kernel",
    "mlp/wo/kernel": "mlp/wo/kernel",
}


def ours(target):
    """What parameters of 1.1 or umT5 are in our layout."""
    theirs = {"/".join(keys): array for keys, array in flat(target).items()}
    expected = {
        "token_embedding/table": theirs["token_embedder/embedding"],
        "lm_head/kernel": theirs["decoder/logits_dense/kernel"],
        "encoder/final_norm/scale": theirs["encoder/encoder_norm/scale"],
        "decoder/final_norm/scale": theirs["decoder/decoder_norm/scale"],
    }
    for stack, names, num in (("encoder", ENCODER, 2), ("decoder", DECODER, 3)):
        layers = [f"{stack}/layers_{layer}" for layer in range(num)]
        for mine, name in names.items():
            stacked = np.stack([theirs[f"{layer}/{name}"] for layer in layers])
            expected[f"{stack}/layers/{mine}"] = stacked
        bias = "relpos_bias/rel_embedding"
        if f"{stack}/{bias}" in theirs:
            expected[f"{stack}/relative_bias/table"] = theirs[f"{stack}/{bias}"].T
        else:
            tables = np.stack([theirs[f"{layer}/{bias}"].T for layer in layers])
            expected[f"{stack}/layers/relative_bias/table"] = tables
    return expected


def arrays(checkpoint):
    return {path: checkpoint.array(path) for path in checkpoint.shapes}


def assert_equal(found, expected):
    assert set(found) == set(expected)
    for path, array in expected.items():
        np.testing.assert_array_equal(found[path], array, err_msg=path)
        assert found[path].dtype == array.dtype


LAYOUTS = {
    "layers apart": (T5_1_1, T5_1_1),
    "heads apart": (heads_apart(T5_1_1), T5_1_1),
    "flaxformer, scanned": (scanned(T5_1_1), T5_1_1),
    "one stack scanned": ({**scanned(T5_1_1), "encoder": T5_1_1["encoder"]}, T5_1_1),
    "umT5, layers apart": (UMT5, UMT5),
    "umT5, released": (scanned(heads_apart(UMT5)), UMT5),
    "scalable_t5": (
        scanned(
            heads_apart(per_layer_bias(T5_1_1, name="relative_posemb")), names=("layers", "layers")
        ),
        UMT5,
    ),
    "scalable_t5, not scanned": (
        heads_apart(per_layer_bias(T5_1_1, name="relative_posemb")),
        UMT5,
    ),
}


@pytest.mark.parametrize(("written", "meant"), LAYOUTS.values(), ids=LAYOUTS)
def test_every_layout_gives_the_same_arrays_bit_for_bit(tmp_path, written, meant):
    checkpoint = read_t5x(write_legacy(tmp_path / "checkpoint_7", written))
    assert checkpoint.config == CONFIG.replace(relative_bias_per_layer=meant is UMT5)
    assert_equal(arrays(checkpoint), ours(meant))


def test_bfloat16_stays_and_layers_that_differ_take_the_widest(tmp_path):
    target = jax.tree.map(lambda array: array.astype(jnp.bfloat16), T5_1_1)
    wide = T5_1_1["encoder"]["layers_1"]["mlp"]["wo"]["kernel"]
    target["encoder"]["layers_1"]["mlp"]["wo"]["kernel"] = wide
    checkpoint = read_t5x(write_legacy(tmp_path, target))
    found = arrays(checkpoint)
    expected = ours(target)
    assert expected["encoder/layers/mlp/wo/kernel"].dtype == np.float32
    assert_equal(found, expected)
    assert {path: checkpoint.dtype(path) for path in found} == {
        path: array.dtype for path, array in found.items()
    }


def test_t5_1_0_is_told_by_its_arrays(tmp_path):
    checkpoint = read_t5x(write_legacy(tmp_path, T5_1_0))
    assert checkpoint.config == CONFIG.replace(feed_forward="relu", tie_embeddings=True)
    found = arrays(checkpoint)
    assert "lm_head/kernel" not in found
    wi = [T5_1_0["decoder"][f"layers_{layer}"]["mlp"]["wi"]["kernel"] for layer in range(3)]
    np.testing.assert_array_equal(found["decoder/layers/mlp/wi/kernel"], wi)


def test_orbax_and_a_directory_of_steps(tmp_path):
    write_orbax(tmp_path / "checkpoint_7", T5_1_0)
    write_orbax(tmp_path / "checkpoint_10", scanned(T5_1_1))
    assert_equal(arrays(read_t5x(tmp_path)), ours(T5_1_1))
    assert read_t5x(tmp_path, step=7).config.tie_embeddings


def test_what_no_checkpoint_says_can_be_given(tmp_path):
    write_legacy(tmp_path, T5_1_1, inline=ALL)
    config = read_t5x(tmp_path, dropout_rate=0.0, relative_max_distance=64, unroll=True).config
    assert config == CONFIG.replace(dropout_rate=0.0, relative_max_distance=64, unroll=True)
    with pytest.raises(InputError, match=r"has shape \(8, 6\), but the config requires \(8, 8\)"):
        read_t5x(tmp_path, d_kv=4)


# The model, against t5x's network.py in NumPy: from their names and shapes to logits.

INPUTS = np.array([[5, 6, 7, 8, 9, 1, 0], [10, 11, 1, 0, 0, 0, 0]])
DECODER_INPUTS = np.array([[0, 12, 13, 14, 1], [0, 15, 16, 17, 18]])


def bucket(distance, *, bidirectional):
    """examples/t5/layers.py, RelativePositionBiases; distances of the test are below 8."""
    if not bidirectional:
        return np.maximum(-distance, 0)
    return np.abs(distance) + 16 * (distance > 0)


def network(target, *, tied):
    target = jax.tree.map(lambda array: array.astype(np.float64), target)
    embedding = target["token_embedder"]["embedding"]

    def norm(x, scale):
        return x / np.sqrt(np.mean(x**2, -1, keepdims=True) + 1e-6) * scale["scale"]

    def attention(x, source, kernels, mask, bias=0.0):
        def heads(name, x):
            return (x @ kernels[name]["kernel"]).reshape(*x.shape[:2], 2, 3)

        query, key, value = heads("query", x), heads("key", source), heads("value", source)
        logits = np.einsum("bqhd,bkhd->bhqk", query, key) + bias + np.where(mask, 0, -1e10)
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mixed = np.einsum("bhqk,bkhd->bqhd", weights, value)
        return mixed.reshape(*x.shape[:2], 6) @ kernels["out"]["kernel"]

    def mlp(x, kernels):
        if "wi" in kernels:
            hidden = np.maximum(x @ kernels["wi"]["kernel"], 0)
        else:
            gate = x @ kernels["wi_0"]["kernel"]
            gelu = gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) / 2
            hidden = gelu * (x @ kernels["wi_1"]["kernel"])
        return hidden @ kernels["wo"]["kernel"]

    def bias(stack, length, **direction):
        positions = np.arange(length)
        buckets = bucket(positions[None, :] - positions[:, None], **direction)
        return target[stack]["relpos_bias"]["rel_embedding"][:, buckets][None]

    padding = (INPUTS > 0)[:, None, None, :]
    x = embedding[INPUTS]
    for layer in (target["encoder"][f"layers_{index}"] for index in range(2)):
        y = norm(x, layer["pre_attention_layer_norm"])
        x = x + attention(y, y, layer["attention"], padding, bias("encoder", 7, bidirectional=True))
        x = x + mlp(norm(x, layer["pre_mlp_layer_norm"]), layer["mlp"])
    encoded = norm(x, target["encoder"]["encoder_norm"])
    causal = np.tri(5, dtype=bool)[None, None]
    x = embedding[DECODER_INPUTS]
    for layer in (target["decoder"][f"layers_{index}"] for index in range(3)):
        y = norm(x, layer["pre_self_attention_layer_norm"])
        own = bias("decoder", 5, bidirectional=False)
        x = x + attention(y, y, layer["self_attention"], causal, own)
        y = norm(x, layer["pre_cross_attention_layer_norm"])
        x = x + attention(y, encoded, layer["encoder_decoder_attention"], padding)
        x = x + mlp(norm(x, layer["pre_mlp_layer_norm"]), layer["mlp"])
    x = norm(x, target["decoder"]["decoder_norm"])
    return x @ embedding.T / np.sqrt(8) if tied else x @ target["decoder"]["logits_dense"]["kernel"]


def logits(checkpoint):
    graphdef, _, _ = shapes(lambda rngs: checkpoint.config.build(rngs=rngs))
    return compiled(graphdef)(trees.unflatten(arrays(checkpoint)))


@functools.cache
def compiled(graphdef):
    inputs, decoder_inputs = jnp.asarray(INPUTS), jnp.asarray(DECODER_INPUTS)
    return jax.jit(lambda params: bind(graphdef, params)(inputs, decoder_inputs))


@pytest.mark.parametrize(("target", "tied"), [(T5_1_0, True), (T5_1_1, False)], ids=["1.0", "1.1"])
def test_logits_are_those_of_t5x(tmp_path, target, tied):
    found = logits(read_t5x(write_legacy(tmp_path / "apart", target)))
    np.testing.assert_allclose(found, network(target, tied=tied), rtol=1e-4, atol=1e-4)
    one_tensor = logits(read_t5x(write_legacy(tmp_path / "scanned", scanned(target))))
    np.testing.assert_array_equal(one_tensor, found)


# What may be wrong


def without(target, *path):
    return nested({keys: value for keys, value in flat(target).items() if keys != path})


def changed(target, path, change):
    leaves = flat(target)
    return nested({**leaves, path: change(leaves.get(path))})


def message(directory, target):
    with pytest.raises(InputError) as error:
        arrays(read_t5x(write_legacy(directory, target, inline=ALL)))
    text = str(error.value)
    assert "\n" not in text
    assert str(directory) in text
    return text


def test_missing_and_unexpected_tensors_are_listed(tmp_path):
    target = without(T5_1_1, "decoder", "layers_2", "mlp", "wo", "kernel")
    target["encoder"]["layers_0"]["global_attention"] = {"query": {"kernel": np.ones((8, 6))}}
    assert message(tmp_path, target).endswith(
        "missing: decoder/layers_2/mlp/wo/kernel; "
        "unexpected: encoder/layers_0/global_attention/query/kernel"
    )


@pytest.mark.parametrize(
    "path",
    [
        ("token_embedder", "embedding"),
        ("encoder", "relpos_bias", "rel_embedding"),
        ("encoder", "layers_0", "attention", "query", "kernel"),
        ("encoder", "layers_0", "mlp", "wi_0", "kernel"),
    ],
)
def test_a_tensor_that_says_the_sizes_is_missing(tmp_path, path):
    missing = "/".join(path).replace("wi_0", "wi")  # without wi_0 it is a T5 1.0
    assert f"{missing} is missing" in message(tmp_path, without(T5_1_1, *path))


def test_a_layer_is_missing(tmp_path):
    decoder = {key: value for key, value in T5_1_1["decoder"].items() if key != "layers_1"}
    text = message(tmp_path, {**T5_1_1, "decoder": decoder})
    assert "some layers of the decoder are missing; its layers are [0, 2]" in text


def test_scanned_tensors_of_other_numbers_of_layers(tmp_path):
    path = ("decoder", "decoder", "mlp", "wo", "kernel")
    target = changed(scanned(T5_1_1), path, lambda kernel: kernel[:, :2])
    assert "mlp/wo/kernel has shape (12, 2, 8), but the config requires (12, 3, 8)" in message(
        tmp_path, target
    )


@pytest.mark.parametrize(
    ("path", "change", "expected"),
    [
        (
            ("encoder", "layers_1", "mlp", "wo", "kernel"),
            lambda kernel: kernel[:11],
            "encoder/layers_1/mlp/wo/kernel has shape (11, 8), but the config requires (12, 8)",
        ),
        (
            ("encoder", "layers_0", "attention", "query", "kernel"),
            lambda kernel: kernel[:, :5],
            "the kernel shape (8, 5) is not divisible by 2 heads",
        ),
        (
            ("token_embedder", "embedding"),
            lambda table: table[None],
            "token_embedder/embedding has shape (1, 19, 8), which does not fit a T5",
        ),
        (
            ("decoder", "layers_0", "mlp", "wo", "kernel"),
            lambda kernel: kernel.astype(np.int32),
            "decoder/layers_0/mlp/wo/kernel has dtype int32, but weights must be floating-point",
        ),
        (
            ("decoder", "layers_0", "mlp", "wo", "kernel"),
            lambda kernel: np.where(kernel > 0, np.nan, kernel).astype(np.float32),
            "weights that are NaN or infinite",
        ),
        (
            ("encoder", "relpos_bias", "rel_embedding"),
            lambda table: table[:, :2],
            "model.relative_buckets must be at least 4",
        ),
    ],
    ids=["shape", "heads", "axes", "integers", "NaN", "buckets"],
)
def test_a_tensor_that_is_not_as_it_should_be(tmp_path, path, change, expected):
    assert expected in message(tmp_path, changed(T5_1_1, path, change))


def test_a_model_without_an_encoder(tmp_path):
    text = message(tmp_path, {"decoder": T5_1_1["decoder"]})
    assert "contains no layers of a T5 encoder" in text


def test_relative_biases_per_layer_in_one_stack_alone(tmp_path):
    assert "must both have a relative bias per layer" in message(
        tmp_path, {**T5_1_1, "encoder": UMT5["encoder"]}
    )
