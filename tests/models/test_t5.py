"""T5 as a whole; its parts are tested in tests/nn, and against transformers in tests/oracle."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.core import tied_parameters
from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import flatten, unflatten
from t5x_lite.models.t5 import T5Config
from t5x_lite.nn.attention_pattern import bucket_starts
from t5x_lite.nn.slots import bind, cast, init, shapes
from t5x_lite.nn.stack import Running

T5_1_1 = T5Config(
    vocab_size=19,
    d_model=8,
    d_kv=3,
    d_ff=12,
    num_heads=2,
    num_encoder_layers=2,
    num_decoder_layers=3,
    dropout_rate=0.0,
)
T5_1_0 = T5_1_1.replace(feed_forward="relu", tie_embeddings=True)
SHARED = T5_1_0.replace(share_layers=True, num_decoder_layers=2)
UMT5 = T5_1_1.replace(relative_bias_per_layer=True)
FAMILIES = {"1.0": T5_1_0, "1.1": T5_1_1, "shared": SHARED, "umT5": UMT5}

# Two rows of inputs and targets, padded with 0; the decoder's inputs are shifted right.
INPUTS = jnp.array([[5, 6, 7, 8, 9, 1], [10, 11, 1, 0, 0, 0]])
DECODER_INPUTS = jnp.array([[0, 12, 13, 14, 1], [0, 15, 16, 17, 18]])


@functools.cache
def filled(config):
    """The model's structure and random parameters as they are stored, made by NumPy."""
    graphdef, seen, axes = shapes(lambda rngs: config.build(rngs=rngs))
    abstract, _ = tied_parameters.stored(config.views(), seen, axes)
    rng = np.random.default_rng(0)

    def fill(leaf):
        if leaf.shape[-1] == config.d_model and len(leaf.shape) < 3 and leaf.shape[0] < 19:
            return rng.uniform(0.5, 1.5, size=leaf.shape)  # a norm's scale
        scale = 1.0 if leaf.shape[0] in (19, 32) else leaf.shape[-2] ** -0.5
        return rng.normal(size=leaf.shape, scale=scale)

    return graphdef, jax.tree.map(lambda leaf: jnp.asarray(fill(leaf), jnp.float32), abstract)


