"""composable-sft's file as PyTorch reads and writes it."""

import numpy as np
import pytest

from t5x_lite.adapters.delta_parts import Sparse
from t5x_lite.interop.sft import FILE, read_sft, table_of, write_sft
from tests.adapters.hosts import HOSTS

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.oracle

WI = "model/encoder/layers/mlp/wi_0/kernel"


def test_pytorch_reads_what_is_written_and_the_other_way_round(tmp_path):
    shapes, table = table_of(HOSTS["t5"][0], None, model_type=None, where="x")
    part = Sparse(np.array([3, 130, 255], np.int32), np.array([1.0, -2.0, 3.0]), (2, 8, 16))
    write_sft(tmp_path, {WI: part}, {}, table)
    read = torch.load(tmp_path / FILE, weights_only=False)
    assert read["abs"] == {}
    assert isinstance(next(iter(read["diffs"].values()))["size"], torch.Size)
    for name, one in read["diffs"].items():
        layer = int(name.split(".")[2])
        places = np.cumsum(one["index_steps"], dtype=np.int32)
        dense = np.zeros(tuple(one["size"]), np.float32)
        dense[places % 16, places // 16] = one["values"].numpy()
        np.testing.assert_array_equal(dense.T, part.dense()[layer])
        steps = one["index_steps"]
        one["index_steps"] = [np.int64(steps[0]), *steps[1:]]
    torch.save(read, tmp_path / FILE)
    parts, _ = read_sft(tmp_path, shapes, table)
    np.testing.assert_array_equal(parts[WI].dense(), part.dense())
