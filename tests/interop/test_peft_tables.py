"""The table of PEFT's virtual tokens: what is read and what is refused."""

import json

import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.interop.peft_prompts import read_table
from t5x_lite.interop.tensor_files import write_safetensors
from tests.interop.peft_files import lazy

ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)


def write(directory, number, **tensors):
    directory.mkdir()
    (directory / "adapter_config.json").write_text(json.dumps({"num_virtual_tokens": number}))
    arrays = {name.replace("__", "."): lazy(array) for name, array in tensors.items()}
    write_safetensors(directory / "adapter_model.safetensors", arrays)
    return directory


def test_rows_and_what_stands_beside_them(tmp_path):
    table = read_table(write(tmp_path / "in", 4, prompt_embeddings=ROWS, head__weight=ROWS[:1]))
    assert (table.number, table.where.name) == (4, "adapter_model.safetensors")
    np.testing.assert_array_equal(table.rows, ROWS)
    np.testing.assert_array_equal(table.others["head.weight"], ROWS[:1])


def test_twice_as_many_rows_where_they_may_be(tmp_path):
    directory = write(tmp_path / "in", 2, prompt_embeddings=ROWS)
    assert read_table(directory, may_be_double=True).rows.shape == (4, 3)
    with pytest.raises(InputError, match=r"has shape \(4, 3\), but .* has 2 virtual tokens"):
        read_table(directory)


@pytest.mark.parametrize(
    ("number", "tensors", "match"),
    [
        (4, {"other": ROWS}, "contains no tensor prompt_embeddings"),
        (4, {"prompt_embeddings": ROWS * np.nan}, "prompt_embeddings"),
        (4, {"prompt_embeddings": ROWS[:, 0]}, r"has shape \(4,\)"),
        (0, {"prompt_embeddings": ROWS}, "num_virtual_tokens"),
    ],
)
def test_what_is_refused(tmp_path, number, tensors, match):
    with pytest.raises(InputError, match=match):
        read_table(write(tmp_path / "in", number, **tensors))
