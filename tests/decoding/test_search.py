import jax
import jax.numpy as jnp
import numpy as np

from t5x_lite.decoding.search import Generative, begin, left_padded, log_normaliser


def test_prompts_end_in_one_column():
    prompt = jnp.array([[7, 8, 9], [5, 0, 0], [0, 0, 0]])
    assert left_padded(prompt).tolist() == [[0, 7, 8, 9], [-1, -1, 0, 5], [-1, -1, -1, 0]]
    assert left_padded(jnp.zeros((2, 0), jnp.int32)).tolist() == [[0], [0]]


def test_rows_of_an_input_follow_each_other(hashed):
    model = hashed()
    assert isinstance(model, Generative)
    start = begin(
        model,
        jnp.array([[3, 0], [4, 5]]),
        prompt=jnp.array([[6], [0]]),
        num=2,
        max_length=3,
    )
    assert start.history.tolist() == [[0, 6, 0, 0, 0]] * 2 + [[-1, 0, 0, 0, 0]] * 2
    assert start.prompt_lengths.tolist() == [1, 0]
    assert start.cache.shape == (4,)
    assert (start.logits[0] == start.logits[1]).all()
    assert (start.logits[0] != start.logits[2]).any()


def test_log_normaliser():
    logits = jnp.array([[1.0, -jnp.inf, 30.0], [-5.0, -5.0, -5.0]])
    largest, normaliser = log_normaliser(logits)
    np.testing.assert_allclose(logits - largest - normaliser, jax.nn.log_softmax(logits), rtol=1e-6)
