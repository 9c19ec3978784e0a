"""The search of `mine`: what makes two searches the same; test_mining.py has the rest."""

import pytest

from t5x_lite.errors import InputError
from t5x_lite.run.mining_search import EncoderSource
from tests.encoder_checkpoint import write_checkpoint


def test_another_length_is_another_search(tmp_path, compile_once):
    checkpoint = str(write_checkpoint(tmp_path, "bert"))
    one = EncoderSource(checkpoint=checkpoint).identity()
    assert one == EncoderSource(checkpoint=checkpoint).identity()
    assert one != EncoderSource(checkpoint=checkpoint, query_length=4).identity()
    assert one != EncoderSource(checkpoint=checkpoint, passage_prefix="p: ").identity()


def test_a_checkpoint_that_is_none(tmp_path):
    with pytest.raises(InputError, match="nowhere"):
        EncoderSource(checkpoint=str(tmp_path / "nowhere")).identity()
