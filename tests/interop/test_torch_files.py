"""PyTorch's archives, spelt out: a dict of tensors is read, and nothing else is run."""

import os
import struct
import zipfile

import ml_dtypes
import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.interop.tensor_files import read_torch, read_tree
from tests.interop.torch_writer import archive, number, state_dict, storage, tensor, text

FLOATS = np.arange(6, dtype=np.float32)


def test_a_tree_has_sizes_and_its_pickle_a_limit(tmp_path):
    nested = b"}(" + text("size") + b"ctorch\nSize\n((" + number(2) + number(3) + b"ttR"
    nested += text("values") + tensor("0", "FloatStorage", 6, shape=(6,), strides=(1,)) + b"u"
    pickled = b"\x80\x02}(" + text("a") + nested + text("b") + b"](" + number(7) + b"eu."
    path = archive(tmp_path / "a.bin", pickled, {"0": FLOATS.tobytes()})
    tree = read_tree(path, longest_pickle=1000)
    assert (tree["a"]["size"], tree["b"]) == ((2, 3), [7])
    np.testing.assert_array_equal(tree["a"]["values"], FLOATS)
    with pytest.raises(InputError, match=r"data.pkl has \d+ bytes, but the limit is 10"):
        read_tree(path, longest_pickle=10)
    with pytest.raises(InputError, match=r"the pickle calls torch.Size, but only tensors"):
        read_torch(path)


