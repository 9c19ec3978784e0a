"""Spans: the mean of two cross-entropies over a row's tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.config.file import from_json, to_json
from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import flatten
from t5x_lite.nn.slots import bind
from t5x_lite.objectives.task_heads import Spans, span_logits
from tests.objectives.encoder_rows import CLS, SEP, learner, loss_of

TOKENS = jnp.array([[CLS, 10, SEP, 20, 21, 22, SEP, 0], [CLS, 11, SEP, 23, SEP, 0, 0, 0]])
BATCH = {
    "encoder_input_tokens": TOKENS,
    "encoder_segment_ids": (TOKENS > 0).astype(jnp.int32),
    "encoder_token_types": jnp.array([[0, 0, 0, 1, 1, 1, 1, 0], [0, 0, 0, 1, 1, 0, 0, 0]]),
    "labels": jnp.array([[4, 6], [0, 0]]),  # tokens 3 to 5; the second row has no answer
}


@pytest.fixture(scope="module")
def made():
    return learner(Spans())


@pytest.mark.slow
def test_the_loss_is_that_of_numpy(made):
    graphdef, params, _ = made
    loss, grads = jax.jit(
        lambda params: (
            loss_of(graphdef, params, BATCH),
            jax.grad(lambda p: loss_of(graphdef, p, BATCH).value())(params),
        )
    )(params)
    module = bind(graphdef, params)
    names = ("segment_ids", "token_types")
    hidden = module.model(TOKENS, **{name: BATCH[f"encoder_{name}"] for name in names})
    out = params["heads"]["span"]["out"]
    logits = np.asarray(hidden)[0, :7] @ np.asarray(out["kernel"]) + np.asarray(out["bias"])
    log_p = logits - np.log(np.sum(np.exp(logits), axis=0))
    total, weight, _ = loss.terms["cross_entropy"]
    np.testing.assert_allclose(total, -(log_p[3, 0] + log_p[5, 1]) / 2, rtol=1e-4)
    right = np.argmax(logits, axis=0).tolist() == [3, 5]
    assert (float(weight), float(loss.metrics["accuracy"][0])) == (1.0, float(right))
    # What is added to the states or the logits of all positions alike changes nothing.
    zero = [path for path, leaf in flatten(grads).items() if not np.any(np.abs(leaf) > 1e-6)]
    assert zero == [
        "heads/span/out/bias",
        "model/layers/attention/key/bias",
        "model/layers/mlp_norm/bias",
    ]


def test_padding_is_no_end(made):
    graphdef, params, _ = made
    module = bind(graphdef, params)
    logits = np.asarray(
        span_logits(module.heads.span, module.model(TOKENS), BATCH["encoder_segment_ids"])
    )
    assert logits.shape == (2, 2, 8)
    np.testing.assert_array_equal(logits == -1e9, np.asarray(TOKENS == 0)[:, None].repeat(2, 1))


def test_configs_are_saved_and_nonsense_is_refused():
    assert from_json(to_json(Spans(longest=7)), source="here") == Spans(longest=7)
    with pytest.raises(InputError, match=r"objective\.longest must be at least 1: got 0"):
        Spans(longest=0)
