"""A teacher's ranking: the goldens of the formulas, and a literal implementation in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.objectives.contrastive import Contrastive
from t5x_lite.objectives.m3 import Distill, retromae_distill
from tests.objectives.encoder_rows import CLS, groups

SCORES = np.array([[2, 1, 0, 0.5], [0, 1, 1.5, 1]], np.float32)
TARGETS = np.array([[0.7, 0.3], [0.6, 0.4]])


def pairs(num=2, size=2, *, teacher):
    texts = [[CLS, 10 + i] for i in range(num)]
    passages = [[[CLS, 20 + size * i + j] for j in range(size)] for i in range(num)]
    return groups(texts, passages, teacher=teacher)


def loss_of(scores, batch, **fields):
    """Of vectors whose products are these scores."""
    num, size = batch["passage_tokens"].shape[:2]
    passages = np.eye(num * size, dtype=np.float32).reshape(num, size, -1)
    rows = {"queries": jnp.asarray(scores, jnp.float32), "passages": jnp.asarray(passages)}
    return Distill(**{"temperature": 1.0, **fields}).joint(rows, batch, step=None)


@pytest.mark.gate("m3_kd-0.732672")
@pytest.mark.parametrize(("kind", "golden"), [("kl", 0.643669), ("m3_kd", 0.732672)])
@pytest.mark.slow
def test_the_goldens(kind, golden):
    batch = pairs(teacher=np.log(TARGETS))
    loss = loss_of(SCORES, batch, distillation=kind)
    assert float(loss.value()) == pytest.approx(golden, abs=2e-6)
    # A teacher's order is what counts, not that of the row.
    for name in ("passage_tokens", "passage_segment_ids", "teacher_scores"):
        batch[name] = batch[name].at[0].set(batch[name][0, ::-1])
    turned = SCORES[:, [1, 0, 2, 3]]
    assert float(loss_of(turned, batch, distillation=kind).value()) == pytest.approx(
        golden, abs=2e-6
    )


def literal(kind, scores, teacher, *, temperature, teacher_temperature):
    """One loss a query, by the formulas; all texts differ, and NaN has no score."""
    losses = []
    num, size = teacher.shape
    for i in range(num):
        own = i * size + np.arange(size)
        known = ~np.isnan(teacher[i])
        t = np.where(known, np.exp(np.where(known, teacher[i], 0) / teacher_temperature), 0)
        t, s = t / t.sum(), scores[i] / temperature
        if kind == "kl":
            group = s[own][known]
            losses.append(-np.sum(t[known] * (group - np.log(np.sum(np.exp(group))))))
            continue
        order = own[np.argsort(np.where(known, -teacher[i], np.inf), kind="stable")]
        rest = [j for j in range(num * size) if j not in own]
        total = 0.0
        for r, target in enumerate(order):
            among = s[[*rest, *order[r:]]]
            total += t[target - i * size] * (np.log(np.sum(np.exp(among))) - s[target])
        losses.append(total)
    return losses


@pytest.mark.gate("m3_kd")
@pytest.mark.parametrize("kind", ["kl", "m3_kd"])
@pytest.mark.slow
def test_a_literal_implementation(kind):
    rng = np.random.default_rng(0)
    scores, teacher = rng.normal(size=(3, 9)), rng.normal(size=(3, 3))
    teacher[1, 2] = np.nan
    options = {"temperature": 0.5, "teacher_temperature": 2.0}
    batch = pairs(3, 3, teacher=teacher)
    loss = loss_of(scores, batch, distillation=kind, **options)
    expected = literal(kind, scores, teacher, **options)
    assert float(loss.terms[kind].total) == pytest.approx(sum(expected), rel=1e-5)
    assert float(loss.terms[kind].weight) == 3.0

    def value(scores):
        return loss_of(scores, batch, distillation=kind, **options).value()

    assert np.all(np.isfinite(jax.grad(value)(jnp.asarray(scores, jnp.float32))))


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["kl", "m3_kd"])
def test_rows_of_padding_and_without_a_teacher_count_nothing(kind):
    batch = pairs(teacher=np.log(TARGETS))
    more = jax.tree.map(lambda x: jnp.concatenate([x, jnp.zeros_like(x[:1])]), batch)
    more["teacher_scores"] = more["teacher_scores"].at[2].set(jnp.nan)
    scores = np.zeros((3, 6), np.float32)
    scores[:2, :4] = SCORES
    loss = loss_of(scores, more, distillation=kind)
    expected = loss_of(SCORES, batch, distillation=kind)
    assert float(loss.value()) == pytest.approx(float(expected.value()), rel=1e-6)


@pytest.mark.slow
def test_infonce_beside_it():
    batch = pairs(teacher=np.log(TARGETS))
    loss = loss_of(SCORES, batch, contrastive_weight=0.5, distillation_weight=2.0)
    rows = {"queries": jnp.asarray(SCORES), "passages": jnp.eye(4).reshape(2, 2, 4)}
    alone = Contrastive(temperature=1.0).joint(rows, batch, step=None)
    assert float(loss.value()) == pytest.approx(2 * 0.643669 + 0.5 * float(alone.value()), abs=1e-5)
    assert "kl" in loss.metrics
    assert set(alone.metrics) < set(loss.metrics)


def test_retromae_s_distillation_as_published():
    batch = pairs(teacher=np.log(TARGETS))
    objective = retromae_distill(group=2)
    assert (objective.temperature, objective.pooling, objective.normalize) == (1.0, "cls", False)
    rows = {"queries": jnp.asarray(SCORES), "passages": jnp.eye(4).reshape(2, 2, 4)}
    loss = objective.joint(rows, batch, step=None)
    infonce = float(Contrastive(temperature=1.0).joint(rows, batch, step=None).value())
    assert float(loss.value()) == pytest.approx(0.643669 / 2 + 1e-4 * infonce, abs=2e-6)


def test_a_batch_without_a_teacher_is_refused():
    with pytest.raises(InputError, match=r"--data\.layout\.teacher True"):
        loss_of(SCORES, pairs(teacher=None))
    with pytest.raises(InputError, match="must be at least 0"):
        Distill(contrastive_weight=-1.0)
    with pytest.raises(InputError, match="teacher_temperature must be above 0"):
        Distill(teacher_temperature=0.0)
