"""coCondenser: the contrastive loss in literals, what is excluded, microbatches, duplicates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.core.trees import flatten
from t5x_lite.objectives.base import Loss
from t5x_lite.objectives.retromae import CoCondenser, candidates
from tests.objectives.encoder_rows import LENGTH, MASK, MODEL, learner, loss_of, rows

MODEL = MODEL.replace(unroll=1)
OBJECTIVE = CoCondenser(mask_id=MASK, head_layers=1)


def spans(documents=4, *, seed=0):
    found = rows(batch=2 * documents, seed=seed)
    return {name: value.reshape(documents, 2, LENGTH) for name, value in found.items()}


def of(summaries, tokens=None, segments=None):
    """The second stage: vectors of documents' spans; tokens all different by default."""
    summaries = jnp.asarray(summaries, jnp.float32)
    documents = len(summaries)
    ids = jnp.arange(documents * 2).reshape(documents, 2, 1) if tokens is None else tokens
    there = jnp.ones_like(jnp.asarray(ids)) if segments is None else jnp.asarray(segments)
    batch = {"encoder_input_tokens": jnp.asarray(ids), "encoder_segment_ids": there}
    return OBJECTIVE.joint({"summaries": summaries}, batch, step=None)


GOLDEN = [[[1, 0], [1, 1]], [[0, 1], [0, 2]]]


@pytest.mark.slow
def test_the_loss_of_four_spans():
    loss = of(GOLDEN)
    total, weight, scale = loss.terms["contrastive"]
    assert (float(weight), scale) == (4.0, 1.0)
    np.testing.assert_allclose(total / weight, 0.817280, atol=1e-6)
    np.testing.assert_allclose(total, 0.551445 + 1.551445 + 0.407606 + 0.758624, atol=3e-6)
    # The first and the third span score their own highest, and the fourth as high as one other.
    assert float(loss.metrics["contrastive_accuracy"][0]) == 2.5


@pytest.mark.slow
def test_documents_of_padding_count_nothing():
    two = [*GOLDEN, [[9, 9], [9, 9]]]
    tokens = np.arange(6).reshape(3, 2, 1)
    segments = np.array([1, 1, 1, 1, 0, 0]).reshape(3, 2, 1)
    loss = of(two, tokens, segments)
    np.testing.assert_allclose(loss.terms["contrastive"].total, 4 * 0.817280, rtol=1e-5)
    assert float(loss.terms["contrastive"].weight) == 4.0


def test_a_span_with_the_same_tokens_is_no_negative():
    # Spans a b | a c | d d: the second a is none to a and to b, and d is compared with its twin.
    tokens = np.array([1, 2, 1, 3, 4, 4]).reshape(3, 2, 1)
    found = candidates(
        {
            "encoder_input_tokens": jnp.asarray(tokens),
            "encoder_segment_ids": jnp.ones((3, 2, 1), jnp.int32),
        }
    )
    assert found.astype(int).tolist() == [
        [0, 1, 0, 1, 1, 1],
        [1, 0, 0, 1, 1, 1],
        [0, 1, 0, 1, 1, 1],
        [0, 1, 1, 0, 1, 1],
        [1, 1, 1, 1, 0, 1],
        [1, 1, 1, 1, 1, 0],
    ]


@pytest.fixture(scope="module")
def trained():
    graphdef, params, _ = learner(OBJECTIVE, MODEL)

    def value(params, batch, key):
        loss = loss_of(graphdef, params, batch, key)
        return loss.joined(OBJECTIVE.joint(loss.rows, batch, step=None)).value()

    return graphdef, params, jax.jit(value)


def part_losses(graphdef, params, batch, number, key):
    """The losses of the parts of a batch, each under a key of its own."""
    for i in range(number):
        part = {name: value[i::number] for name, value in batch.items()}
        yield loss_of(graphdef, params, part, jax.random.fold_in(key, i))


@pytest.mark.slow
def test_the_masked_lm_terms_of_parts_are_sums_over_the_batch(trained):
    """Each masked token weighs as in a whole batch: in the reference's cached step it is double."""
    graphdef, params, _ = trained
    batch, key = spans(), jax.random.key(0)

    def sums(params):
        losses = list(part_losses(graphdef, params, batch, 2, key))
        return losses, losses[0].plus(losses[1])

    losses, both = jax.jit(sums)(params)
    for name in ("head", "late"):
        weights = [float(loss.terms[name].weight) for loss in losses]
        # 8 rows of 12, 10, 8, 6, 4, ... tokens: max(1, round(.15 words)) are masked in each.
        assert float(both.terms[name].weight) == sum(weights)
        assert both.terms[name].scale == 1.0
    whole = jax.jit(loss_of, static_argnums=0)(graphdef, params, batch, key)
    assert float(both.terms["head"].weight) == float(whole.terms["head"].weight)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_contrastive_loss_counts_all_spans_and_reaches_all_parameters(trained):
    _, params, value = trained
    batch = spans()
    gradients = jax.grad(value)(params, batch, jax.random.key(0))
    norms = {path: float(jnp.abs(leaf).sum()) for path, leaf in flatten(gradients).items()}
    assert {path for path, norm in norms.items() if norm == 0.0} <= {
        path for path in norms if path.endswith("key/bias")
    }


def test_rows_are_the_last_cls_states_as_they_are(trained):
    graphdef, params, _ = trained
    loss = jax.jit(loss_of, static_argnums=0)(graphdef, params, spans(), jax.random.key(0))
    assert isinstance(loss, Loss)
    assert set(loss.terms) == {"head", "late"}
    assert loss.rows["summaries"].shape == (4, 2, MODEL.d_model)
    assert loss.rows["summaries"].dtype == jnp.float32
    assert float(jnp.linalg.norm(loss.rows["summaries"], axis=-1).std()) > 0.01  # not of length 1


def test_one_row_of_a_batch_weighs_the_batchs_flops():
    shapes = {"encoder_input_tokens": (2, LENGTH)}
    assert OBJECTIVE.forward_flops(MODEL, shapes) % 2 == 0
    assert OBJECTIVE.layouts[0].name == "spans"
