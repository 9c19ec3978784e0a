"""A cross-encoder of a checkpoint: its rows, its lengths, and what is refused."""

import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.inference.checkpoint import Checkpoint
from t5x_lite.inference.pairs import sigmoid_or_raw
from tests.encoder_checkpoint import write_checkpoint, write_ranker


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, compile_once):
    return write_ranker(tmp_path_factory.mktemp("ranker"))


def test_rows_and_scores(checkpoint):
    scorer = Checkpoint.load([checkpoint]).pair_scorer(batch_size=2)
    assert (scorer.length, scorer.query_length) == (12, 6)
    pairs = [("a b", "c"), ("a b c d e f g", "h i j k l m n o"), ("a b", "c [SEP] d")]
    # [CLS] 2, [SEP] 3, a 5.
    assert [row.tolist() for row in scorer.rows(pairs)] == [
        [2, 5, 6, 3, 7, 3],
        [2, 5, 6, 7, 8, 3, 12, 13, 14, 15, 16, 3],
        [2, 5, 6, 3, 7, 1, 8, 3],
    ]
    found = scorer.scores(pairs)
    assert found.shape == (3,)
    assert len(set(found.tolist())) == 3
    np.testing.assert_allclose(scorer.scores(pairs[::-1]), found[::-1], rtol=1e-5, atol=1e-6)
    assert sigmoid_or_raw(sigmoid=True)(np.array([0.0])).tolist() == [0.5]
    assert sigmoid_or_raw(sigmoid=False)(found) is found


@pytest.mark.slow
def test_what_does_not_fit_is_refused(checkpoint, tmp_path):
    with pytest.raises(
        InputError, match="tokens, but inputs_length sets the length of rows to 999"
    ):
        Checkpoint.load([checkpoint], inputs_length=999).pair_scorer()
    with pytest.raises(InputError, match="leave too few tokens for a passage"):
        Checkpoint.load([checkpoint], inputs_length=8).pair_scorer(query_length=6)
    with pytest.raises(InputError, match="has no head 'classifier' with one class"):
        Checkpoint.load([write_checkpoint(tmp_path, "bert")]).pair_scorer()
