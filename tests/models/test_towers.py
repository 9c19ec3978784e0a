from flax import nnx

from t5x_lite.models.vector_heads import Towers
from t5x_lite.nn.slots import shapes
from tests.objectives.encoder_rows import MODEL


def test_a_tower_is_a_model_and_none_has_no_parameters():
    _, none, _ = shapes(lambda rngs: Towers((), MODEL, rngs=rngs))
    assert none == {}
    towers = Towers(("passage",), MODEL, rngs=nnx.Rngs(0))
    assert towers.names == ("passage",)
    assert type(towers["passage"]) is type(MODEL.build(rngs=nnx.Rngs(0)))
    _, both, _ = shapes(lambda rngs: Towers(("passage",), MODEL, rngs=rngs))
    _, alone, _ = shapes(lambda rngs: MODEL.build(rngs=rngs))
    assert both == {"passage": alone}
