"""The search of `mine`: what makes two searches the same; the rest is in the command's tests."""

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.retrieval.mining import PairEncoder
from tests.encoder_checkpoint import write_checkpoint


def test_another_length_is_another_search(tmp_path, compile_once):
    checkpoint = str(write_checkpoint(tmp_path, "bert"))
    one = PairEncoder().identity(checkpoint)
    assert one == PairEncoder().identity(checkpoint)
    assert one != PairEncoder(query_length=4).identity(checkpoint)
    assert one != PairEncoder(passage_prefix="p: ").identity(checkpoint)


def test_a_checkpoint_that_is_none(tmp_path):
    with pytest.raises(InputError, match="nowhere"):
        PairEncoder().identity(str(tmp_path / "nowhere"))
