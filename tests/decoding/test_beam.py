import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.decoding import search as beam
from t5x_lite.decoding.generate import greedy
from t5x_lite.decoding.sampling import Decoding
from t5x_lite.decoding.search import HuggingFaceRule, T5XRule

INPUTS = jnp.array([[3, 2, 0], [5, 0, 0], [2, 2, 4], [6, 3, 0]])
ONE = jnp.array([[2]])
RULES = ["t5x", "hf"]


def beam_search(model, inputs, *, prompt=None, decoding):
    """As one compiled program, which takes less time than its operations one by one."""
    return jax.jit(
        lambda *rows: beam.beam_search(model, rows[0], prompt=rows[1], decoding=decoding)
    )(inputs, prompt)


# Probabilities of the next of 4 tokens: padding, EOS, a and b.
START = [0.0, 0.1, 0.55, 0.35]
AFTER_A = [0.0, 0.4, 0.1, 0.5]
AFTER_B = [0.0, 0.9, 0.06, 0.04]
CHAIN = [START, START, AFTER_A, AFTER_B]
A, B, EOS = 2, 3, 1

# Two beams, three tokens. The four best continuations and their probabilities at each step:
#   a .55     b .35      EOS .1     -         live: a, b
#   b EOS .315, a b .275, a EOS .22, a a .055  live: a b, a a
#   a b EOS .2475, a a b .0275, a a EOS .022, ...


def test_hand_computed_by_the_rule_of_t5x(markov):
    decoding = Decoding(max_decode_length=3, num_beams=2, num_return=2)
    tokens, scores = beam_search(markov(CHAIN), ONE, decoding=decoding)
    # EOS, then a EOS, then a b EOS take the second place; b EOS stays the best.
    assert tokens.tolist() == [[[B, EOS, 0], [A, B, EOS]]]
    expected = [np.log(0.315) / (7 / 6) ** 0.6, np.log(0.2475) / (8 / 6) ** 0.6]
    np.testing.assert_allclose(scores[0], expected, rtol=1e-5)
    np.testing.assert_allclose(expected, [-1.053131, -1.174977], atol=1e-6)


def test_hand_computed_by_the_rule_of_transformers(markov):
    decoding = Decoding(max_decode_length=3, num_beams=2, num_return=2, length_rule="hf")
    tokens, scores = beam_search(markov(CHAIN), ONE, decoding=decoding)
    # a EOS, third at its step, is dropped; by its length a b EOS overtakes b EOS.
    assert tokens.tolist() == [[[A, B, EOS], [B, EOS, 0]]]
    expected = [np.log(0.2475) / 3, np.log(0.315) / 2]
    np.testing.assert_allclose(scores[0], expected, rtol=1e-5)
    np.testing.assert_allclose(expected, [-0.465448, -0.577591], atol=1e-6)


def test_at_max_length_t5x_takes_live_beams_where_none_is_finished_and_hf_always(markov):
    # Without EOS: a .55, b .35; a b .275, a a .055; a a b .0275, a b a .0165.
    never = {"max_decode_length": 3, "num_beams": 2, "num_return": 2, "min_length": 3}
    tokens, scores = beam_search(markov(CHAIN), ONE, decoding=Decoding(**never))
    assert tokens.tolist() == [[[A, A, B], [A, B, A]]]
    np.testing.assert_allclose(scores[0], np.log([0.0275, 0.0165]), rtol=1e-5)
    tokens, scores = beam_search(markov(CHAIN), ONE, decoding=Decoding(**never, length_rule="hf"))
    assert tokens.tolist() == [[[A, A, B], [A, B, A]]]
    np.testing.assert_allclose(scores[0], np.log([0.0275, 0.0165]) / 3, rtol=1e-5)


def test_live_beams_follow_too_few_finished_ones(markov):
    # After one token EOS is finished, a is not.
    decoding = Decoding(max_decode_length=1, num_beams=2, num_return=2)
    tokens, scores = beam_search(markov(CHAIN), ONE, decoding=decoding)
    assert tokens.tolist() == [[[EOS], [A]]]
    np.testing.assert_allclose(scores[0], np.log([0.1, 0.55]), rtol=1e-5)


def test_scores_of_lengths():
    log_p, prompt = jnp.array([[-6.0], [-6.0]]), jnp.array([[0], [3]])
    rule = T5XRule(penalty=1.0, max_length=9)
    np.testing.assert_allclose(
        rule.score(log_p, length=jnp.int32(1), prompt=prompt), [[-6.0], [-4.0]]
    )
    rule = HuggingFaceRule(penalty=2.0, max_length=9, early_stopping=False)
    np.testing.assert_allclose(
        rule.score(log_p, length=jnp.int32(2), prompt=prompt), [[-1.5], [-1.5]]
    )


@pytest.mark.parametrize(
    ("early_stopping", "expected"), [(True, True), (False, False), ("never", False)]
)
def test_early_stopping(early_stopping, expected):
    rule = HuggingFaceRule(penalty=1.0, max_length=8, early_stopping=early_stopping)

    def done(live, worst, length):
        return rule.done(
            jnp.array([[live]]),
            jnp.array([worst]),
            jnp.array([worst > rule.nothing]),
            length=jnp.int32(length),
            prompt=jnp.array([[0]]),
        ).tolist()

    # -2 at 2 tokens would be -1 now and -0.25 with 8 tokens.
    assert done(-2.0, -1.1, 2) == [expected]
    assert done(-2.0, -1.0, 2) == [early_stopping != "never"]
    assert done(-2.0, -0.25, 2) == [True]
    assert done(-2.0, rule.nothing, 2) == [False]


