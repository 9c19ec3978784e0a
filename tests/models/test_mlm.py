import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import flatten
from t5x_lite.models.heads import MaskedLMHead, Mlm
from t5x_lite.models.published import t5_small
from tests.models.modules import MODEL, dense, filled, gelu, norm, normal


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_masked_language_model(batch):
    head, params = filled(lambda rngs: MaskedLMHead(6, 4, 9, norm_epsilon=1e-5, rngs=rngs))
    hidden, table = normal(*batch, 6), normal(9, 4, seed=2)
    x = norm(gelu(dense(np.asarray(hidden, np.float64), params["dense"])), params["norm"], 1e-5)
    expected = x @ np.asarray(table, np.float64).T + params["bias"]
    np.testing.assert_allclose(head(hidden, table), expected, rtol=1e-5, atol=1e-5)
    low = head(hidden.astype(jnp.bfloat16), table.astype(jnp.bfloat16))
    assert low.dtype == jnp.float32


def test_the_sizes_are_the_model_s():
    head, params = filled(lambda rngs: Mlm().build(MODEL.replace(embedding_size=4), rngs=rngs))
    assert {path: leaf.shape for path, leaf in flatten(params).items()} == {
        "dense/kernel": (6, 4), "dense/bias": (4,), "norm/scale": (4,), "norm/bias": (4,),
        "bias": (9,),
    }  # fmt: skip
    assert head.activation == "gelu"


def test_it_reads_an_encoder():
    with pytest.raises(InputError, match="head 'mlm' needs an encoder, but the model is a T5"):
        filled(lambda rngs: Mlm().build(t5_small(), rngs=rngs))
