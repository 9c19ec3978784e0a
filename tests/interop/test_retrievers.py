"""Condenser's head layers: model.pt in, safetensors out, and what is refused."""

import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.core.trees import LazyArray
from t5x_lite.interop.retrievers import SAFETENSORS, TORCH, condenser_files, read_condenser
from t5x_lite.interop.tensor_files import read_safetensors, write_safetensors
from t5x_lite.models.encoder import BertConfig
from t5x_lite.models.heads import Mlm
from t5x_lite.objectives.masked_lm import MaskedLM
from t5x_lite.objectives.retromae import Condenser
from tests.interop import torch_writer

MODEL = BertConfig(vocab_size=20, d_model=4, d_ff=6, num_heads=2, num_layers=2)
SIZES = {
    "attention.self.query": (4, 4),
    "attention.self.key": (4, 4),
    "attention.self.value": (4, 4),
    "attention.output.dense": (4, 4),
    "attention.output.LayerNorm": (4,),
    "intermediate.dense": (6, 4),
    "output.dense": (4, 6),
    "output.LayerNorm": (4,),
}


def head_tensors(layers=2):
    rng = np.random.default_rng(0)
    found = {}
    for layer in range(layers):
        for name, size in SIZES.items():
            at = f"c_head.{layer}.{name}"
            found[f"{at}.weight"] = rng.standard_normal(size).astype(np.float32)
            found[f"{at}.bias"] = rng.standard_normal(size[0]).astype(np.float32)
    return found


def save(path, tensors):
    """A model.pt, as PyTorch writes it."""
    values, storages = {}, {}
    for number, (name, array) in enumerate(tensors.items()):
        kind = "LongStorage" if array.dtype == np.int64 else "FloatStorage"
        strides = [step // array.itemsize for step in array.strides]
        key = str(number)
        values[name] = torch_writer.tensor(
            key, kind, array.size, shape=array.shape, strides=strides
        )
        storages[key] = array.tobytes()
    torch_writer.archive(path, torch_writer.state_dict(**values), storages)


def read(directory, *, skip_from=1, head=Mlm(), model=MODEL):  # noqa: B008 a frozen config
    return read_condenser(directory, model, head, mask_id=3, skip_from=skip_from)


def lazy(source):
    return {
        path: LazyArray(shape, source.dtype(path), lambda path=path: source.array(path))
        for path, shape in source.shapes.items()
    }


def test_a_head_goes_in_and_out_bit_for_bit(tmp_path):
    tensors = head_tensors()
    save(tmp_path / TORCH, {**tensors, "co_target": np.arange(8)})
    found = read(tmp_path)
    assert found.objective == Condenser(mask_id=3, skip_from=1, head_layers=2)
    kernel = found.array("objective/condenser/mlp/wi/kernel")
    np.testing.assert_array_equal(kernel[1], tensors["c_head.1.intermediate.dense.weight"].T)
    (name, written), *more = condenser_files(
        found.objective, MODEL, Mlm(), lazy(found), where="here"
    ).items()
    assert (name, more) == (SAFETENSORS, [])
    (tmp_path / "again").mkdir()
    write_safetensors(tmp_path / "again" / name, written)
    back = read_safetensors(tmp_path / "again" / name)
    assert back.keys() == tensors.keys()
    for key, array in tensors.items():
        np.testing.assert_array_equal(back[key], array, err_msg=key)
    again = read(tmp_path / "again")
    for path, array in lazy(found).items():
        np.testing.assert_array_equal(array.read(), again.array(path), err_msg=path)


def test_the_layer_that_is_skipped_from_must_be_said(tmp_path):
    save(tmp_path / TORCH, head_tensors())
    with pytest.raises(InputError, match=r"model\.pt: .* pass --skip-from N .*, here 1 of 2\)"):
        read(tmp_path, skip_from=None)
    with pytest.raises(InputError, match=r"skip_from 3 must be at most model\.num_layers, 2"):
        read(tmp_path, skip_from=3)


def test_a_directory_without_a_head(tmp_path):
    assert read(tmp_path, skip_from=None) is None
    with pytest.raises(
        InputError, match=r"contains neither model\.pt nor condenser_head\.safetensors"
    ):
        read(tmp_path)
    # Somebody else's model.pt is not read, unless it is asked for.
    save(tmp_path / TORCH, {"weight": np.zeros(2, np.float32)})
    assert read(tmp_path, skip_from=None) is None
    (tmp_path / TORCH).write_bytes(b"pickle")
    assert read(tmp_path, skip_from=None) is None
    with pytest.raises(InputError, match="not a zip archive"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"c_head.0.more": np.zeros(2, np.float32)}, r"c_head\.0\.more"),
        ({"lm.weight": np.zeros(2, np.float32)}, r"lm\.weight"),
        ({"c_head.2.output.dense.bias": np.zeros(4, np.float32)}, r"c_head\.2\.attention"),
        ({"c_head.0.output.dense.bias": np.zeros(5, np.float32)}, r"has shape \(5,\)"),
    ],
)
def test_anything_else_is_refused_by_name(tmp_path, change, message):
    save(tmp_path / TORCH, {**head_tensors(), **change})
    with pytest.raises(InputError, match=message):
        read(tmp_path)


def test_what_is_no_number_is_refused(tmp_path):
    tensors = head_tensors()
    tensors["c_head.0.output.dense.bias"][1] = np.nan
    save(tmp_path / TORCH, tensors)
    with pytest.raises(InputError, match="1 of 4 weights that are NaN"):
        read(tmp_path).array("objective/condenser/mlp/wo/bias")


def test_pickled_programs_are_refused(tmp_path):
    code = b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R."
    torch_writer.archive(tmp_path / TORCH, code)
    with pytest.raises(InputError, match=r"the pickle calls os\.system"):
        read(tmp_path)


def test_a_head_needs_its_masked_language_model(tmp_path):
    save(tmp_path / TORCH, head_tensors())
    with pytest.raises(InputError, match="needs a masked language model"):
        read(tmp_path, head=None)


def test_nothing_is_written_of_other_objectives_and_without_the_head_mlm(tmp_path):
    assert condenser_files(MaskedLM(mask_id=3), MODEL, Mlm(), {}, where="here") == {}
    assert condenser_files(Condenser(mask_id=3), MODEL, None, {}, where="here") == {}
    with pytest.raises(InputError, match="here: the parameters do not match the objective"):
        condenser_files(Condenser(mask_id=3), MODEL, Mlm(), {}, where="here")
