"""A sparse module to composable-sft's file and back: the same places, values and base."""

from typing import Any

import numpy as np
import pytest

from t5x_lite.adapters.delta_parts import Sparse
from t5x_lite.core.errors import InputError
from t5x_lite.inference import delta_files
from t5x_lite.interop.sft import export_sft, import_sft
from tests.adapters.delta_directories import write_base, write_run

WI = "layers/mlp/wi/kernel"
PLACES = np.array([0, 17, 200], np.int32)


def sparse_run(directory, base):
    arrays: Any = {f"adapters/a/{WI}/indices": PLACES}
    return write_run(directory, "bert", base, f"a = sparse(entries={{'{WI}': 3}})", **arrays)


@pytest.mark.parametrize("host", ["bert"])
@pytest.mark.slow
def test_out_and_in_again(host, tmp_path):
    base = write_base(tmp_path / "base", host)
    run, arrays = sparse_run(tmp_path / "run", base)
    export_sft(run, tmp_path / "sft")
    assert [path.name for path in (tmp_path / "sft").iterdir()] == ["pytorch_diff.bin"]
    import_sft(tmp_path / "sft", tmp_path / "back", base=base[0], name="b")
    ours, theirs = delta_files.load(run), delta_files.load(tmp_path / "back")
    assert ours.parts.keys() == theirs.parts.keys() == {f"model/{WI}"}
    part = theirs.parts[f"model/{WI}"]
    assert isinstance(part, Sparse)
    np.testing.assert_array_equal(part.indices, PLACES)
    np.testing.assert_array_equal(part.values, arrays[f"adapters/a/{WI}/values"])
    head = {path: x for path, x in arrays.items() if path.startswith("heads/")}
    assert head.keys() == theirs.extra.keys()
    for path, array in head.items():
        np.testing.assert_array_equal(theirs.extra[path], array)
    delta_files.save(0.5 * ours, tmp_path / "half")  # what compose writes goes out, too
    export_sft(tmp_path / "half", tmp_path / "half_sft", head=False)
    import_sft(tmp_path / "half_sft", tmp_path / "half_back", base=base[0])
    half: Any = delta_files.load(tmp_path / "half_back")
    np.testing.assert_array_equal(half.parts[f"model/{WI}"].values, 0.5 * part.values)
    assert half.extra == {}


@pytest.mark.slow
def test_what_is_refused(tmp_path):
    base = write_base(tmp_path / "base", "bert")
    lora, _ = write_run(tmp_path / "lora", "bert", base, "m = lora(r=2)")
    with pytest.raises(
        InputError, match="is a LowRank, but an sft file can store only sparse changes"
    ):
        export_sft(lora, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match="already has adapters; merge them"):
        import_sft(tmp_path, tmp_path / "in", base=lora)
    with pytest.raises(InputError, match=r"contains no pytorch_diff.bin"):
        import_sft(tmp_path, tmp_path / "in", base=base[0])
