"""Incremental decoding of every T5 equals its whole forward pass."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.core import tied_parameters
from t5x_lite.models.t5 import T5Config
from t5x_lite.nn.slots import bind, cast, shapes

T5_1_1 = T5Config(
    vocab_size=19,
    d_model=8,
    d_kv=3,
    d_ff=12,
    num_heads=2,
    num_encoder_layers=2,
    num_decoder_layers=2,
    dropout_rate=0.0,
)
VARIANTS = {
    "1.1": T5_1_1,
    "shared 1.0": T5_1_1.replace(share_layers=True, feed_forward="relu", tie_embeddings=True),
    "umT5": T5_1_1.replace(relative_bias_per_layer=True),
}

# Two inputs, and prompts of three tokens, of one, of none.
INPUTS = jnp.array([[5, 6, 7, 8, 9, 1], [10, 11, 1, 0, 0, 0], [3, 1, 0, 0, 0, 0]])
PROMPTS = jnp.array([[12, 13, 14], [15, 0, 0], [0, 0, 0]])
HISTORIES = [[12, 13, 14], [15], []]
ROWS = 3
STRAIGHT = 2  # layers; not True, which is equal to 1 where configs are compared

# What each of the three rows of each input is fed, and which row it goes on from afterwards.
STEPS = [
    ([4, 5, 6, 7, 8, 9, 10, 11, 12], [1, 0, 0, 3, 4, 5, 8, 8, 8]),
    ([13, 14, 15, 16, 17, 18, 2, 3, 4], [2, 2, 1, 4, 4, 3, 6, 8, 7]),
    ([5, 5, 6, 6, 7, 7, 8, 8, 9], [0, 1, 2, 5, 3, 4, 7, 6, 6]),
    ([1, 2, 3, 4, 5, 6, 7, 8, 9], [0, 1, 2, 3, 4, 5, 6, 7, 8]),
]


@functools.cache
def filled(config):
    """The model's structure and random parameters, made by NumPy: nothing is compiled."""
    graphdef, abstract, _ = shapes(lambda rngs: config.build(rngs=rngs))
    rng = np.random.default_rng(0)

    def fill(leaf):
        scale = leaf.shape[-2] ** -0.5 if len(leaf.shape) > 1 else 1.0
        return jnp.asarray(rng.normal(size=leaf.shape, scale=scale).astype(np.float32))

    params = jax.tree.map(fill, abstract)
    return graphdef, tied_parameters.read(
        config.views(), tied_parameters.write(config.views(), params)
    )


