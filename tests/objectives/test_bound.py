"""A model, its heads and its objective as one module."""

import jax.numpy as jnp
import pytest
from flax import nnx

from t5x_lite.core.errors import InputError
from t5x_lite.models.encoder import BertConfig
from t5x_lite.models.heads import Classifier, Mlm
from t5x_lite.models.vector_heads import Dense
from t5x_lite.objectives.contrastive import Contrastive
from t5x_lite.objectives.learner import Bound, heads_of
from t5x_lite.objectives.task_heads import Classify

MODEL = BertConfig(
    vocab_size=9, d_model=4, d_ff=6, num_heads=2, num_layers=1, max_positions=8, dropout_rate=0.0
)
LABELLED = {
    "encoder_input_tokens": jnp.array([[1, 5, 2, 0], [1, 6, 7, 2]]),
    "encoder_segment_ids": jnp.array([[1, 1, 1, 0], [1, 1, 1, 1]]),
    "labels": jnp.array([[1, 0], [2, 0]]),
}


@pytest.mark.slow
def test_it_is_called_as_the_objective_is():
    bound = Bound(MODEL, Classify(num_classes=2), rngs=nnx.Rngs(0))
    loss = bound(LABELLED)
    assert list(loss.terms) == ["cross_entropy"]
    assert float(loss.terms["cross_entropy"].weight) == 2
    assert bound.encoder("query") is bound.encoder("passage") is bound.model


def test_a_tower_is_the_encoder_of_its_role():
    bound = Bound(MODEL, Contrastive(towers="two"), rngs=nnx.Rngs(0))
    assert bound.encoder("query") is bound.model
    assert bound.encoder("passage") is not bound.model


def test_the_objective_s_heads_are_first_and_others_are_kept():
    kept = (Mlm(), Dense(), Classifier(num_classes=2, labels=("no", "yes")))
    heads = heads_of(Classify(num_classes=2), kept)
    assert list(heads) == ["classifier", "mlm", "dense"]
    assert heads["classifier"] == kept[2]
    with pytest.raises(InputError, match="mlm"):
        heads_of(Classify(num_classes=2), (Mlm(), Mlm()))
