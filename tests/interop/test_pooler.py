"""The projection of RetroMAE's and Tevatron's retrievers."""

import json

import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.interop.retrievers import read_pooler
from t5x_lite.models.vector_heads import Dense
from tests.interop.torch_writer import archive, state_dict, tensor

BIASES = {"linear_q": np.float32([1, 2, 3]), "linear_p": np.float32([4, 5, 6])}


def weight(layer, size=4):
    """Of a layer of 3 numbers."""
    return np.arange(3 * size, dtype=np.float32).reshape(3, size) + BIASES[layer][0]


def write_pooler(directory, *layers, tied, size=4):
    """As RetroMAE's save_pooler does."""
    tensors, content = {}, {}
    for name in layers:
        for leaf, value in (("weight", weight(name, size)), ("bias", BIASES[name])):
            key, strides = str(len(content)), (size, 1) if value.ndim == 2 else (1,)
            tensors[f"{name}.{leaf}"] = tensor(
                key, "FloatStorage", value.size, shape=value.shape, strides=strides
            )
            content[key] = value.tobytes()
    archive(directory / "pooler.pt", state_dict(**tensors), content)
    config = {"input_dim": size, "output_dim": 3, "tied": tied}
    (directory / "pooler_config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("tied", [True, False])
def test_a_pooler_is_a_projection(tmp_path, tied):
    write_pooler(tmp_path, *(["linear_q"] if tied else BIASES), tied=tied)
    found = read_pooler(tmp_path, d_model=4)
    assert found.head == Dense(pooling="cls", normalize=False, projection=3, tied=tied)
    layers = {"query": "linear_q"} if tied else {"query": "linear_q", "passage": "linear_p"}
    assert len(found.shapes) == 2 * len(layers)
    for role, layer in layers.items():
        np.testing.assert_array_equal(found.array(f"heads/dense/{role}/kernel"), weight(layer).T)
        np.testing.assert_array_equal(found.array(f"heads/dense/{role}/bias"), BIASES[layer])


def test_what_is_no_pooler(tmp_path):
    assert read_pooler(tmp_path, d_model=4) is None
    write_pooler(tmp_path, "linear_q", "linear_p", tied=True)
    with pytest.raises(InputError, match=r"linear_q.weight and linear_p.weight must be equal"):
        read_pooler(tmp_path, d_model=4)
    with pytest.raises(
        InputError, match="input_dim is 4, but the encoder's hidden states have size 5"
    ):
        read_pooler(tmp_path, d_model=5)
    write_pooler(tmp_path, "linear_q", tied=False)
    with pytest.raises(InputError, match=r"missing: linear_p.bias, linear_p.weight"):
        read_pooler(tmp_path, d_model=4)
    (tmp_path / "pooler_config.json").write_text('{"input_dim": 4}')
    with pytest.raises(
        InputError, match="output_dim must be a whole number of at least 1, got None"
    ):
        read_pooler(tmp_path, d_model=4)
    (tmp_path / "pooler_config.json").unlink()
    with pytest.raises(InputError, match=r"pooler_config.json: no such file"):
        read_pooler(tmp_path, d_model=4)