def numpy_t5(params, config, inputs, decoder_inputs, segments=None):
    """Logits in NumPy's float64, written after the paper alone."""
    p = {path: np.asarray(leaf, np.float64) for path, leaf in flatten(params).items()}
    embedding = p["token_embedding/table"]

    def norm(x, scale):
        return x / np.sqrt(np.mean(x**2, -1, keepdims=True) + 1e-6) * scale

    def attention(name, layer, x, source, mask, bias):
        q, k, v = (
            (states @ p[f"{name}/{part}/kernel"][layer]).reshape(
                *states.shape[:2], config.num_heads, config.d_kv
            )
            for part, states in (("query", x), ("key", source), ("value", source))
        )
        logits = np.where(mask, np.einsum("bthk,bshk->bhts", q, k) + bias, -1e10)
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mixed = np.einsum("bhts,bshk->bthk", weights, v).reshape(*x.shape[:2], -1)
        return mixed @ p[f"{name}/out/kernel"][layer]

    def mlp(name, layer, x):
        if config.feed_forward == "relu":
            hidden = np.maximum(x @ p[f"{name}/wi/kernel"][layer], 0)
        else:
            gate = x @ p[f"{name}/wi_0/kernel"][layer]
            gelu = 0.5 * gate * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
            hidden = gelu * (x @ p[f"{name}/wi_1/kernel"][layer])
        return hidden @ p[f"{name}/wo/kernel"][layer]

    def bias(stack, layer, length, one_side):
        distance = np.arange(length)[:, None] - np.arange(length)[None, :]  # query - key
        bucket = np.searchsorted(bucket_starts(one_side, 128), np.abs(distance), "right") - 1
        right = one_side if stack == "encoder" else -bucket
        bucket = np.where(distance < 0, bucket + right, bucket)
        if config.relative_bias_per_layer:
            table = p[f"{stack}/layers/relative_bias/table"][layer]
        else:
            table = p[f"{'encoder' if config.share_layers else stack}/relative_bias/table"]
        return table[bucket].transpose(2, 0, 1)[None]

    inputs, decoder_inputs = np.asarray(inputs), np.asarray(decoder_inputs)
    here, there = (inputs > 0, np.ones_like(decoder_inputs)) if segments is None else segments
    here, there = np.asarray(here), np.asarray(there)
    see = (here[:, None, :] == here[:, :, None]) & (here[:, None, :] > 0)
    see = np.broadcast_to((inputs > 0)[:, None, :], see.shape) if segments is None else see
    causal = np.tril(np.ones((there.shape[1],) * 2, bool)) & (
        there[:, None, :] == there[:, :, None]
    )
    cross = (there[:, :, None] == here[:, None, :]) & (here[:, None, :] > 0)

    x = embedding[inputs]
    for layer in range(config.num_encoder_layers):
        y = norm(x, p["encoder/layers/attention_norm/scale"][layer])
        encoder_bias = bias("encoder", layer, x.shape[1], 16)
        x = x + attention("encoder/layers/attention", layer, y, y, see[:, None], encoder_bias)
        y = norm(x, p["encoder/layers/mlp_norm/scale"][layer])
        x = x + mlp("encoder/layers/mlp", layer, y)
    encoded = norm(x, p["encoder/final_norm/scale"])

    x, name, own, prefix = embedding[decoder_inputs], "decoder/layers", "decoder/layers", "self_"
    if config.share_layers:
        own, prefix = "encoder/layers", ""
    for layer in range(config.num_decoder_layers):
        y = norm(x, p[f"{own}/{prefix}attention_norm/scale"][layer])
        decoder_bias = bias("decoder", layer, x.shape[1], 32)
        x = x + attention(f"{own}/{prefix}attention", layer, y, y, causal[:, None], decoder_bias)
        y = norm(x, p[f"{name}/cross_attention_norm/scale"][layer])
        x = x + attention(f"{name}/cross_attention", layer, y, encoded, cross[:, None], 0.0)
        y = norm(x, p[f"{own}/mlp_norm/scale"][layer])
        x = x + mlp(f"{own}/mlp", layer, y)
    x = norm(x, p[f"{'encoder' if config.share_layers else 'decoder'}/final_norm/scale"])
    if config.tie_embeddings:
        return x @ embedding.T / math.sqrt(config.d_model)
    return x @ p["lm_head/kernel"]


@functools.cache
def compiled(config, method="__call__"):
    """A method of the model under jit, (params, tokens, ...) -> its result; the tests share it."""
    graphdef, _ = filled(config)

    def call(params, *arguments, **options):
        model = bind(graphdef, tied_parameters.read(config.views(), params))
        return getattr(model, method)(*arguments, **options)

    return jax.jit(call)


def forward(config, *tokens, **options):
    """Logits of the model with its random parameters."""
    return compiled(config)(filled(config)[1], *tokens, **options)


@pytest.mark.parametrize("config", FAMILIES.values(), ids=FAMILIES)
def test_logits_equal_a_numpy_t5(config):
    got = forward(config, INPUTS, DECODER_INPUTS)
    assert got.dtype == jnp.float32
    expected = numpy_t5(filled(config)[1], config, INPUTS, DECODER_INPUTS)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_later_targets_do_not_change_earlier_logits():
    plain = np.asarray(forward(T5_1_1, INPUTS, DECODER_INPUTS))
    for position in range(5):
        changed = np.array(DECODER_INPUTS)
        changed[:, position] = 3
        logits = np.asarray(forward(T5_1_1, INPUTS, jnp.asarray(changed)))
        np.testing.assert_array_equal(logits[:, :position], plain[:, :position])
        assert np.all(np.abs(logits - plain)[:, position].max(axis=-1) > 1e-3)


def test_padding_and_other_rows_change_nothing():
    together = forward(T5_1_1, INPUTS, DECODER_INPUTS)
    assert INPUTS.tolist()[1] == [10, 11, 1, 0, 0, 0]
    alone = forward(T5_1_1, INPUTS[1:, :3], DECODER_INPUTS[1:])
    np.testing.assert_allclose(together[1:], alone, rtol=1e-5, atol=1e-5)


