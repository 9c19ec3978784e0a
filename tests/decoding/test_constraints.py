import jax.numpy as jnp
import pytest

from t5x_lite.decoding.sampling import Decoding, constrained, minimum_length, no_repeat_ngram

ZERO = jnp.zeros((1, 9))


def forbidden(logits):
    return [jnp.nonzero(row == -jnp.inf)[0].tolist() for row in logits]


def test_the_eos_is_forbidden_until_the_minimum_is_there():
    def at(index):
        logits = minimum_length(ZERO, index=jnp.int32(index), minimum=2, eos_id=1)
        return forbidden(logits)[0]

    assert [at(index) for index in range(4)] == [[1], [1], [], []]


@pytest.mark.parametrize(
    ("history", "length", "size", "expected"),
    [
        ([0, 5, 6, 5, 0], 4, 2, [6]),  # 5 was followed by 6
        ([0, 5, 6, 5, 7, 5], 6, 2, [6, 7]),
        ([0, 5, 6, 0, 0], 3, 2, []),  # nothing has followed 6; columns that are not filled
        ([0, 5, 6, 5, 6, 0], 5, 3, [5]),  # 5 6 was followed by 5
        ([0, 5, 6, 7, 6, 0], 5, 3, []),
        ([0, 2, 0, 0], 3, 2, [2]),  # the start token counts
        ([0, 5, 0], 2, 1, [0, 5]),
        ([0, 5, 0], 2, 3, []),  # no complete 3-gram yet
        ([0, 5], 2, 3, []),
        ([-1, -1, 0, 4, 0, 0], 5, 2, [4]),  # a row that began two columns later
        ([-1, -1, 0, 0], 3, 3, []),
        ([-1, -1, 0, 5, 0], 4, 1, [0, 5]),
    ],
)
def test_no_repeat_ngram(history, length, size, expected):
    logits = no_repeat_ngram(ZERO, jnp.array([history]), length=length, size=size)
    assert forbidden(logits) == [expected]


def test_rows_have_their_own():
    history = jnp.array([[0, 5, 6, 5, 0], [0, 7, 7, 7, 0]])
    logits = no_repeat_ngram(jnp.zeros((2, 9)), history, length=jnp.int32(4), size=2)
    assert forbidden(logits) == [[6], [7]]


def test_both_by_the_config():
    history = jnp.array([[0, 5, 6, 5, 0, 0]])  # start, prompt 5, room for 4
    decoding = Decoding(max_decode_length=4, min_length=3, no_repeat_ngram=2)
    assert forbidden(constrained(ZERO, history, index=jnp.int32(2), decoding=decoding)) == [[1, 6]]
    assert forbidden(constrained(ZERO, history, index=jnp.int32(2), decoding=Decoding())) == [[]]
