"""The decoder-only model as a whole; its layers are tested in tests/nn."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import flatten, unflatten
from t5x_lite.decoding.generate import decode
from t5x_lite.decoding.sampling import Decoding
from t5x_lite.models.lm import LMConfig
from t5x_lite.nn.attention_pattern import bucket_starts
from t5x_lite.nn.slots import bind, shapes

CAUSAL = LMConfig(
    vocab_size=19, d_model=8, d_kv=3, d_ff=12, num_heads=2, num_layers=2, dropout_rate=0.0
)
PREFIX = CAUSAL.replace(prefix=True)
PAPER = PREFIX.replace(prefix_buckets="bidirectional")
BOTH = pytest.mark.parametrize("config", [CAUSAL, PREFIX], ids=["causal", "prefix"])
ALL = pytest.mark.parametrize("config", [CAUSAL, PREFIX, PAPER], ids=["causal", "prefix", "paper"])

# (inputs, targets), each with its EOS; the inputs' lengths differ, and one has none.
EXAMPLES = [
    ([5, 6, 7, 8, 1], [9, 10, 1]),
    ([11, 1], [12, 13, 14, 1]),
    ([], [15, 16, 1]),
    ([17, 18, 2, 1], [3, 1]),
]


def rows(*packs, length):
    """Batches of seqio's PrefixLMFeatureConverter, from the examples of each row, by hand."""
    names = ("input_tokens", "target_tokens", "segment_ids", "causal_attention", "loss_weights")
    batch = {name: np.zeros((len(packs), length), np.int32) for name in names}
    for row, examples in enumerate(packs):
        start = 0
        for segment, (inputs, targets) in enumerate(examples, 1):
            text = [*inputs, *targets]
            end = start + len(text)
            batch["target_tokens"][row, start:end] = text
            batch["input_tokens"][row, start + 1 : end] = text[:-1]
            batch["segment_ids"][row, start:end] = segment
            batch["causal_attention"][row, start : start + len(inputs) + 1] = 1
            batch["loss_weights"][row, start + len(inputs) : end] = 1
            start = end
    return {f"decoder_{name}": jnp.asarray(array) for name, array in batch.items()}


PACKED = rows(EXAMPLES[:2], EXAMPLES[2:], length=15)
SEPARATE = rows(*([example] for example in EXAMPLES), length=9)


def padded(sequences, length):
    return jnp.asarray([[*s, *[0] * (length - len(s))] for s in sequences], jnp.int32)


INPUTS = padded([inputs for inputs, _ in EXAMPLES], 6)
TARGETS = padded([targets for _, targets in EXAMPLES], 4)


def test_the_rows_are_those_of_seqio():
    assert {name: array[0].tolist() for name, array in PACKED.items()} == {
        "decoder_target_tokens": [5, 6, 7, 8, 1, 9, 10, 1, 11, 1, 12, 13, 14, 1, 0],
        "decoder_input_tokens": [0, 5, 6, 7, 8, 1, 9, 10, 0, 11, 1, 12, 13, 14, 0],
        "decoder_loss_weights": [0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 1, 1, 1, 1, 0],
        "decoder_causal_attention": [1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1, 0, 0, 0, 0],
        "decoder_segment_ids": [1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 0],
    }


@functools.cache
def filled(config):
    """The model's structure and random parameters, made by NumPy: nothing is compiled."""
    graphdef, abstract, _ = shapes(lambda rngs: config.build(rngs=rngs))
    rng = np.random.default_rng(0)

    def fill(path, shape):
        if path.endswith("scale"):
            return rng.uniform(0.5, 1.5, size=shape)
        return rng.normal(size=shape, scale=1.0 if path.endswith("table") else shape[-2] ** -0.5)

    leaves = flatten(abstract).items()
    return graphdef, unflatten({p: jnp.asarray(fill(p, x.shape), jnp.float32) for p, x in leaves})


@functools.cache
def compiled(config, method="__call__"):
    graphdef, _ = filled(config)

    def call(params, *arguments, **options):
        return getattr(bind(graphdef, params), method)(*arguments, **options)

    return jax.jit(call, static_argnames=("max_length", "num"))


def apply(config, method, *arguments, **options):
    """A method of the model with its random parameters."""
    return compiled(config, method)(filled(config)[1], *arguments, **options)


