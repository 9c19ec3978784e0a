"""The module Dense of a sentence-transformers directory."""

import json

import numpy as np
import pytest

from t5x_lite.core import trees
from t5x_lite.core.errors import InputError
from t5x_lite.interop.retrievers import (
    projection_of,
    read_projection,
    read_sentences,
    sentence_files,
)
from t5x_lite.interop.tensor_files import write_safetensors
from t5x_lite.models.vector_heads import Dense


def directory_of(head, tmp_path, **tensors):
    """What an export of a head writes beside the encoder, and the projection's tensors."""
    for name, content in sentence_files(head, d_model=4, max_length=8).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    lazy = {
        f"linear.{name}": trees.LazyArray(x.shape, x.dtype, lambda x=x: x)
        for name, x in tensors.items()
    }
    write_safetensors(tmp_path / "2_Dense" / "model.safetensors", lazy)
    return tmp_path


WEIGHT = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize("activation", ["identity", "tanh"])
@pytest.mark.parametrize("normalize", [True, False])
def test_a_projection_is_read_as_it_is_written(tmp_path, activation, normalize):
    head = Dense(
        pooling="cls", normalize=normalize, max_length=8, projection=3, activation=activation
    )
    bias = {"bias": np.ones(3, np.float32)} if normalize else {}
    source = directory_of(head, tmp_path, weight=WEIGHT, **bias)
    assert read_sentences(source, d_model=4, lowers=False) == head
    found = projection_of(source, d_model=4)
    np.testing.assert_array_equal(found.array("heads/dense/query/kernel"), WEIGHT.T)
    expected = np.ones(3) if normalize else np.zeros(3)
    np.testing.assert_array_equal(found.array("heads/dense/query/bias"), expected)


def test_a_projection_without_a_bias(tmp_path):
    """Sentence-T5 and GTR."""
    head = Dense(normalize=True, max_length=8, projection=3, projection_bias=False)
    source = directory_of(head, tmp_path, weight=WEIGHT)
    assert read_sentences(source, d_model=4, lowers=False) == head
    found = projection_of(source, d_model=4)
    assert found is not None
    assert set(found.lazy_arrays()) == {"heads/dense/query/kernel"}


def test_a_projection_that_cannot_be_read(tmp_path):
    head = Dense(pooling="cls", projection=3)
    source = directory_of(head, tmp_path, weight=WEIGHT, bias=np.ones(2, np.float32)) / "2_Dense"
    with pytest.raises(InputError, match=r"linear.bias has shape \(2,\), but must have \(3,\)"):
        read_projection(source, d_model=4)
    with pytest.raises(
        InputError, match=r"has shape \(3, 4\), but the encoder's hidden states have size 5"
    ):
        read_projection(source, d_model=5)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "activation_function": "a.GELU"}))
    with pytest.raises(InputError, match="activation GELU is not supported, only Identity, Tanh"):
        read_projection(source, d_model=4)
    (source / "model.safetensors").unlink()
    (source / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="contains neither model"):
        read_projection(source, d_model=4)
    with pytest.raises(InputError, match="activation tanh applies only to a projection"):
        Dense(activation="tanh")
