import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_lite.core.trees import flatten
from t5x_lite.models.t5 import T5Config
from t5x_lite.nn.slots import bind, shapes
from t5x_lite.objectives.learner import Bound
from t5x_lite.objectives.likelihood import Seq2Seq

MODEL = T5Config(
    vocab_size=3,
    d_model=4,
    d_kv=2,
    d_ff=8,
    num_heads=2,
    num_encoder_layers=1,
    num_decoder_layers=1,
    dropout_rate=0.0,
)
BATCH = {
    "encoder_input_tokens": jnp.array([[2, 1]]),
    "decoder_input_tokens": jnp.array([[0, 1, 2]]),
    "decoder_target_tokens": jnp.array([[1, 2, 0]]),
    "decoder_loss_weights": jnp.array([[1, 1, 0]]),
}


def given(batch):
    """What the objective gives its model."""
    seen = {}

    def model(**features):
        seen.update(features)
        return jnp.zeros((1, 3, 3))

    Seq2Seq().build(MODEL, rngs=nnx.Rngs(0))(model, None, batch, key=jax.random.key(0))
    return seen


def test_the_model_gets_tokens_and_the_segment_ids_of_packed_batches():
    assert set(given(BATCH)) == {"encoder_input_tokens", "decoder_input_tokens", "key"}
    packed = {
        **BATCH,
        "encoder_segment_ids": jnp.array([[1, 1]]),
        "decoder_segment_ids": jnp.array([[1, 1, 2]]),
        "encoder_positions": jnp.array([[0, 1]]),
        "decoder_positions": jnp.array([[0, 1, 0]]),
    }
    features = given(packed)
    del features["key"]
    assert set(features) == {
        "encoder_input_tokens",
        "decoder_input_tokens",
        "encoder_segment_ids",
        "decoder_segment_ids",
    }
    assert all(value is packed[name] for name, value in features.items())


@pytest.mark.slow
def test_every_parameter_of_a_t5_gets_a_gradient():
    graphdef, abstract, _ = shapes(lambda rngs: Bound(MODEL, Seq2Seq(), rngs=rngs))
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(size=leaf.shape).astype(np.float32)), abstract
    )
    grads = jax.jit(jax.grad(lambda params: bind(graphdef, params)(BATCH).value()))(params)
    gradients = flatten(grads)
    assert all(np.all(np.isfinite(gradient)) for gradient in gradients.values())
    assert [path for path, gradient in gradients.items() if not np.any(gradient)] == []