def test_tensors_and_their_views(tmp_path):
    pickled = state_dict(
        whole=tensor("0", "FloatStorage", 6, shape=(2, 3), strides=(3, 1)),
        transposed=tensor("0", "FloatStorage", 6, shape=(3, 2), strides=(1, 3)),
        last=tensor("0", "FloatStorage", 6, shape=(2,), strides=(1,), offset=4),
        half=tensor("1", "BFloat16Storage", 2, shape=(2,), strides=(1,)),
        scalar=tensor("2", "LongStorage", 1, shape=(), strides=()),
    )
    storages = {
        "0": FLOATS.tobytes(),
        "1": np.array([1, 2], ml_dtypes.bfloat16).tobytes(),
        "2": np.array([7]).tobytes(),
    }
    found = read_torch(archive(tmp_path / "pytorch_model.bin", pickled, storages))
    np.testing.assert_array_equal(found["whole"], [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(found["transposed"], [[0, 3], [1, 4], [2, 5]])
    np.testing.assert_array_equal(found["last"], [4, 5])
    np.testing.assert_array_equal(found["half"].astype(int), [1, 2])
    assert (found["scalar"].shape, found["scalar"].dtype) == ((), np.int64)
    assert not found["whole"].flags.writeable


def test_the_old_format(tmp_path):
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.")
    with pytest.raises(InputError, match=r"not a zip archive, because PyTorch before 1\.6"):
        read_torch(path)


def test_a_truncated_archive(tmp_path):
    whole = tensor("0", "FloatStorage", 6, shape=(2, 3), strides=(3, 1))
    path = archive(tmp_path / "f.bin", state_dict(w=whole), {"0": FLOATS.tobytes()})
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match=r"f\.bin: the file is damaged, .*not a zip file"):
        read_torch(path)


@pytest.mark.parametrize(
    "name",
    ["os\nsystem", "builtins\neval", "torch\nload", "torch.serialization\n_legacy_load",
     "numpy.core.multiarray\n_reconstruct", "torch._utils\n_rebuild_parameter"],
)  # fmt: skip
def test_an_evil_pickle_runs_nothing(tmp_path, name):
    call = b"c" + name.encode() + b"\n(" + text(f"touch {tmp_path}/pwned") + b"tR"
    path = archive(tmp_path / "f.bin", state_dict(w=call))
    with pytest.raises(InputError) as error:
        read_torch(path)
    asked = name.replace("\n", ".")
    assert f"the pickle calls {asked}, but only tensors are allowed" in str(error.value)
    assert "\n" not in str(error.value)
    assert os.listdir(tmp_path) == ["f.bin"]


W = tensor("0", "FloatStorage", 6, shape=(2, 3), strides=(3, 1))


@pytest.mark.parametrize(
    ("pickled", "reason"),
    [
        (b"\x80\x02" + text("a") + b".", "found a str"),
        (state_dict(w=number(3)), "the value of 'w' is not a tensor"),
        (state_dict(w=text("3")), "the value of 'w' is not a tensor"),
        (state_dict(w=storage("0", "FloatStorage", 6)), "the value of 'w' is not a tensor"),
        (state_dict(w=tensor("0", "FloatStorage", 6, shape=(3, 3), strides=(3, 1))), "beyond"),
        (state_dict(w=tensor("0", "FloatStorage", 6, shape=(2,), strides=(-1,))), "strides"),
        (state_dict(w=tensor("0", "FloatStorage", 9, shape=(2,), strides=(1,))), "the wrong size"),
        (state_dict(w=tensor("9", "FloatStorage", 6, shape=(2,), strides=(1,))), "no item named"),
        (state_dict(w=W)[:-30], "damaged"),
        # An attribute of a tensor, and of the function that makes it.
        (state_dict(w=W + b"}" + text("base") + text("x") + b"sb"), "damaged"),
        (state_dict(w=W, x=b"ctorch._utils\n_rebuild_tensor_v2\n}" + text("__code__") + text("x")
                    + b"s\x86b"), "damaged"),
    ],
)  # fmt: skip
def test_pickles_of_other_things(tmp_path, pickled, reason):
    path = archive(tmp_path / "f.bin", pickled, {"0": FLOATS.tobytes()})
    with pytest.raises(InputError, match=reason) as error:
        read_torch(path)
    assert "\n" not in str(error.value)


def laughs(value, *, times):
    """A pickle of tuples of two, each of them twice the one before, that all share one."""
    twice = b"".join(b"q%ch%c\x86" % (i, i) for i in range(times))
    return value + twice


@pytest.mark.parametrize(
    ("pickled", "reason"),
    [
        (b"\x80\x02}" + b"r" + struct.pack("<I", 1 << 27) + b".", "the memo is larger"),
        (b"\x80\x04\x96" + struct.pack("<Q", 1 << 40) + b".", "damaged"),
        (b"\x80\x02}" * (1 << 20), "has 3145728 bytes, but the limit is 2097152"),
        (
            state_dict(w=tensor("0", "FloatStorage", 6, shape=(100_000, 100_000), strides=(0, 0))),
            r"\(100000, 100000\) has more elements than its storage",
        ),
        (b"\x80\x02}" + laughs(number(1), times=60) + number(1) + b"s.", "damaged"),
        (state_dict(w=laughs(number(1), times=60)), "the value of 'w' is not a tensor"),
        (b"\x80\x02" + b"(" * 100_000 + b"t" * 100_000 + b".", "found a tuple"),
        (b"\x80\x02}]q\x00h\x00a" + b"K\x01s.", "damaged"),
    ],
)
def test_pickles_that_would_take_all_memory_or_time(tmp_path, pickled, reason):
    path = archive(tmp_path / "f.bin", pickled, {"0": FLOATS.tobytes()})
    with pytest.raises(InputError, match=reason):
        read_torch(path)


@pytest.mark.parametrize("member", ["data.pkl", "byteorder"])
def test_members_that_unpack_to_more_than_the_file(tmp_path, member):
    with zipfile.ZipFile(tmp_path / "f.bin", "w") as file:
        if member != "data.pkl":
            file.writestr("archive/data.pkl", state_dict(w=W))
        file.writestr(f"archive/{member}", bytes(1 << 24), zipfile.ZIP_DEFLATED)
    with pytest.raises(InputError, match=f"archive/{member} is compressed"):
        read_torch(tmp_path / "f.bin")


def test_archives_that_cannot_be_mapped(tmp_path):
    storages = {"0": FLOATS.tobytes()}
    for change, reason in (
        ({"compression": zipfile.ZIP_DEFLATED}, "compressed"),
        ({"order": b"big"}, "byte order"),
    ):
        with pytest.raises(InputError, match=reason):
            read_torch(archive(tmp_path / "f.bin", state_dict(w=W), storages, **change))
