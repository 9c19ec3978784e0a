import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_lite.adapters.bottleneck_variants import PHM, Compacter, compacter, compacter_plus_plus
from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import count_parameters, flatten
from t5x_lite.models.published import bert_base
from t5x_lite.objectives.learner import Learner
from t5x_lite.objectives.task_heads import Classify
from tests.adapters.hosts import learner


def test_the_product_without_the_kernel():
    phm = PHM(8, 4, dim=2, rank=3, rngs=nnx.Rngs(0))
    rng = np.random.default_rng(0)
    rule = rng.standard_normal((2, 2, 2)).astype(np.float32)
    phm.rule = nnx.Variable(jnp.asarray(rule))
    phm.bias[...] = jnp.arange(4.0)
    left, right = np.asarray(phm.left[...]), np.asarray(phm.right[...])
    kernel = sum(np.kron(rule[i], left[i] @ right[i]) for i in range(2))
    x = rng.standard_normal((1, 3, 8)).astype(np.float32)
    np.testing.assert_allclose(phm.product(jnp.asarray(x)), x @ kernel + np.arange(4), rtol=1e-5)
    # Glorot uniform for each i, in and out being those of one factor.
    assert np.abs(left).max() <= (6 / (4 + 3)) ** 0.5
    assert np.abs(PHM(512, 4, dim=2, rank=1, rngs=nnx.Rngs(0)).left[...]).max() == pytest.approx(
        (6 / 257) ** 0.5, rel=0.02
    )


@pytest.mark.parametrize(
    ("config", "count"), [(compacter(), 57_088), (compacter_plus_plus(), 28_576)]
)
def test_sizes(config, count):
    made = Learner.of(bert_base(), Classify(num_classes=2), adapters=(config,))
    assert count_parameters(made.shapes["adapters"]) == count


def test_one_rule_for_all():
    made, _ = learner("t5", compacter(reduction=2.0, phm_dim=2))
    shapes = flatten(made.shapes["adapters"])
    assert [path for path in shapes if path.endswith("rule")] == ["compacter/rule"]
    assert shapes["compacter/rule"].shape == (2, 2, 2)
    assert compacter().sites == ("after_attention", "after_mlp")
    assert compacter_plus_plus().reads == "sum"


def test_what_is_wrong():
    with pytest.raises(InputError, match=r"phm_dim 4 must divide .* are 8 and 1"):
        learner("bert", compacter(reduction=8.0))
    with pytest.raises(InputError, match="phm_dim must be at least 1"):
        Compacter(phm_dim=0)
    with pytest.raises(InputError, match="supports neither reductions per layer"):
        Compacter(leave_out=(1,))