@functools.cache
def whole_logits(config):
    """Logits of the first new token, and after each step of each row, from whole targets."""
    inputs, targets, rows = [], [], []
    histories = [history for history in HISTORIES for _ in range(ROWS)]

    def note():
        for row, history in enumerate(histories):
            inputs.append(INPUTS[row // ROWS])
            targets.append(history + [0] * (8 - len(history)))
            rows.append(len(history))

    note()
    for tokens, origins in STEPS:
        histories = [[*history, token] for history, token in zip(histories, tokens, strict=True)]
        note()
        histories = [histories[origin] for origin in origins]
    graphdef, params = filled(config)
    logits = jax.jit(lambda params, *rows: bind(graphdef, params).target_logits(*rows))(
        params, jnp.stack(inputs), jnp.array(targets)
    )
    logits = np.asarray(logits)[np.arange(len(rows)), rows]
    return logits.reshape(1 + len(STEPS), len(HISTORIES) * ROWS, -1)


def decoded_logits(config, params, *, prepare=False):
    """The same by prefill, repeat, step and select."""
    graphdef, _ = filled(config)

    @jax.jit
    def run(params):
        model = bind(graphdef, params)
        model = model.prepared() if prepare else model
        first, cache = model.prefill(INPUTS, max_length=5, prompt=PROMPTS)
        cache = model.repeat(cache, ROWS)
        logits = [jnp.repeat(first, ROWS, axis=0)]
        for tokens, origins in STEPS:
            after, cache = model.step(jnp.array(tokens), cache)
            logits.append(after)
            cache = model.select(cache, jnp.array(origins))
        return jnp.stack(logits)

    return run(params)


@pytest.mark.gate("shared 1.0-prepared", "umT5-scanned")
@pytest.mark.parametrize("prepare", [False, True], ids=["scanned", "prepared"])
@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.slow
def test_decoding_equals_the_whole_forward_pass(config, prepare):
    params = filled(config)[1]
    config_run = config.replace(unroll=STRAIGHT) if prepare else config
    got = decoded_logits(config_run, params, prepare=prepare)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, whole_logits(config), rtol=1e-5, atol=1e-5)


def test_products_are_joined_on_one_device_and_nothing_is_where_layers_are_scanned(monkeypatch):
    def prepared(config):
        graphdef, params = filled(config)
        model = jax.eval_shape(lambda params: bind(graphdef, params).prepared(), params)
        paths = jax.tree_util.tree_flatten_with_path(model.params)[0]
        return {jax.tree_util.keystr(path, simple=True, separator="/"): x for path, x in paths}

    scanned, straight = T5_1_1, T5_1_1.replace(unroll=STRAIGHT)
    assert prepared(scanned)["decoder/layers/mlp/wi_0/kernel"].shape == (2, 8, 12)
    joined = prepared(straight)
    assert joined["decoder/layers/1/self_attention/joint/kernel"].shape == (18, 8)
    assert joined["decoder/layers/1/mlp/joint/kernel"].shape == (24, 8)
    assert joined["joint_output/kernel"].shape == (19, 8)
    assert not any(path.startswith("lm_head") for path in joined)
    mesh = jax.sharding.AbstractMesh((2,), ("tensor",))
    monkeypatch.setattr(jax.sharding, "get_abstract_mesh", lambda: mesh)
    apart = prepared(straight)
    assert apart["decoder/layers/1/mlp/wi_0/kernel"].shape == (8, 12)
    assert "lm_head/kernel" in apart


@pytest.mark.slow
def test_bfloat16_decoding_is_near():
    config = T5_1_1.replace(unroll=STRAIGHT)
    low = decoded_logits(config, cast(filled(config)[1], jnp.bfloat16), prepare=True)
    assert low.dtype == jnp.float32
    expected = whole_logits(T5_1_1)
    assert np.sqrt(np.mean((np.asarray(low) - expected) ** 2)) < 0.05 * expected.std()


@pytest.mark.slow
def test_without_a_prompt():
    config = T5_1_1
    graphdef, params = filled(config)

    @jax.jit
    def run(params):
        model = bind(graphdef, params)
        first, cache = model.prefill(INPUTS, max_length=2)
        second, _ = model.step(jnp.array([7, 8, 9]), cache)
        whole = model.target_logits(INPUTS, jnp.array([[7, 0], [8, 0], [9, 0]]))
        return jnp.stack([first, second], axis=1), whole

    np.testing.assert_allclose(*run(params), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_prepared_decoding_moves_neither_keys_nor_weights():
    """In a loop XLA writes new keys in place, and takes no slices of stacked weights."""
    config = T5_1_1.replace(unroll=True, num_heads=5)
    graphdef, params = filled(config)

    def run(params):
        model = bind(graphdef, params).prepared()
        logits, cache = model.prefill(INPUTS, max_length=7)

        def body(state):
            step, tokens, cache = state
            logits, cache = model.step(tokens, cache)
            return step + 1, jnp.argmax(logits, axis=-1), cache

        state = 0, jnp.argmax(logits, axis=-1), cache
        return jax.lax.while_loop(lambda state: state[0] < 6, body, state)[1]

    text = jax.jit(run).lower(params).compile().as_text()
    assert text is not None
    heads_and_bodies = re.findall(r"^(\S.*)\{\n((?: .*\n)+)", text, flags=re.MULTILINE)
    [loop] = [
        body
        for head, body in heads_and_bodies
        if "f32[3,5,7,3]" in head
        and "f32[3,5,3,7]" in head
        and "dynamic-update-slice" in body
        and not head.startswith(("ENTRY", "%fused"))
    ]
    # Keys and values of two layers, and kernels of 45 x 8, 15 x 8, 8 x 15, 24 x 8 and 8 x 12.
    shapes_moved = "3,5,7,3|3,5,3,7|45,8|15,8|8,15|24,8|8,12"
    shape = rf"= f32\[({shapes_moved})\]\S* (copy|fusion|slice|dynamic-slice)\("
    moved = [line for line in loop.splitlines() if re.search(shape, line)]
    assert len(moved) == 4, moved
    assert all("dynamic-update-slice" in line.split("=")[0] for line in moved)