def forward(config, batch, *, packed=True):
    """Logits of a batch, as NumPy."""
    given = ["decoder_causal_attention", *(["decoder_segment_ids"] if packed else [])]
    options = {name: batch[name] for name in given}
    return np.asarray(apply(config, "__call__", batch["decoder_input_tokens"], **options))


def numpy_lm(params, config, tokens, mask):
    """Logits of one row in NumPy's float64, written after the paper alone."""
    p = {path: np.asarray(leaf, np.float64) for path, leaf in flatten(params).items()}
    embedding, length = p["token_embedding/table"], len(tokens)

    def norm(x, scale):
        return x / np.sqrt(np.mean(x**2, -1, keepdims=True) + 1e-6) * scale

    distance = np.arange(length)[:, None] - np.arange(length)[None, :]  # query - key
    if config.prefix_buckets == "causal":
        bucket = np.searchsorted(bucket_starts(32, 128), np.maximum(distance, 0), "right") - 1
    else:  # 0 to 15 for keys to the left, 16 to 31 for keys to the right
        bucket = np.searchsorted(bucket_starts(16, 128), np.abs(distance), "right") - 1
        bucket = np.where(distance < 0, bucket + 16, bucket)
    bias = p["decoder/relative_bias/table"][bucket].transpose(2, 0, 1)
    x = embedding[np.asarray(tokens)]
    for layer in range(config.num_layers):

        def kernel(name, layer=layer):
            return p[f"decoder/layers/{name}/kernel"][layer]

        y = norm(x, p["decoder/layers/self_attention_norm/scale"][layer])
        q, k, v = (
            (y @ kernel(f"self_attention/{part}")).reshape(length, config.num_heads, config.d_kv)
            for part in ("query", "key", "value")
        )
        logits = np.where(mask, np.einsum("thk,shk->hts", q, k) + bias, -1e10)
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        mixed = np.einsum("hts,shk->thk", weights, v).reshape(length, -1)
        x = x + mixed @ kernel("self_attention/out")
        y = norm(x, p["decoder/layers/mlp_norm/scale"][layer])
        gate = y @ kernel("mlp/wi_0")
        gelu = 0.5 * gate * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
        x = x + (gelu * (y @ kernel("mlp/wi_1"))) @ kernel("mlp/wo")
    return norm(x, p["decoder/final_norm/scale"]) @ embedding.T / math.sqrt(config.d_model)


@ALL
def test_packed_logits_equal_a_numpy_lm(config):
    logits = forward(config, PACKED)
    assert logits.dtype == np.float32
    features = ("input_tokens", "segment_ids", "causal_attention")
    for row in range(2):
        tokens, segments, prefix = (np.asarray(PACKED[f"decoder_{f}"])[row] for f in features)
        both = (prefix[:, None] & prefix[None, :]) > 0
        order = np.tril(np.ones((15, 15), bool)) | (both if config.prefix else False)
        mask = order & (segments[:, None] == segments[None, :])
        expected = numpy_lm(filled(config)[1], config, tokens, mask)
        real = segments > 0
        np.testing.assert_allclose(logits[row][real], expected[real], rtol=1e-4, atol=1e-4)


def seen(config):
    """[T, T]: whether a change of the second position's token moves the first one's logits."""
    plain = forward(config, PACKED)[:1]
    result = np.zeros((14, 14), int)
    for position in range(14):
        tokens = np.array(PACKED["decoder_input_tokens"])
        tokens[0, position] = 4
        changed = forward(config, {**PACKED, "decoder_input_tokens": jnp.asarray(tokens)})[:1]
        result[:, position] = np.abs(changed - plain)[0, :14].max(axis=-1) > 1e-6
    return ["".join(map(str, row)) for row in result]


def test_a_causal_model_sees_what_is_before_in_its_own_segment():
    first = ["1" * n + "0" * (14 - n) for n in range(1, 9)]
    second = ["0" * 8 + "1" * n + "0" * (6 - n) for n in range(1, 7)]
    assert seen(CAUSAL) == first + second


def test_a_prefix_model_sees_its_inputs_both_ways_in_their_own_segment():
    assert seen(PREFIX) == [
        "11111100000000",
        "11111100000000",
        "11111100000000",
        "11111100000000",
        "11111100000000",
        "11111100000000",
        "11111110000000",
        "11111111000000",
        "00000000111000",
        "00000000111000",
        "00000000111000",
        "00000000111100",
        "00000000111110",
        "00000000111111",
    ]


