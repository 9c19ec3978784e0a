import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.models.encoder import BertConfig
from t5x_lite.nn.attention_pattern import Pattern
from t5x_lite.nn.layers import PostNormLayer
from t5x_lite.nn.slots import bind, cast, shapes

CONFIG = BertConfig(
    vocab_size=13,
    d_model=8,
    d_ff=12,
    num_heads=2,
    num_layers=3,
    max_positions=9,
    token_types=2,
    norm_epsilon=1e-5,
)
TOKENS = jnp.array([[2, 5, 6, 7, 3], [2, 8, 3, 0, 0]])
PACKED = {
    "tokens": jnp.array([[2, 5, 6, 7, 3, 2, 8, 3, 0]]),
    "segment_ids": jnp.array([[1, 1, 1, 1, 1, 2, 2, 2, 0]]),
    "positions": jnp.array([[0, 1, 2, 3, 4, 0, 1, 2, 0]]),
}
KINDS = {
    "bert": CONFIG,
    "roberta": CONFIG.replace(position_offset=2, token_types=1),
    "electra": CONFIG.replace(embedding_size=4),
    "relative_bias": CONFIG.replace(positions="relative_bias", relative_max_distance=20),
}


@functools.cache
def parts(config):
    graphdef, abstract, _ = shapes(lambda rngs: config.build(rngs=rngs))
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(size=leaf.shape, scale=0.6).astype(np.float32)),
        abstract,
    )
    return graphdef, params


def run(config, tokens, *, params=None, **options):
    graphdef, own = parts(config)
    call = jax.jit(lambda params, tokens, options: bind(graphdef, params)(tokens, **options))
    return np.asarray(call(own if params is None else params, tokens, options), np.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_packed_documents_have_the_states_of_separate_rows(kind):
    separate = run(KINDS[kind], TOKENS)
    packed = dict(PACKED)
    whole = run(KINDS[kind], packed.pop("tokens"), **packed)
    np.testing.assert_allclose(whole[0, :5], separate[0], atol=1e-5)
    np.testing.assert_allclose(whole[0, 5:8], separate[1, :3], atol=1e-5)
    assert np.isfinite(whole).all()


def test_positions_follow_from_segment_ids():
    packed = dict(PACKED)
    del packed["positions"]
    found = run(CONFIG, packed.pop("tokens"), **packed)
    both = dict(PACKED)
    np.testing.assert_array_equal(found[:, :8], run(CONFIG, both.pop("tokens"), **both)[:, :8])


def test_padding_changes_nothing():
    short = run(CONFIG, TOKENS[1:, :3])
    np.testing.assert_allclose(run(CONFIG, TOKENS)[1:, :3], short, atol=1e-5)
    rows = jnp.array([[1, 1, 1, 0, 0]])
    by_segment = run(CONFIG, jnp.array([[2, 8, 3, 9, 9]]), segment_ids=rows)
    np.testing.assert_allclose(by_segment[:, :3], short, atol=1e-5)
    assert np.isfinite(run(CONFIG, jnp.zeros((1, 3), jnp.int32))).all()


@pytest.mark.slow
def test_scanned_unrolled_and_rematerialised_are_one_function():
    graphdef, params = parts(CONFIG)

    def gradient(graphdef):
        def loss(params):
            return jnp.sum(bind(graphdef, params)(TOKENS)[..., 0] ** 2)

        return jax.jit(jax.value_and_grad(loss))(params)

    expected, expected_gradient = gradient(graphdef)
    for changes in ({"unroll": True}, {"remat": "full"}):
        found, found_gradient = gradient(parts(CONFIG.replace(**changes))[0])
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
            found_gradient,
            expected_gradient,
        )


