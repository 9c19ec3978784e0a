"""The object that MTEB takes: lists and batches, and the checkpoint's prompts."""

import enum

import numpy as np
import pytest

from t5x_lite.errors import InputError
from t5x_lite.run.mteb import encoder
from tests.encoder_checkpoint import write_checkpoint


class Kind(enum.Enum):
    QUERY = "query"


@pytest.fixture(scope="module")
def model(tmp_path_factory, compile_once):
    path = write_checkpoint(tmp_path_factory.mktemp("encoder"), "bert")
    return encoder(str(path), pooling="mean", normalize=True, batch_size=2)


def test_lists_and_batches(model):
    found = model.encode(["a b", "c", "b"])
    assert found.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    batches = [{"text": ["a b", "c"]}, {"text": "b"}]
    other = model.encode(batches, task_metadata=None, prompt_type=Kind.QUERY, hf_split="test")
    np.testing.assert_array_equal(other, found)
    np.testing.assert_array_equal(model.encode(["c"], prompt_name="no such"), found[1:2])


@pytest.mark.parametrize("sentences", [[3], [{"image": 1}]])
def test_what_is_no_text(model, sentences):
    with pytest.raises(InputError, match="must"):
        model.encode(sentences)