def token_losses(config, batch, *, packed):
    """Negative log likelihoods of the targets of weight 1, in the order of the examples."""
    logits = forward(config, batch, packed=packed).astype(np.float64)
    targets = np.asarray(batch["decoder_target_tokens"])
    target_logits = np.take_along_axis(logits, targets[..., None], -1)[..., 0]
    losses = np.log(np.exp(logits).sum(-1)) - target_logits
    return losses[np.asarray(batch["decoder_loss_weights"]) > 0]


@BOTH
def test_packed_losses_equal_separate_losses(config):
    together = token_losses(config, PACKED, packed=True)
    separate = token_losses(config, SEPARATE, packed=False)
    assert together.shape == (12,)
    np.testing.assert_allclose(together, separate, rtol=1e-5, atol=1e-5)


def expected_logits(config):
    """The logits of each example's targets, from whole rows: [4, T, V] as long as the targets."""
    logits = forward(config, SEPARATE, packed=False)
    return [
        logits[row, len(inputs) : len(inputs) + len(targets)]
        for row, (inputs, targets) in enumerate(EXAMPLES)
    ]


@BOTH
def test_target_logits_are_those_of_whole_rows(config):
    got = apply(config, "target_logits", INPUTS, TARGETS)
    assert got.shape == (4, 4, 19)
    for row, expected in enumerate(expected_logits(config)):
        np.testing.assert_allclose(got[row, : len(expected)], expected, rtol=1e-5, atol=1e-5)


@ALL
@pytest.mark.slow
def test_cached_steps_equal_whole_rows(config):
    expected = expected_logits(config)
    logits, cache = apply(config, "prefill", INPUTS, max_length=5)
    assert logits.dtype == jnp.float32
    for step in range(4):
        for row in range(4):
            if step < len(expected[row]):
                np.testing.assert_allclose(logits[row], expected[row][step], rtol=1e-5, atol=1e-5)
        logits, cache = apply(config, "step", TARGETS[:, step], cache)


@BOTH
def test_a_prompt_is_the_targets_beginning(config):
    lengths = [2, 3, 1, 0]
    prompt = jnp.where(jnp.arange(3) < jnp.asarray(lengths)[:, None], TARGETS[:, :3], 0)
    logits, cache = apply(config, "prefill", INPUTS, max_length=2, prompt=prompt)
    after, _ = apply(config, "step", TARGETS[jnp.arange(4), jnp.asarray(lengths)], cache)
    for row, expected in enumerate(expected_logits(config)):
        here = lengths[row]
        np.testing.assert_allclose(logits[row], expected[here], rtol=1e-5, atol=1e-5)
        if here + 1 < len(expected):
            np.testing.assert_allclose(after[row], expected[here + 1], rtol=1e-5, atol=1e-5)


@BOTH
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.slow
def test_prepared_is_the_same(config, tied):
    config = config.replace(unroll=2, tie_embeddings=tied)  # True would be equal to 1
    graphdef, params = filled(config)

    @jax.jit
    def both(params):
        results = []
        for model in (bind(graphdef, params), bind(graphdef, params).prepared()):
            first, cache = model.prefill(INPUTS, max_length=3, prompt=TARGETS[:, :2])
            second, cache = model.step(TARGETS[:, 2], cache)
            third, _ = model.step(TARGETS[:, 3], cache)
            results.append(jnp.stack([first, second, third]))
        return results

    np.testing.assert_allclose(*both(params), rtol=1e-5, atol=1e-5)


def test_rows_are_repeated_and_selected():
    inputs, told = INPUTS[:2], [[9, 10], [3, 4], [12, 13], [5, 6]]  # two rows for each input
    _, cache = apply(PREFIX, "prefill", inputs, max_length=3)
    cache = apply(PREFIX, "repeat", cache, num=2)
    _, cache = apply(PREFIX, "step", jnp.asarray([row[0] for row in told]), cache)
    cache = apply(PREFIX, "select", cache, jnp.asarray([1, 1, 3, 2]))
    logits, _ = apply(PREFIX, "step", jnp.asarray([7, 8, 2, 2]), cache)
    pasts = padded([[3, 7, 1], [3, 8, 1], [5, 2, 1], [12, 2, 1]], 3)
    expected = apply(PREFIX, "target_logits", jnp.repeat(inputs, 2, axis=0), pasts)[:, 2]
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)