# Three examples in the first row, one in the second, two in the third; row lengths 8 and 7.
EXAMPLES = [
    [([5, 6, 1], [7, 1]), ([8, 1], [9, 10, 1]), ([11, 1], [1])],
    [([12, 13, 14, 15, 16, 1], [17, 18, 1])],
    [([2, 3, 4, 1], [5, 6, 1]), ([7, 8, 1], [9, 10, 11, 1])],
]


def pack(rows, *, inputs_length, targets_length):
    """Batches of seqio's features from rows of (inputs, targets), by hand."""
    batch = {}
    for feature, part, length in (("encoder", 0, inputs_length), ("decoder", 1, targets_length)):
        tokens, segments = np.zeros((2, len(rows), length), np.int32)
        shifted = np.zeros_like(tokens)
        for row, examples in enumerate(rows):
            start = 0
            for segment, example in enumerate(examples, 1):
                end = start + len(example[part])
                tokens[row, start:end] = example[part]
                shifted[row, start + 1 : end] = example[part][:-1]
                segments[row, start:end] = segment
                start = end
        batch[f"{feature}_segment_ids"] = jnp.asarray(segments)
        if feature == "encoder":
            batch["encoder_input_tokens"] = jnp.asarray(tokens)
        else:
            batch["decoder_input_tokens"] = jnp.asarray(shifted)
            batch["decoder_target_tokens"] = jnp.asarray(tokens)
    return batch


def token_losses(config, batch):
    """Negative log likelihoods of the targets, in the order of the examples."""
    inputs = {name: array for name, array in batch.items() if name != "decoder_target_tokens"}
    logits = np.asarray(compiled(config)(filled(config)[1], **inputs), np.float64)
    targets = np.asarray(batch["decoder_target_tokens"])
    target_logits = np.take_along_axis(logits, targets[..., None], -1)[..., 0]
    return (np.log(np.exp(logits).sum(-1)) - target_logits)[targets > 0]


def test_packed_losses_equal_separate_losses():
    packed = pack(EXAMPLES, inputs_length=8, targets_length=7)
    assert packed["encoder_segment_ids"].tolist()[0] == [1, 1, 1, 2, 2, 3, 3, 0]
    assert packed["decoder_input_tokens"].tolist()[2] == [0, 5, 6, 0, 9, 10, 11]
    rows = [[example] for examples in EXAMPLES for example in examples]
    alone = pack(rows, inputs_length=6, targets_length=4)
    unpacked = {name: array for name, array in alone.items() if not name.endswith("segment_ids")}
    together, separate = (token_losses(T5_1_1, batch) for batch in (packed, unpacked))
    assert together.shape == (16,)
    np.testing.assert_allclose(together, separate, rtol=1e-5, atol=1e-5)


def test_packed_logits_equal_a_numpy_t5():
    batch = pack(EXAMPLES, inputs_length=8, targets_length=7)
    del batch["decoder_target_tokens"]
    got = compiled(T5_1_1)(filled(T5_1_1)[1], **batch)
    segments = batch["encoder_segment_ids"], batch["decoder_segment_ids"]
    tokens = batch["encoder_input_tokens"], batch["decoder_input_tokens"]
    expected = numpy_t5(filled(T5_1_1)[1], T5_1_1, *tokens, segments)
    real = np.asarray(segments[1]) > 0  # what stands at the padding is of no interest
    np.testing.assert_allclose(np.asarray(got)[real], expected[real], rtol=1e-4, atol=1e-4)


def test_tied_logits_are_the_embedding_over_the_root_of_d_model():
    _, params = filled(T5_1_0)
    got = compiled(T5_1_0, "logits")(params, jnp.ones((1, 1, 8)))
    expected = np.asarray(params["token_embedding"]["table"]).sum(axis=1) / math.sqrt(8)
    np.testing.assert_allclose(got[0, 0], expected, rtol=1e-5, atol=1e-6)
    assert "lm_head" not in params


def test_a_key_turns_dropout_on():
    config = T5_1_1.replace(dropout_rate=0.5)
    keys = [jax.random.key(seed, impl="unsafe_rbg") for seed in (0, 0, 1)]
    first, again, other = (
        np.asarray(forward(config, INPUTS, DECODER_INPUTS, key=key)) for key in keys
    )
    np.testing.assert_array_equal(first, again)
    assert np.all(first != other)


