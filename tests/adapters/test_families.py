"""Modules on the models that `hosts` lacks: language models, T5's encoder, the decoder of DeBERTa.

The enhanced mask decoder runs the last layer twice more, and its modules with it.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_lite.adapters.bottleneck import seq_bn
from t5x_lite.adapters.lora import Lora
from t5x_lite.core.trees import flatten
from t5x_lite.models.deberta import DebertaConfig
from t5x_lite.models.lm import LMConfig
from t5x_lite.models.t5 import T5EncoderConfig
from t5x_lite.objectives.base import Objective
from t5x_lite.objectives.learner import Learner
from t5x_lite.optim.config import AdamW, Constant
from tests.adapters.hosts import ENCODER, SIZES, random

T5 = {**SIZES, "d_kv": 4, "num_layers": 2}
TOKENS = jnp.array([[5, 6, 7, 1], [8, 1, 0, 0]])
FAMILIES = {
    "lm": (LMConfig(**T5), lambda model: model(TOKENS)),
    "prefix_lm": (
        LMConfig(**T5, prefix=True),
        lambda model: model(TOKENS, decoder_causal_attention=jnp.array([[1, 1, 0, 0]] * 2)),
    ),
    "t5_encoder": (T5EncoderConfig(**T5), lambda model: model.encode(TOKENS)),
    "enhanced_mask_decoder": (
        DebertaConfig(**ENCODER, position_buckets=4, enhanced_mask_decoder=True),
        lambda model: model.masked_lm_states(TOKENS),
    ),
}
MODULES = (Lora(rank=2, sites=("attention/.*", "mlp")), seq_bn(reduction=4.0, init="mam"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoLoss(Objective):
    """For the model alone."""

    def build(self, model, *, rngs):
        return nnx.Module()


def learner(family, *adapters):
    optimizer = AdamW(schedule=Constant(value=0.1))
    return Learner.of(FAMILIES[family][0], NoLoss(), adapters=adapters, optimizer=optimizer)


SELDOM = ("prefix_lm", "enhanced_mask_decoder")


@pytest.mark.gate("t5_encoder")
@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=pytest.mark.slow if name in SELDOM else ()) for name in FAMILIES],
)
def test_identity_at_the_start_and_gradients_of_the_modules_alone(family):
    """And merged as attached."""
    plain, made, lora = learner(family), learner(family, *MODULES), learner(family, MODULES[0])
    run = FAMILIES[family][1]
    (update,) = made.updates()
    theta = update.part(made.shapes)
    assert theta.keys() == {"adapters"}
    base = random({"model": plain.shapes["model"]})
    fresh = jax.jit(lambda key: made.init(key)["adapters"])(jax.random.key(0))
    moved = random(theta, seed=1)

    @jax.jit
    def compared(base, fresh, moved):
        """States of the base, at the start, with LoRA moved, and with LoRA merged."""
        found = [run(plain.bind_model(base)), run(made.bind_model({**base, "adapters": fresh}))]
        params = {**base, "adapters": {"lora": moved["adapters"]["lora"]}}
        found.append(run(lora.bind_model(params)))
        found.append(run(plain.bind_model({"model": lora.merged(params)})))
        return found

    without, start, attached, merged = compared(base, fresh, moved)
    np.testing.assert_array_equal(start, without)
    assert np.abs(np.asarray(attached - without)).max() > 0.01
    np.testing.assert_allclose(merged, attached, rtol=1e-5, atol=1e-5)

    def loss(theta):
        states = run(made.bind_model({**base, **theta}))
        return jnp.sum(states * random(states, seed=2))

    gradients = flatten(jax.jit(jax.grad(loss))(moved))
    for path, leaf in gradients.items():  # of each layer
        assert np.all(np.any(np.asarray(leaf).reshape(len(leaf), -1), axis=1)), path
