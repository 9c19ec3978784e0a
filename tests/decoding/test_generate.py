import jax
import jax.numpy as jnp
import numpy as np

from t5x_lite.decoding.generate import greedy
from t5x_lite.models.t5 import T5Config
from t5x_lite.nn.bind import bind, shapes

# Logits of the next of 5 tokens after each token; the EOS is 1.
AFTER = jnp.array(
    [
        [0, 0, 0, 9, 0],  # 0, the start: 3
        [0, 0, 0, 0, 9],  # 1, the EOS: 4, were it asked for
        [0, 9, 0, 0, 0],  # 2: 1
        [0, 0, 9, 0, 0],  # 3: 2
        [0, 0, 0, 0, 9],  # 4: 4
    ],
    jnp.float32,
)


def chain(tokens, cache):
    """Looks the next token up; the cache counts the steps."""
    return AFTER[tokens], cache + 1


def test_takes_the_likeliest_token_until_the_eos():
    tokens = greedy(chain, jnp.int32(0), batch_size=1, max_length=6)
    assert tokens.dtype == jnp.int32
    assert tokens.tolist() == [[3, 2, 1, 0, 0, 0]]


def test_goes_to_max_length_without_eos():
    assert greedy(chain, jnp.int32(0), batch_size=1, max_length=2).tolist() == [[3, 2]]
    tokens = greedy(chain, jnp.int32(0), batch_size=2, max_length=4, start_id=4)
    assert tokens.tolist() == [[4, 4, 4, 4], [4, 4, 4, 4]]


def test_another_eos():
    assert greedy(chain, jnp.int32(0), batch_size=1, max_length=4, eos_id=2).tolist() == [
        [3, 2, 0, 0]
    ]


def test_rows_end_on_their_own_and_all_steps_see_all_rows():
    # Row b says EOS at step b + 1 and 4 before it.
    def step(tokens, index):
        assert tokens.shape == (3, 1)
        ended = jnp.arange(3) <= index
        logits = jnp.where(ended[:, None], jax.nn.one_hot(1, 5), jax.nn.one_hot(4, 5))
        return logits[:, None], index + 1

    tokens = greedy(step, jnp.int32(0), batch_size=3, max_length=5)
    assert tokens.tolist() == [[1, 0, 0, 0, 0], [4, 1, 0, 0, 0], [4, 4, 1, 0, 0]]


def test_an_ended_row_is_fed_padding():
    seen = []

    def step(tokens, index):
        jax.debug.callback(lambda tokens: seen.append(tokens[:, 0].tolist()), tokens)
        first = jnp.where(index == 0, 1, 3)  # row 0: EOS, then 3; row 1: 2, 2, EOS
        second = jnp.where(index == 2, 1, 2)
        return jax.nn.one_hot(jnp.stack([first, second]), 5)[:, None], index + 1

    tokens = greedy(step, jnp.int32(0), batch_size=2, max_length=9)
    jax.effects_barrier()
    assert tokens.tolist() == [[1] + [0] * 8, [2, 2, 1] + [0] * 6]
    # Three steps: it stops when every row has ended. After its EOS, row 0 is fed 1, then 0.
    assert sorted(seen) == sorted([[0, 0], [1, 2], [0, 2]])


def test_the_cache_is_carried():
    # The logits depend on the cache alone: tokens 2, 3, 4, ...
    def step(tokens, cache):
        return jax.nn.one_hot(cache["next"], 9)[:, None], {"next": cache["next"] + 1}

    tokens = greedy(step, {"next": jnp.array([2, 5])}, batch_size=2, max_length=4)
    assert tokens.tolist() == [[2, 3, 4, 5], [5, 6, 7, 8]]


def test_t5_greedy_is_the_argmax_of_the_whole_forward_pass():
    config = T5Config(
        vocab_size=23, d_model=8, d_kv=4, d_ff=16, num_heads=2,
        num_encoder_layers=1, num_decoder_layers=1,
    )  # fmt: skip
    graphdef, abstract, _ = shapes(lambda rngs: config.build(rngs=rngs))
    rng = np.random.default_rng(1)
    params = jax.tree.map(
        lambda leaf: rng.normal(size=leaf.shape, scale=0.5).astype(np.float32), abstract
    )
    inputs = jnp.array([[5, 6, 7, 1], [8, 9, 1, 0], [10, 11, 12, 13]])

    @jax.jit
    def decode(params):
        model = bind(graphdef, params)
        cache = model.init_cache(inputs, max_length=7)
        tokens = greedy(model.step, cache, batch_size=3, max_length=7, eos_id=3)
        shifted = jnp.pad(tokens[:, :-1], ((0, 0), (1, 0)))
        return tokens, jnp.argmax(model(inputs, shifted), axis=-1)

    tokens, best = map(np.asarray, decode(params))
    before_eos = np.cumsum(tokens == 3, axis=1) - (tokens == 3) == 0
    assert 9 < before_eos.sum() < 21
    np.testing.assert_array_equal(tokens[before_eos], best[before_eos])
    assert np.all(tokens[~before_eos] == 0)
