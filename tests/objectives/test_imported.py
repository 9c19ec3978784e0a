import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from t5x_lite.errors import InputError
from t5x_lite.learner import Bound
from t5x_lite.models.bert import BertConfig
from t5x_lite.models.presets import t5_small
from t5x_lite.nn.bind import bind, shapes
from t5x_lite.nn.heads import DebertaRtdHead, ElectraRtdHead
from t5x_lite.objectives.imported import Imported

MODEL = BertConfig(vocab_size=9, d_model=4, d_ff=6, num_heads=2, num_layers=1, activation="relu")


def learner(head):
    graphdef, abstract, _ = shapes(lambda rngs: Bound(MODEL, Imported(head=head), rngs=rngs))
    return bind(graphdef, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), abstract)), abstract


@pytest.mark.parametrize(
    ("head", "expected"), [("electra_rtd", ElectraRtdHead), ("deberta_rtd", DebertaRtdHead)]
)
def test_holds_the_head_of_a_discriminator(head, expected):
    found, params = learner(head)
    assert isinstance(found.objective.head, expected)
    assert found.objective.head.activation == "relu"
    assert params["objective"]["head"]["out"]["kernel"].shape == (4, 1)


def test_an_encoder_alone_has_no_parameters_but_its_own():
    found, params = learner("none")
    assert set(params) == {"model"}
    assert found.model.encode(jnp.ones((1, 2), jnp.int32)).shape == (1, 2, 4)


def test_it_cannot_be_trained_and_says_how():
    found, _ = learner("electra_rtd")
    with pytest.raises(InputError, match=r"no loss.*--init"):
        found({"encoder_input_tokens": jnp.ones((1, 2), jnp.int32)})


def test_it_is_of_encoders():
    with pytest.raises(InputError, match="of encoders, not of a T5Config"):
        Imported().build(t5_small(), rngs=nnx.Rngs(0))
