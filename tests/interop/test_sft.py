"""composable-sft's files: places in the order of the first axis, and back; what is refused."""

import struct

import numpy as np
import pytest

from t5x_lite.adapters.delta_parts import Sparse
from t5x_lite.core.errors import InputError
from t5x_lite.interop.sft import FILE, read_sft, table_of, write_sft
from t5x_lite.models.heads import Classifier
from tests.adapters.hosts import HOSTS
from tests.interop.torch_writer import archive, number, numbers, tensor, text

T5, BERT = HOSTS["t5"][0], HOSTS["bert"][0]
WI = "model/encoder/layers/mlp/wi_0/kernel"  # ours [2, 8, 16], theirs [16, 8] a layer
THEIRS = "encoder.block.1.layer.1.DenseReluDense.wi_0.weight"


def t5_table():
    return table_of(T5, None, model_type=None, where="x")


def test_what_is_written_is_read(tmp_path):
    shapes, table = t5_table()
    with pytest.raises(InputError, match="model/x cannot be exported"):
        write_sft(tmp_path, {"model/x": Sparse(np.array([0]), np.array([1.0]), (2,))}, {}, table)
    parts = {
        WI: Sparse(np.array([3, 130, 255], np.int32), np.array([1.0, -2.0, 0.0]), (2, 8, 16)),
        "model/token_embedding/table": Sparse(np.array([9]), np.array([0.5]), (16, 8)),
    }
    write_sft(tmp_path, parts, {}, table)
    found, heads = read_sft(tmp_path, shapes, table)
    assert found.keys() == parts.keys()
    assert heads == {}
    for path, part in parts.items():
        np.testing.assert_array_equal(found[path].indices, part.indices)
        np.testing.assert_array_equal(found[path].values, part.values)
        assert found[path].shape == part.shape


def encoded(steps, size=(16, 8), values=2):
    """As torch.save writes it: the first step is a number of NumPy."""
    first = struct.pack("<q", steps[0]).decode("latin1").encode()  # of characters above 127, two
    dtype = b"cnumpy\ndtype\n(" + text("i8") + b"\x89\x88tR"
    dtype += b"(" + number(3) + text("<") + b"NNN" + numbers(-1)[1:-1] + number(-1) + number(0)
    dtype += b"tb"
    content = (
        b"c_codecs\nencode\n(X" + struct.pack("<I", len(first)) + first + text("latin1") + b"tR"
    )
    scalar = b"cnumpy.core.multiarray\nscalar\n(" + dtype + content + b"tR"
    listed = b"](" + scalar + b"".join(map(number, steps[1:])) + b"e"
    shape = b"ctorch\nSize\n(" + numbers(*size) + b"tR"
    stored = tensor("0", "FloatStorage", values, shape=(values,), strides=(1,))
    one = b"}(" + text("size") + shape + text("index_steps") + listed + text("values") + stored
    return one + b"u"


def write(directory, one, name=THEIRS):
    pickled = b"\x80\x02}(" + text("diffs") + b"}(" + text(name) + one + b"u"
    archive(directory / FILE, pickled + text("abs") + b"}u.", {"0": struct.pack("<2f", 10.0, 20.0)})


def test_the_first_axis_runs_fastest_and_steps_add_up(tmp_path):
    """Place 17 of [16, 8] is row 1 of column 1, and place 33 row 1 of column 2."""
    shapes, table = t5_table()
    write(tmp_path, encoded([17, 16]), name=f"transformer.{THEIRS}")
    parts, _ = read_sft(tmp_path, shapes, table)
    expected = np.zeros((2, 8, 16), np.float32)
    expected[1, 1, 1], expected[1, 2, 1] = 10.0, 20.0
    np.testing.assert_array_equal(parts[WI].dense(), expected)
    assert parts[WI].indices.tolist() == [128 + 17, 128 + 33]


@pytest.mark.parametrize(
    ("one", "name", "message"),
    [
        (encoded([1, 0]), THEIRS, "are not sorted, or exceed"),
        (encoded([1, 127]), THEIRS, "are not sorted, or exceed"),
        (encoded([-1, 5]), THEIRS, "are not sorted, or exceed"),
        (
            encoded([1, 2, 3]),
            THEIRS,
            r"is damaged \(the indices have shape \(3,\), but the values have shape \(2,\)",
        ),
        (encoded([1, 2], size=(8, 16)), THEIRS, r"has shape \(8, 16\), but the base has \(16, 8"),
        (encoded([1, 2]), "encoder.block.1.layer.1.DenseReluDense.wi_2.weight", "did you mean"),
        (b"cos\nsystem\n(" + text("true") + b"tR", THEIRS, "the pickle calls os.system"),
    ],
)
def test_what_is_refused(one, name, message, tmp_path):
    shapes, table = t5_table()
    write(tmp_path, one, name=name)
    with pytest.raises(InputError, match=message):
        read_sft(tmp_path, shapes, table)


def test_a_head_is_whole(tmp_path):
    head = Classifier(num_classes=2)
    shapes, table = table_of(BERT, head, model_type=None, where="x")
    rng = np.random.default_rng(0)
    heads = {
        path: rng.normal(size=shape).astype(np.float32)
        for path, shape in shapes.items()
        if path.startswith("heads/")
    }
    write_sft(tmp_path, {}, heads, table)
    parts, found = read_sft(tmp_path, shapes, table)
    assert parts == {}
    assert found.keys() == heads.keys()
    for path, array in heads.items():
        np.testing.assert_array_equal(found[path], array)
    heads.popitem()
    write_sft(tmp_path, {}, heads, table)
    with pytest.raises(InputError, match="the head is incomplete, because heads/classifier"):
        read_sft(tmp_path, shapes, table)
    with pytest.raises(InputError, match=f"contains no {FILE}"):
        read_sft(tmp_path / "x", shapes, table)
