import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.models.heads import Choice
from tests.models.modules import MODEL, filled, normal


def test_one_number_of_each_row():
    config = Choice(kind="electra", dropout_rate=0.5)
    head, _ = filled(lambda rngs: config.build(MODEL, rngs=rngs))
    assert head(normal(4, 3, 6)).shape == (4, 1)
    assert (head.activation, head.dropout_rate) == (config.activation, 0.5) == ("gelu", 0.5)
    with pytest.raises(InputError, match="dropout_rate must be in"):
        Choice(dropout_rate=1.0)