def test_without_a_key_there_is_no_dropout_in_the_program():
    def program(config, **options):
        graphdef, params = filled(config)
        tokens = INPUTS, DECODER_INPUTS

        def call(params):
            return bind(graphdef, params)(*tokens, **options)

        return str(jax.make_jaxpr(call)(params))

    config = T5_1_1.replace(dropout_rate=0.5)
    assert program(config) == program(T5_1_1)
    assert "random_bits" not in program(config)
    assert "random_bits" in program(config, key=jax.random.key(0))


def test_bfloat16_logits_are_float32_and_near():
    low = compiled(T5_1_1)(cast(filled(T5_1_1)[1], jnp.bfloat16), INPUTS, DECODER_INPUTS)
    assert low.dtype == jnp.float32
    expected = np.asarray(forward(T5_1_1, INPUTS, DECODER_INPUTS))
    assert np.sqrt(np.mean((np.asarray(low) - expected) ** 2)) < 0.05 * expected.std()


def parameter_shapes(config):
    return {path: leaf.shape for path, leaf in flatten(filled(config)[1]).items()}


def test_shared_parameters_are_the_encoders_and_the_cross_attention():
    separate, shared = (
        parameter_shapes(SHARED.replace(share_layers=share)) for share in (False, True)
    )
    own = {path for path in separate if "decoder/" in path and "cross_attention" not in path}
    assert shared == {path: shape for path, shape in separate.items() if path not in own}
    # d_model 8, joined heads 6, d_ff 12, 2 layers, a norm for each block.
    block = {"attention": 4 * 8 * 6 + 8, "mlp": 2 * 8 * 12 + 8}
    encoder = 2 * (block["attention"] + block["mlp"]) + 32 * 2 + 8
    expected = 19 * 8 + encoder + 2 * block["attention"]
    assert sum(math.prod(shape) for shape in shared.values()) == expected


def test_a_change_of_what_the_decoder_uses_changes_the_encoder():
    _, params = filled(SHARED)
    encode = compiled(SHARED, "encode")
    for path in ("encoder/layers/mlp/wo/kernel", "encoder/layers/attention/value/kernel"):
        flat = flatten(params)
        changed = unflatten(flat | {path: flat[path] * 2})
        assert np.all(encode(changed, INPUTS)[0] != encode(params, INPUTS)[0])


def test_a_table_for_each_layer():
    paths = parameter_shapes(UMT5)
    assert paths["encoder/layers/relative_bias/table"] == (2, 32, 2)
    assert paths["decoder/layers/relative_bias/table"] == (3, 32, 2)
    assert set(paths) - set(parameter_shapes(T5_1_1)) == {
        "encoder/layers/relative_bias/table",
        "decoder/layers/relative_bias/table",
    }


def test_sharing_needs_stacks_of_one_depth():
    with pytest.raises(InputError, match="as many encoder layers as decoder layers: got 2 and 3"):
        T5_1_1.replace(share_layers=True)


@pytest.mark.slow
def test_initial_parameters():
    config = T5Config(
        vocab_size=300, d_model=64, d_kv=4, d_ff=256, num_heads=32,
        num_encoder_layers=2, num_decoder_layers=2,
    )  # fmt: skip
    key = jax.random.key(0, impl="unsafe_rbg")
    params = jax.jit(lambda key: init(lambda rngs: config.build(rngs=rngs), key))(key)
    flat = {path: np.asarray(leaf) for path, leaf in flatten(params).items()}
    norms = {path for path in flat if path.endswith("scale")}
    assert len(norms) == 7
    assert all(np.all(flat[path] == 1.0) for path in norms)

    # t5x's: queries divided by sqrt(d_kv), tables by the mean of both fans, all else by fan-in.
    into, out = 1 / 64, 1 / (4 * 32)
    expected = {
        "token_embedding/table": 1.0,
        "encoder/relative_bias/table": 1 / 32,
        "decoder/relative_bias/table": 1 / 32,
        "lm_head/kernel": 1 / 64,
    }
    for block in ("encoder/layers/attention", "decoder/layers/self_attention",
                  "decoder/layers/cross_attention"):  # fmt: skip
        expected |= {f"{block}/query/kernel": into / 4, f"{block}/key/kernel": into}
        expected |= {f"{block}/value/kernel": into, f"{block}/out/kernel": out}
    for stack in ("encoder", "decoder"):
        expected |= {f"{stack}/layers/mlp/{name}/kernel": 1 / 64 for name in ("wi_0", "wi_1")}
        expected |= {f"{stack}/layers/mlp/wo/kernel": 1 / 256}
    variances = {path: float(np.var(flat[path])) for path in flat if path not in norms}
    assert variances == pytest.approx(expected, rel=0.1)

    # Truncated at two standard deviations of the normal that was cut: the feed-forward and output
    # kernels; the others are not.
    cut = {
        path
        for path, variance in expected.items()
        if np.max(np.abs(flat[path])) <= 2 / 0.8796 * math.sqrt(variance)
    }
    assert cut == {
        *(path for path in expected if "/mlp/" in path),
        "lm_head/kernel",
        "encoder/relative_bias/table",  # uniform
        "decoder/relative_bias/table",
    }


