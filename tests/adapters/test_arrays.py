import jax
import pytest
from flax import nnx

from t5x_lite.adapters.whole_arrays import Leaf, arrays_of, table_of
from tests.adapters.hosts import HOSTS


@pytest.mark.parametrize("host", HOSTS)
def test_the_arrays_of_a_model_and_its_table(host):
    model = nnx.eval_shape(lambda: HOSTS[host][0].build(rngs=nnx.Rngs(jax.random.key(0))))
    found = arrays_of(model)
    path, table = table_of(model) or ("", None)
    assert path == {"t5": "token_embedding/table"}.get(host, "embedding/token")
    assert table == Leaf((16, 8), ("vocab", "embed")) == found[path]
    assert (table.is_stacked, table.all_rows) == (False, None)
    stacked = [leaf for leaf in found.values() if leaf.is_stacked]
    assert {leaf.shape[0] for leaf in stacked} == {2}
    assert {leaf.all_rows for leaf in stacked} == {(0, 1)}