@BOTH
@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.gate("3-causal", "3-prefix")
@pytest.mark.slow
def test_scores_of_a_search_are_those_of_its_tokens(config, num_beams):
    graphdef, params = filled(config)
    penalty = None if num_beams == 1 else 0.0  # of a beam: its score is the log probability alone
    decoding = Decoding(num_beams=num_beams, max_decode_length=5, length_penalty=penalty)
    prompt = TARGETS[:, :1]

    @jax.jit
    def search(params):
        model = bind(graphdef, params)
        tokens, scores = decode(model, INPUTS, prompt=prompt, decoding=decoding)
        targets = jnp.concatenate([prompt, tokens[:, 0]], axis=1)
        logits = model.target_logits(INPUTS, targets)[:, 1:]
        return tokens[:, 0], scores[:, 0], jax.nn.log_softmax(logits)

    tokens, scores, log_p = search(params)
    chosen = jnp.take_along_axis(log_p, tokens[..., None], axis=-1)[..., 0]
    expected = jnp.sum(jnp.where(tokens > 0, chosen, 0.0), axis=1)
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)
    if num_beams == 1:
        assert np.all((tokens == 0) | (tokens == jnp.argmax(log_p, axis=-1)))


def test_rows_that_only_fill_a_batch_are_finite():
    nothing = jnp.zeros_like(INPUTS)
    logits, cache = apply(PREFIX, "prefill", nothing, max_length=5)
    after, _ = apply(PREFIX, "step", TARGETS[:, 0], cache)
    scores = apply(PREFIX, "target_logits", nothing, jnp.zeros_like(TARGETS))
    assert all(np.all(np.isfinite(array)) for array in (logits, after, scores))


def test_a_prefix_model_must_be_told_where_the_inputs_are():
    graphdef, params = filled(PREFIX)
    with pytest.raises(InputError, match=r"set data\.layout to prefix_lm, or model\.prefix to Fal"):
        jax.eval_shape(lambda p: bind(graphdef, p)(PACKED["decoder_input_tokens"]), params)


def test_both_kinds_have_the_same_parameters_and_no_cross_attention():
    _, params, axes = shapes(lambda rngs: PREFIX.build(rngs=rngs))
    shapes_of = {path: leaf.shape for path, leaf in flatten(params).items()}
    assert shapes_of == {p: leaf.shape for p, leaf in flatten(filled(CAUSAL)[1]).items()}
    assert sorted(shapes_of) == [
        "decoder/final_norm/scale",
        "decoder/layers/mlp/wi_0/kernel",
        "decoder/layers/mlp/wi_1/kernel",
        "decoder/layers/mlp/wo/kernel",
        "decoder/layers/mlp_norm/scale",
        "decoder/layers/self_attention/key/kernel",
        "decoder/layers/self_attention/out/kernel",
        "decoder/layers/self_attention/query/kernel",
        "decoder/layers/self_attention/value/kernel",
        "decoder/layers/self_attention_norm/scale",
        "decoder/relative_bias/table",
        "token_embedding/table",
    ]
    assert axes["token_embedding"]["table"] == ("vocab", "embed")


def test_an_output_layer_of_its_own_and_a_bias_for_each_layer():
    config = CAUSAL.replace(tie_embeddings=False, relative_bias_per_layer=True, num_layers=3)
    _, params, axes = shapes(lambda rngs: config.build(rngs=rngs))
    assert params["lm_head"]["kernel"].shape == (8, 19)
    assert axes["lm_head"]["kernel"] == ("embed", "vocab")
    assert params["decoder"]["layers"]["relative_bias"]["table"].shape == (3, 32, 2)
    assert "relative_bias" not in params["decoder"]


def test_a_key_turns_dropout_on():
    config = CAUSAL.replace(dropout_rate=0.5)
    graphdef, params = filled(config)

    def program(**options):
        def call(params):
            return bind(graphdef, params)(SEPARATE["decoder_input_tokens"], **options)

        return str(jax.make_jaxpr(call)(params))

    assert "random_bits" not in program()
    assert "random_bits" in program(key=jax.random.key(0))


@pytest.mark.parametrize("name", ["vocab_size", "d_model", "num_heads", "num_layers"])
def test_sizes_below_1(name):
    with pytest.raises(InputError, match=f"model.{name} must be at least 1: got 0"):
        CAUSAL.replace(**{name: 0})
