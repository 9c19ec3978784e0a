"""Modules on queries, keys and values: with the attention kernel they do what they do without."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.adapters.lora import Ia3, Lora
from t5x_lite.core.trees import flatten
from t5x_lite.nn import pallas_attention as pallas
from t5x_lite.objectives.learner import Learner
from tests.adapters.hosts import HOSTS, outputs, random

PROJECTIONS = (".*attention/(query|key|value)",)
RNG = np.random.default_rng(0)
REAL = np.array([[1] * 11, [1] * 6 + [0] * 5])
BATCH = {  # more tokens than a block of 8 holds
    "encoder_input_tokens": jnp.asarray(RNG.integers(1, 16, (2, 11)) * REAL),
    "decoder_input_tokens": jnp.asarray(RNG.integers(1, 16, (2, 9))),
}


@pytest.mark.gate("module1")
@pytest.mark.slow
@pytest.mark.parametrize("module", [Lora(rank=2, sites=PROJECTIONS), Ia3(sites=PROJECTIONS)])
def test_logits_and_gradients(module, monkeypatch):
    """Of an encoder, a decoder and the attention between them."""
    model = dataclasses.replace(HOSTS["t5"][0], num_encoder_layers=1, num_decoder_layers=1)
    plain = Learner.of(model, HOSTS["t5"][1], adapters=(module,))
    fused = dataclasses.replace(plain.model, attention="pallas", attention_block=8)
    kernel, shapes = pallas.pallas_attention, set()

    def interpreted(query, key, value, **options):
        shapes.add((query.shape[1], key.shape[1]))
        return kernel(query, key, value, **options, interpret=True)

    monkeypatch.setattr(pallas, "pallas_attention", interpreted)
    params = random(plain.shapes)

    cotangent = RNG.standard_normal((2, 9, model.vocab_size)).astype(np.float32)

    def run(made):
        def loss(theta):
            logits = outputs(made, {**params, "adapters": theta}, BATCH)
            return jnp.sum(logits * cotangent), logits

        grads, logits = jax.jit(jax.grad(loss, has_aux=True))(params["adapters"])
        return {**flatten(grads), "logits": logits}

    expected = run(plain)
    assert not shapes
    found = run(Learner.of(fused, plain.objective, adapters=plain.adapters))
    assert shapes == {(11, 11), (9, 9), (9, 11)}
    for path, leaf in expected.items():
        assert np.any(leaf), path
        least = 1e-5 * np.abs(leaf).max()
        np.testing.assert_allclose(found[path], leaf, rtol=1e-4, atol=least, err_msg=path)
