import pytest
from flax import nnx

from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import flatten
from t5x_lite.models.heads import Classifier, Head, HeadModules, Mlm, by_name
from t5x_lite.models.vector_heads import Dense
from t5x_lite.nn.slots import shapes
from tests.models.modules import MODEL


def test_heads_by_name():
    heads = by_name([Mlm(), Classifier(name="nli", num_classes=3), Classifier()])
    assert list(heads) == ["mlm", "nli", "classifier"]
    with pytest.raises(InputError, match="two heads have the name mlm; rename one of them"):
        by_name([Mlm(), Mlm()])
    with pytest.raises(InputError, match="got 'N/LI'"):
        Classifier(name="N/LI")


def test_modules_are_below_their_names():
    heads = by_name([Dense(), Classifier(name="nli", num_classes=3)])
    _, found, _ = shapes(lambda rngs: HeadModules(heads, MODEL, rngs=rngs))
    assert set(flatten(found)) == {
        "nli/dense/kernel", "nli/dense/bias", "nli/out/kernel", "nli/out/bias",
    }  # fmt: skip
    made = HeadModules(heads, MODEL, rngs=nnx.Rngs(0))
    assert made["nli"] is made.nli


def test_a_head_says_what_it_is():
    with pytest.raises(TypeError, match="Head does not define the method build"):
        Head(name="x").build(MODEL, rngs=nnx.Rngs(0))
