import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_lite.core.errors import InputError
from t5x_lite.models.heads import Mlm
from t5x_lite.models.published import t5_small
from t5x_lite.models.vector_heads import Dense, DenseHead, Prompt, dense_of, unit
from tests.models.modules import MODEL

HIDDEN = jnp.array([[[3.0, 4.0], [0.0, 0.0], [9.0, 9.0]]])
MASK = jnp.array([[1, 1, 0]])


@pytest.mark.parametrize(
    ("pooling", "normalize", "expected"),
    [
        ("cls", False, [3.0, 4.0]),
        ("cls", True, [0.6, 0.8]),
        ("mean", False, [1.5, 2.0]),
        ("mean", True, [0.6, 0.8]),
    ],
)
def test_vectors(pooling, normalize, expected):
    head = DenseHead(Dense(pooling=pooling, normalize=normalize))
    np.testing.assert_allclose(head(HIDDEN, MASK), [expected], rtol=1e-6)


def test_vectors_of_length_1():
    np.testing.assert_allclose(
        unit(jnp.array([[3.0, 4.0], [0.0, 0.0]])), [[0.6, 0.8], [0.0, 0.0]], rtol=1e-6
    )
    assert np.all(np.isfinite(jax.grad(lambda x: jnp.sum(unit(x)))(jnp.zeros((1, 2)))))


def test_prompts():
    prompts = (Prompt(name="query", text="q: "), Prompt(name="passage", text="p: "))
    head = Dense(prompts=prompts)
    assert head.prompt("query") == "q: "
    assert head.prompt("document", "passage") == "p: "
    assert head.prompt() == head.prompt("other") == ""
    assert Dense(prompts=prompts, default_prompt="passage").prompt("other") == "p: "


def test_which_models_and_heads():
    assert isinstance(Dense(pooling="cls").build(MODEL, rngs=nnx.Rngs(0)), DenseHead)
    with pytest.raises(InputError, match="rows of a T5Config do not; set"):
        Dense(pooling="cls").build(t5_small(), rngs=nnx.Rngs(0))
    assert dense_of({"mlm": Mlm(), "dense": Dense()}) == Dense()
    assert dense_of({"mlm": Mlm()}) is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_length": 0}, "max_length must be at least 1: got 0"),
        ({"default_prompt": "q"}, "default_prompt 'q' is not among the prompts: no prompts"),
        ({"prompts": (Prompt(name="q", text="a"),) * 2}, "two prompts have the same name: q, q"),
    ],
)
def test_what_is_wrong(fields, message):
    with pytest.raises(InputError, match=message):
        Dense(**fields)
