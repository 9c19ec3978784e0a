"""More positions: the states of short texts stay, and longer texts can be read."""

import numpy as np
import pytest

from t5x_lite.commands.deltas import extend, extended
from t5x_lite.core.errors import InputError
from t5x_lite.inference.checkpoint import Checkpoint
from tests.encoder_checkpoint import write_checkpoint

TEXTS = ["a b c", "d", "a b c d e f g h i j k l"]


def test_rows_are_repeated_or_drawn():
    table = np.arange(10, dtype=np.float32).reshape(5, 2)
    found = extended(table, 10, first=2)
    np.testing.assert_array_equal(found[:5], table)
    np.testing.assert_array_equal(found[5:], table[[2, 3, 4, 2, 3]])
    drawn = extended(table, 7, first=2, draw=lambda shape: np.full(shape, 9.0))
    np.testing.assert_array_equal(drawn, [*table.tolist(), [9, 9], [9, 9]])


@pytest.mark.gate("repeat")
@pytest.mark.parametrize("new_rows", ["repeat", "random"])
@pytest.mark.slow
def test_texts_of_the_old_length_have_the_same_vectors(tmp_path, compile_once, new_rows):
    checkpoint = str(write_checkpoint(tmp_path, "xlm_roberta"))
    before = Checkpoint.load([checkpoint]).encoder(pooling="mean")
    most = before.loaded.experiment.model.longest_document
    made = extend(checkpoint, str(tmp_path / "longer"), positions=3 * most, new_rows=new_rows)
    after = Checkpoint.load([str(made)], inputs_length=3 * most).encoder(pooling="mean")
    assert after.loaded.experiment.model.longest_document == 3 * most
    rows = before.rows([text[: 2 * most - 5] for text in TEXTS]).rows
    found = [e.embedder(batch_size=3).run(e.params, rows) for e in (before, after)]
    np.testing.assert_allclose(found[1], found[0], atol=1e-6)
    long = after.rows(["a b c d " * most]).rows
    assert len(long[0]) == 3 * most
    assert np.isfinite(after.embedder(batch_size=1).run(after.params, long)).all()
    with pytest.raises(InputError, match=f"already accepts texts of {3 * most} tokens"):
        extend(str(made), str(tmp_path / "again"), positions=3 * most)
    with pytest.raises(InputError, match="exists and is not empty"):
        extend(checkpoint, str(made), positions=3 * most)