def test_layer_has_the_sizes_of_the_model():
    assert dataclasses.asdict(T5_1_1.layer) == {
        "d_model": 8,
        "d_kv": 3,
        "d_ff": 12,
        "num_heads": 2,
        "feed_forward": "gated-gelu",
        "dropout_rate": 0.0,
        "norm_epsilon": 1e-6,
        "relative_buckets": 32,
        "relative_max_distance": 128,
        "relative_bias_per_layer": False,
    }


@pytest.mark.parametrize(
    "name",
    ["vocab_size", "d_model", "d_kv", "d_ff", "num_heads", "num_encoder_layers",
     "num_decoder_layers", "unroll", "attention_block"],
)  # fmt: skip
def test_sizes_below_1(name):
    with pytest.raises(InputError, match=f"model.{name} must be at least 1: got 0"):
        T5_1_1.replace(**{name: 0})


@pytest.mark.parametrize("rate", [-0.1, 1.0])
def test_dropout_rates_outside_their_range(rate):
    with pytest.raises(InputError, match=r"model.dropout_rate must be in \[0, 1\)"):
        T5_1_1.replace(dropout_rate=rate)


def test_cudnn_takes_some_heads_on_some_devices():
    with pytest.raises(InputError, match="at most 256, but d_kv is 12"):
        T5_1_1.replace(attention="cudnn", d_kv=12)
    fused = T5_1_1.replace(attention="cudnn", d_kv=8)
    fused.check_devices("NVIDIA H100 80GB HBM3", dtype="bfloat16")
    with pytest.raises(InputError, match="needs NVIDIA GPUs, but the devices are of the kind 'cpu"):
        fused.check_devices("cpu", dtype="bfloat16")
    T5_1_1.check_devices("cpu", dtype="float32")


def test_how_a_stack_is_run():
    undecided = Running(unroll=1, remat="none", attention_block=None, attention_fused=True)
    assert T5_1_1.running == undecided
    other = T5_1_1.replace(unroll=2, remat="dots", attention="blocked", attention_block=8)
    assert other.running == Running(unroll=2, remat="dots", attention_block=8)
    assert T5_1_1.replace(attention_block=8).running.attention_block is None
    kernel = T5_1_1.replace(attention="pallas", attention_block=256)
    assert kernel.running == Running(attention_block=256, attention_kernel=True)
    assert T5_1_1.replace(attention="cudnn", d_kv=8).running == Running(attention_fused=True)


def test_an_unknown_policy_is_refused_with_the_nearest():
    with pytest.raises(InputError, match=r"model.remat must be .* got 'ful'; did you mean full"):
        T5_1_1.replace(remat="ful")


def test_a_model_is_fine_tuned_with_dropout_as_the_devices_like_it():
    sizes = {"vocab_size": 8, "d_model": 4, "d_kv": 8, "d_ff": 4, "num_heads": 2}
    pretrained = T5Config(num_encoder_layers=2, num_decoder_layers=2, dropout_rate=0.0, **sizes)
    running = {"attention": "auto", "unroll": "auto"}
    assert pretrained.to_finetune() == pretrained.replace(dropout_rate=0.1, **running)
    on_a_gpu = pretrained.replace(dropout_rate=0.2, attention="cudnn", one_text_rows=True)
    assert on_a_gpu.to_finetune() == pretrained.replace(dropout_rate=0.2, **running)
