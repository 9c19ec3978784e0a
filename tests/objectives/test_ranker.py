"""A cross-encoder's losses: by hand; padding; and parts."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.core import trees
from t5x_lite.core.errors import InputError
from t5x_lite.models.heads import Classifier, by_name
from t5x_lite.objectives.learner import Learner
from t5x_lite.objectives.m3 import Ranker, RankerLoss
from tests.objectives.encoder_rows import CLS, MODEL, SEP, random

LOGITS = jnp.array([[2.0, 1.0, 0.0], [0.0, 1.0, 5.0], [0.0, 0.0, 0.0]])
THERE = jnp.array([[1, 1, 1], [1, 1, 0], [0, 0, 0]])


def batch_of(there=THERE, **more):
    segments = jnp.repeat(there[:, :, None], 4, axis=2).astype(jnp.int32)
    tokens = jnp.arange(36).reshape(3, 3, 4) % 40 + 5
    return {"encoder_input_tokens": tokens, "encoder_segment_ids": segments, **more}


@pytest.mark.slow
def test_losses_by_hand():
    loss = RankerLoss(Ranker()).of_logits(LOGITS, batch_of())
    total, weight, _ = loss.terms["listwise"]
    first = math.log(1 + math.exp(-1) + math.exp(-2))
    assert (float(total), float(weight)) == (pytest.approx(first + math.log(1 + math.e)), 2.0)
    assert tuple(map(float, loss.metrics["accuracy"])) == (1.0, 2.0)
    halved = RankerLoss(Ranker(temperature=0.5)).of_logits(LOGITS, batch_of())
    assert float(halved.terms["listwise"].total) == pytest.approx(
        math.log(1 + math.exp(-2) + math.exp(-4)) + math.log(1 + math.exp(2)), rel=1e-6
    )
    loss = RankerLoss(Ranker(loss="pointwise")).of_logits(LOGITS, batch_of())
    total, weight, _ = loss.terms["pointwise"]
    softplus = [math.log1p(math.exp(x)) for x in (-2.0, 1.0, 0.0, 0.0, 1.0)]
    assert (float(total), float(weight)) == (pytest.approx(sum(softplus)), 5.0)


def test_a_teacher_beside_it():
    teacher = jnp.log(jnp.array([[0.7, 0.2, 0.1], [0.5, 0.5, jnp.nan], [jnp.nan] * 3]))
    batch = batch_of(teacher_scores=teacher)
    loss = RankerLoss(Ranker(teacher_weight=3.0)).of_logits(LOGITS, batch)
    total, weight, scale = loss.terms["distillation"]
    z = math.log(math.exp(2) + math.e + 1)
    first = 0.7 * (z - 2) + 0.2 * (z - 1) + 0.1 * z
    second = math.log(1 + math.e) - 0.5
    assert (float(total), float(weight), scale) == (pytest.approx(first + second), 2.0, 3.0)
    learner = Learner.of(MODEL, Ranker(teacher_weight=1.0))
    with pytest.raises(InputError, match=r"--data\.layout\.teacher True"):
        jax.eval_shape(learner.loss, learner.shapes, batch_of())


def test_the_head_is_a_classifier_of_one_class():
    learner = Learner.of(MODEL, Ranker(head="roberta"))
    assert learner.heads == {"classifier": Classifier(num_classes=1, kind="roberta")}
    assert trees.flatten(learner.shapes)["heads/classifier/out/kernel"].shape == (16, 1)
    named = by_name([Classifier(num_classes=1, labels=("relevance",))])
    assert Ranker().heads(named)[0].labels == ("relevance",)
    assert Ranker().heads(by_name([Classifier(num_classes=3)]))[0].num_classes == 1


@pytest.mark.slow
def test_each_passage_is_read_with_its_query_alone():
    learner = Learner.of(MODEL, Ranker())
    params = random(learner.shapes)
    tokens = np.zeros((2, 2, 6), np.int32)
    tokens[0] = [[CLS, 10, SEP, 20, SEP, 0], [CLS, 10, SEP, 21, 22, SEP]]
    tokens[1, 0] = [CLS, 11, SEP, 23, SEP, 0]
    segments = (tokens > 0).astype(np.int32)
    types = (np.cumsum(tokens == SEP, axis=2) > (tokens == SEP)).astype(np.int32) * segments
    batch = {
        "encoder_input_tokens": jnp.asarray(tokens),
        "encoder_segment_ids": jnp.asarray(segments),
        "encoder_token_types": jnp.asarray(types),
    }
    value, grads = jax.jit(jax.value_and_grad(lambda p: learner.whole_loss(p, batch).value()))(
        params
    )
    bound = learner.bind(params)
    logits = []
    for row in [tokens[0, 0, :5], tokens[0, 1], tokens[1, 0, :5]]:
        kinds = (np.cumsum(row == SEP) > (row == SEP)).astype(np.int32)
        hidden = bound.model(jnp.asarray(row[None]), token_types=jnp.asarray(kinds[None]))
        logits.append(float(bound.heads["classifier"](hidden)[0, 0]))
    # The second query has its answer alone: nothing to tell it from.
    expected = math.log(1 + math.exp(logits[1] - logits[0])) / 2
    assert float(value) == pytest.approx(expected, rel=1e-5)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(grads))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": 0.0}, r"objective\.temperature must be above 0"),
        ({"teacher_temperature": -1.0}, r"objective\.teacher_temperature must be above 0"),
        ({"teacher_weight": -1.0}, r"objective\.teacher_weight must be at least 0"),
    ],
)
def test_refuses_nonsense(fields, message):
    with pytest.raises(InputError, match=message):
        Ranker(**fields)


def test_flops_and_rows_of_another_layout():
    shapes = {"encoder_input_tokens": (4, 8)}
    one = MODEL.forward_flops({"encoder_input_tokens": (8,)})
    assert Ranker().forward_flops(MODEL, shapes) == 4 * one
    learner = Learner.of(MODEL, Ranker())
    with pytest.raises(
        InputError, match=r"encoder_input_tokens \[B, G, S\]\), so data\.layout must be"
    ):
        jax.eval_shape(
            learner.loss, learner.shapes, {"encoder_input_tokens": jnp.ones((2, 4), jnp.int32)}
        )