@pytest.mark.slow
def test_one_beam_of_transformers_is_greedy(hashed):
    decoding = Decoding(max_decode_length=6, length_rule="hf", length_penalty=0.0)
    tokens, scores = beam_search(hashed(), INPUTS, decoding=decoding)
    expected, expected_scores = greedy(hashed(), INPUTS, decoding=decoding)
    assert tokens[:, 0].tolist() == expected.tolist()
    np.testing.assert_allclose(scores[:, 0], expected_scores, rtol=1e-5)


@pytest.mark.parametrize("rule", RULES)
def test_many_beams_find_the_best_of_all_outputs(hashed, rule):
    # Three tokens besides the padding; 40 beams hold every beginning of four tokens that goes on.
    model = hashed(vocab_size=4)
    decoding = Decoding(
        max_decode_length=4, num_beams=40, num_return=3, length_rule=rule, length_penalty=1.0
    )
    tokens, scores = beam_search(model, INPUTS[:2], decoding=decoding)
    for row, inputs in enumerate(INPUTS[:2].tolist()):
        outputs = []
        for length in range(1, 5):
            for said in itertools.product([2, 3], repeat=length - 1):
                ends = [1, 2, 3] if rule == "hf" and length == 4 else [1]
                outputs += [[*said, last] + [0] * (4 - length) for last in ends]
        by_score = {}
        for output in outputs:
            length = sum(token > 0 for token in output)
            norm = length if rule == "hf" else (5 + length) / 6
            by_score[model.log_p(inputs, output) / norm] = output
        best = sorted(by_score, reverse=True)[:3]
        np.testing.assert_allclose(scores[row], best, rtol=1e-4)
        assert tokens[row].tolist() == [by_score[score] for score in best]


@pytest.fixture(scope="module", params=RULES)
def search(request, hashed):
    """(inputs, prompt, ended) -> tokens, scores; three beams, all returned."""
    decoding = Decoding(
        max_decode_length=6,
        num_beams=3,
        num_return=3,
        length_rule=request.param,
        length_penalty=0.0,
    )

    @jax.jit
    def run(inputs, prompt, ended=None):
        return beam.beam_search(hashed(), inputs, prompt=prompt, ended=ended, decoding=decoding)

    return run


def test_the_cache_goes_with_its_beam_and_rows_do_not_meet(hashed, search):
    model = hashed()
    prompt = jnp.array([[4, 2], [3, 0], [0, 0], [0, 0]])
    tokens, scores = search(INPUTS, prompt)
    for row in range(4):
        alone_tokens, alone_scores = search(INPUTS[row : row + 1], prompt[row : row + 1])
        assert alone_tokens[0].tolist() == tokens[row].tolist()
        np.testing.assert_allclose(alone_scores[0], scores[row], rtol=1e-5)
        # Without a length penalty a score is the log-probability.
        context = [*INPUTS[row].tolist(), *prompt[row].tolist()]
        for output, score in zip(tokens[row].tolist(), scores[row].tolist(), strict=True):
            assert score == pytest.approx(model.log_p(context, output), abs=1e-4)
        assert len({tuple(output) for output in tokens[row].tolist()}) == 3


def test_rows_that_only_fill_are_not_waited_for(search):
    prompt = jnp.zeros((4, 2), jnp.int32)
    tokens, _ = search(INPUTS, prompt)
    ended = jnp.array([False, True, False, True])
    others, _ = search(INPUTS, prompt, ended)
    assert others[0].tolist() == tokens[0].tolist()
    assert others[2].tolist() == tokens[2].tolist()


def test_stops_when_all_inputs_are_done(markov):
    seen = []

    class Counted(type(markov(CHAIN))):
        def step(self, tokens, cache):
            jax.debug.callback(lambda tokens: seen.append(len(tokens)), tokens)
            return super().step(tokens, cache)

    def steps(**settings):
        seen.clear()
        beam_search(Counted(markov(CHAIN).table), ONE, decoding=Decoding(**settings))
        jax.effects_barrier()
        return len(seen)

    assert steps(max_decode_length=40, num_beams=2, length_rule="hf") < 6
    assert steps(max_decode_length=40, num_beams=2, length_rule="hf", early_stopping=True) == 2
    assert steps(max_decode_length=40, num_beams=2, min_length=40) == 39


def test_constraints_hold_for_every_beam(hashed):
    decoding = Decoding(
        max_decode_length=7,
        num_beams=4,
        num_return=4,
        length_rule="hf",
        min_length=4,
        no_repeat_ngram=2,
    )
    prompt = jnp.array([[3, 4], [5, 0]])
    tokens, _ = beam_search(hashed(), INPUTS[:2], prompt=prompt, decoding=decoding)
    for row, outputs in enumerate(tokens.tolist()):
        begin = [0, *(token for token in prompt[row].tolist() if token)]
        for output in outputs:
            said = begin + [token for token in output if token]
            assert 1 not in output[:4]
            assert len(set(itertools.pairwise(said))) == len(said) - 1
