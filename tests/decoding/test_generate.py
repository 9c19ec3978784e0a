import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.decoding.generate import decode, greedy
from t5x_lite.decoding.sampling import Decoding, request_keys

INPUTS = jnp.array([[3, 2, 0], [5, 0, 0], [2, 2, 4], [6, 3, 0]])

# Probabilities of the next of 5 tokens after each; the EOS is 1.
AFTER = [
    [0.05, 0.05, 0.1, 0.6, 0.2],  # 0, the start: 3
    [0.05, 0.05, 0.1, 0.2, 0.6],  # 1, the EOS: 4, were it asked for
    [0.1, 0.5, 0.1, 0.1, 0.2],  # 2: 1
    [0.1, 0.1, 0.4, 0.1, 0.3],  # 3: 2
    [0.05, 0.05, 0.1, 0.2, 0.6],  # 4: 4
]


def test_takes_the_likeliest_token_until_the_eos(markov):
    tokens, scores = greedy(markov(AFTER), INPUTS[:1], decoding=Decoding(max_decode_length=6))
    assert tokens.dtype == jnp.int32
    assert tokens.tolist() == [[3, 2, 1, 0, 0, 0]]
    np.testing.assert_allclose(scores, [np.log(0.6 * 0.4 * 0.5)], rtol=1e-5)


def test_goes_to_max_length_without_eos(markov):
    tokens, scores = greedy(markov(AFTER), INPUTS[:1], decoding=Decoding(max_decode_length=2))
    assert tokens.tolist() == [[3, 2]]
    np.testing.assert_allclose(scores, [np.log(0.6 * 0.4)], rtol=1e-5)
    assert greedy(markov(AFTER), INPUTS[:1], decoding=Decoding(max_decode_length=1))[
        0
    ].tolist() == [[3]]


@pytest.mark.slow
def test_goes_on_from_the_prompt(markov):
    prompt = jnp.array([[4, 0], [4, 3], [0, 0]])
    tokens, _ = greedy(
        markov(AFTER), INPUTS[:3], prompt=prompt, decoding=Decoding(max_decode_length=3)
    )
    assert tokens.tolist() == [[4, 4, 4], [2, 1, 0], [3, 2, 1]]


def test_another_eos(markov):
    decoding = Decoding(max_decode_length=4, eos_id=2)
    assert greedy(markov(AFTER), INPUTS[:1], decoding=decoding)[0].tolist() == [[3, 2, 0, 0]]


@pytest.mark.slow
def test_minimum_length_and_no_repeated_ngram(markov):
    # The EOS after 3 2 is forbidden: 4 is next best.
    decoding = Decoding(max_decode_length=5, min_length=3)
    tokens, scores = greedy(markov(AFTER), INPUTS[:1], decoding=decoding)
    assert tokens.tolist() == [[3, 2, 4, 4, 4]]
    # The score is the model's, and not that of the tokens that were allowed.
    np.testing.assert_allclose(scores, [np.log(0.6 * 0.4 * 0.2 * 0.6 * 0.6)], rtol=1e-5)
    decoding = Decoding(max_decode_length=5, min_length=3, no_repeat_ngram=2)
    assert greedy(markov(AFTER), INPUTS[:1], decoding=decoding)[0].tolist() == [[3, 2, 4, 4, 3]]
    # With 4 4 in the prompt, 4 is followed by 3 at once.
    prompt = jnp.array([[4, 4]])
    tokens, _ = greedy(markov(AFTER), INPUTS[:1], prompt=prompt, decoding=decoding)
    assert tokens.tolist()[0][:2] == [3, 2]


def steps_of(model, **settings):
    """Runs a search and counts the model's steps."""
    seen = []

    class Counted(type(model)):
        def step(self, tokens, cache):
            jax.debug.callback(lambda tokens: seen.append(tokens.tolist()), tokens)
            return super().step(tokens, cache)

    ended = settings.pop("ended", None)
    tokens, _ = decode(Counted(model.table), INPUTS[:2], ended=ended, decoding=Decoding(**settings))
    jax.effects_barrier()
    return tokens[:, 0].tolist(), seen


def test_stops_when_all_rows_have_ended(markov):
    # 3, 2, EOS: the first token is the prefill's, and nobody asks what follows the EOS.
    tokens, seen = steps_of(markov(AFTER), max_decode_length=9)
    assert tokens == [[3, 2, 1] + [0] * 6] * 2
    assert seen == [[3, 3], [2, 2]]
    assert len(steps_of(markov(AFTER), max_decode_length=9, min_length=9)[1]) == 8


def test_rows_that_only_fill_are_not_waited_for(markov):
    tokens, seen = steps_of(markov(AFTER), max_decode_length=9, ended=jnp.array([True, True]))
    assert tokens == [[0] * 9] * 2
    assert seen == []
    tokens, seen = steps_of(markov(AFTER), max_decode_length=9, ended=jnp.array([False, True]))
    assert tokens == [[3, 2, 1] + [0] * 6, [0] * 9]
    assert seen == [[3, 0], [2, 0]]


def test_the_cache_goes_with_its_row(hashed):
    model = hashed()
    tokens, scores = greedy(model, INPUTS, decoding=Decoding(max_decode_length=6))
    for row, inputs in enumerate(INPUTS.tolist()):
        assert scores[row] == pytest.approx(model.log_p(inputs, tokens[row].tolist()), abs=1e-4)


SAMPLING = Decoding(max_decode_length=6, temperature=3.0, top_p=0.95, num_return=2)


@pytest.fixture(scope="module")
def sampled(hashed):
    run = jax.jit(functools.partial(decode, hashed(), decoding=SAMPLING))

    def sample(numbers, inputs):
        keys = request_keys(5, jnp.array(numbers, jnp.uint32))
        tokens, scores = run(jnp.array(inputs), keys=keys)
        return tokens.tolist(), scores.tolist()

    return sample


@pytest.mark.slow
def test_samples_do_not_depend_on_the_batch(sampled):
    inputs = INPUTS.tolist()
    tokens, scores = sampled([0, 1, 2, 3], inputs)
    order = [3, 1, 0, 2]
    moved, moved_scores = sampled(order, [inputs[i] for i in order])
    assert moved == [tokens[i] for i in order]
    np.testing.assert_allclose(moved_scores, [scores[i] for i in order], rtol=1e-5)
    assert sampled([2], [inputs[2]])[0] == [tokens[2]]
    assert sampled([7], [inputs[2]])[0] != [tokens[2]]


def test_samples_are_sorted_by_their_log_probability(hashed, sampled):
    model = hashed()
    found = zip(INPUTS.tolist(), *sampled(range(4), INPUTS), strict=True)
    for inputs, outputs, scores in found:
        expected = [model.log_p(inputs, output) for output in outputs]
        np.testing.assert_allclose(scores, expected, rtol=1e-4)
        assert scores == sorted(scores, reverse=True)


@pytest.mark.slow
def test_sampling_the_likeliest_alone_is_greedy(hashed):
    decoding = Decoding(max_decode_length=6, temperature=1.0, top_k=1)
    keys = request_keys(0, jnp.arange(4, dtype=jnp.uint32))
    tokens, _ = decode(hashed(), INPUTS, keys=keys, decoding=decoding)
    assert tokens[:, 0].tolist() == greedy(hashed(), INPUTS, decoding=decoding)[0].tolist()


def test_sampling_needs_keys(hashed):
    with pytest.raises(ValueError, match="a random key for each input"):
        decode(hashed(), INPUTS, decoding=SAMPLING)