@pytest.mark.gate("learned-True-2")
@pytest.mark.parametrize(
    ("positions", "share", "block"),
    [("learned", True, 2), ("relative_bias", True, 2), ("learned", False, 2)],
)
@pytest.mark.slow
def test_blocked_attention_is_the_same_function(positions, share, block):
    config = CONFIG.replace(positions=positions, attention_dropout_rate=0.3, dropout_rate=0.1)
    config = config.replace(share_attention_dropout=share)
    graphdef, params = parts(config)
    if not share:  # plain attention has other draws, and blocks do not change them
        graphdef, _ = parts(config.replace(attention="blocked", attention_block=100))
    blocked, _ = parts(config.replace(attention="blocked", attention_block=block))
    rows = {name: value for name, value in PACKED.items() if name != "tokens"}

    @jax.jit
    def both(params):
        def gradient(graphdef):
            def loss(params):
                states = bind(graphdef, params)(PACKED["tokens"], **rows, key=jax.random.key(1))
                return jnp.sum(states[:, :3, 0] ** 2), states

            (_, states), gradients = jax.value_and_grad(loss, has_aux=True)(params)
            return states, gradients

        return gradient(blocked), gradient(graphdef)

    (ours, our_gradient), (expected, expected_gradient) = both(params)
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        our_gradient,
        expected_gradient,
    )


def test_the_stack_is_its_layers_one_after_another():
    graphdef, params = parts(CONFIG)
    layer, _, _ = shapes(lambda rngs: PostNormLayer(CONFIG.layer, rngs=rngs))

    @jax.jit
    def call(params):
        model = bind(graphdef, params)
        x, mask = model.start(TOKENS)
        for i in range(CONFIG.num_layers):
            one = jax.tree.map(lambda leaf, i=i: leaf[i], params["layers"])
            x = bind(layer, one)(x, pattern=Pattern(mask.dense(5)))
        return x

    np.testing.assert_allclose(call(params), run(CONFIG, TOKENS), atol=1e-5)


def test_relative_bias_tells_order_apart():
    shuffled = TOKENS[:1][:, jnp.array([0, 2, 1, 3, 4])]
    config = KINDS["relative_bias"]
    graphdef, params = parts(config)
    assert "position" not in params["embedding"]
    assert set(bind(graphdef, params).tables()) == {"token"}
    table = params["relative_bias"]["table"]
    steep = {**params, "relative_bias": {"table": 10 * table}}
    first, second = (run(config, t, params=steep)[0, 0] for t in (TOKENS[:1], shuffled))
    assert abs(first - second).max() > 1e-3
    flat = {**params, "relative_bias": {"table": 0 * table}}
    np.testing.assert_allclose(
        run(config, TOKENS[:1], params=flat)[0, 0],
        run(config, shuffled, params=flat)[0, 0],
        atol=1e-5,
    )


def test_token_types_are_read():
    types = jnp.array([[0, 0, 1, 1, 1], [0, 0, 0, 0, 0]])
    plain, typed = run(CONFIG, TOKENS), run(CONFIG, TOKENS, token_types=types)
    assert abs(plain[0] - typed[0]).max() > 1e-3
    np.testing.assert_allclose(plain[1, :3], typed[1, :3], atol=1e-5)


@pytest.mark.slow
def test_the_other_names_of_the_call():
    graphdef, params = parts(CONFIG)

    @jax.jit
    def call(params):
        model = bind(graphdef, params)
        return model(TOKENS), model.encode(TOKENS), model.masked_lm_states(TOKENS)

    states, *others = call(params)
    for other in others:
        np.testing.assert_array_equal(states, other)


def test_a_key_turns_dropout_on():
    key = jax.random.key(3, impl="unsafe_rbg")
    dropped = run(CONFIG, TOKENS, key=key)
    np.testing.assert_array_equal(dropped, run(CONFIG, TOKENS, key=key))
    assert abs(dropped - run(CONFIG, TOKENS)).max() > 1e-2


def test_bfloat16_stays_near_float32():
    low = run(CONFIG, TOKENS, params=cast(parts(CONFIG)[1], jnp.bfloat16))
    difference = (low - run(CONFIG, TOKENS))[0]
    assert np.sqrt((difference**2).mean()) < 0.05


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"position_offset": 9}, "model.position_offset must be in"),
        ({"relative_buckets": 3}, "model.relative_buckets must be at least 4"),
        ({"relative_max_distance": 16}, "model.relative_max_distance above"),
    ],
)
def test_refuses(changes, message):
    with pytest.raises(InputError, match=message):
        CONFIG.replace(**changes)
