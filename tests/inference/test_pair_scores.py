import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.inference.pairs import PairScores
from t5x_lite.models.heads import Classifier
from t5x_lite.objectives.learner import Learner
from t5x_lite.objectives.m3 import Ranker
from tests.objectives.encoder_rows import CLS, MODEL, SEP, random


@pytest.mark.slow
def test_logits_of_rows_in_their_order():
    learner = Learner.of(MODEL, Ranker())
    assert learner.heads["classifier"] == Classifier(num_classes=1)
    params = random(learner.shapes)
    options = {"batch_size": 2, "longest": 16, "pad_id": 0, "sep_id": SEP}
    scores = PairScores(learner.bind, head="classifier", **options)
    rows = [np.array([CLS, 10, SEP, *range(20, 20 + n), SEP], np.int32) for n in (9, 1, 3)]
    bound = learner.bind(params)
    expected = []
    for row in rows:
        types = (np.cumsum(row == SEP) > (row == SEP)).astype(np.int32)
        hidden = bound.model(jnp.asarray(row[None]), token_types=jnp.asarray(types[None]))
        expected.append(float(bound.heads["classifier"](hidden)[0, 0]))
    found = scores.of(params, rows)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    [[answer], *_] = scores.run(params, rows)
    assert answer.text == f"{expected[0]:g}"
