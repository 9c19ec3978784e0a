"""Examples in flat files, by their numbers."""

import itertools
import os
import zlib

import numpy as np
import pytest

from t5x_lite.data.cache import files
from t5x_lite.data.cache.files import FlatExamples, Shards

UINT16, UINT32 = np.dtype("<u2"), np.dtype("<u4")


def write(directory, shards, *, ends=None, checksums=None, dtype=UINT16):
    """Examples, each a list of features, of several shards."""
    paths = [directory / str(number) for number in range(len(shards))]
    rows, sums = [], []
    for path, examples in zip(paths, shards, strict=True):
        tokens = [np.concatenate([np.array(f, dtype) for f in example]) for example in examples]
        path.write_bytes(b"".join(one.tobytes() for one in tokens))
        sums += [zlib.crc32(one.tobytes()) for one in tokens]
        sizes = [len(feature) for example in examples for feature in example]
        rows += np.cumsum(sizes).tolist()
    width = len(shards[0][0])
    return FlatExamples(
        Shards(paths, [path.stat().st_size for path in paths]),
        [len(examples) for examples in shards],
        ends=np.array(rows if ends is None else ends, UINT32).reshape(-1, width),
        checksums=np.array(sums if checksums is None else checksums, UINT32),
        dtype=dtype,
    )


def test_the_example_of_the_docstring(tmp_path):
    written = write(tmp_path, [[[[5, 6], [7]], [[8], []]]])
    assert (tmp_path / "0").read_bytes().hex(" ") == "05 00 06 00 07 00 08 00"
    contents, counts = written.read(np.array([1, 0]))
    assert [content.hex(" ") for content in contents] == ["08 00", "05 00 06 00 07 00"]
    assert counts.tolist() == [[1, 0], [2, 1]]


@pytest.mark.parametrize("dtype", [UINT16, np.dtype("<i4")])
def test_examples_of_several_shards_in_any_order(tmp_path, dtype):
    rng = np.random.default_rng(0)
    shards = [
        [[rng.integers(0, 60_000, n).tolist() for n in rng.integers(0, 9, 2)] for _ in range(count)]
        for count in (5, 1, 7)
    ]
    examples = [example for shard in shards for example in shard]
    written = write(tmp_path, shards, dtype=dtype)
    for numbers in (rng.permutation(13), np.array([5, 5, 0, 6]), np.arange(0)):
        contents, counts = written.read(numbers)
        np.testing.assert_array_equal(counts, written.counts(numbers))
        assert [np.frombuffer(content, dtype).tolist() for content in contents] == [
            [*itertools.chain(*examples[number])] for number in numbers
        ]
        assert counts.tolist() == [[len(f) for f in examples[number]] for number in numbers]


def test_few_files_are_open_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_OPEN_FILES", 3)
    before = len(os.listdir("/dev/fd"))
    written = write(tmp_path, [[[[number]]] for number in range(20)])
    contents, _ = written.read(np.arange(20)[::-1])
    assert [content[0] for content in contents] == [*range(20)][::-1]
    assert len(os.listdir("/dev/fd")) <= before + 3
    del written
    assert len(os.listdir("/dev/fd")) == before


def test_every_flipped_bit_is_found_and_named(tmp_path):
    written = write(tmp_path, [[[[3, 4]], [[5, 6]]]])
    content = (tmp_path / "0").read_bytes()
    for bit in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        (tmp_path / "0").write_bytes(damaged)
        number = bit // 32
        written.read(np.array([1 - number]))
        with pytest.raises(
            ValueError, match=f"example {number} in shard 0 does not fit its checksum"
        ):
            written.read(np.array([0, 1]))


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ([2, 3], "the size of shard 0 differs from the total size of its examples"),
        ([5, 4], "an example of the cache ends before its start"),
    ],
)
def test_wrong_ends_are_refused(tmp_path, ends, told):
    with pytest.raises(ValueError, match=told):
        write(tmp_path, [[[[3, 4]], [[5, 6]]]], ends=ends).counts(np.arange(2))


def test_an_end_behind_the_shard_and_a_file_that_was_cut(tmp_path):
    written = write(tmp_path, [[[[3, 4]], [[5, 6]], [[7]]]], ends=[2, 9, 5])
    with pytest.raises(ValueError, match="an example of the cache ends after the end of its shard"):
        written.read(np.array([1]))
    os.truncate(tmp_path / "0", 2)
    with pytest.raises(ValueError, match="0 is truncated"):
        written.read(np.array([0]))
    with pytest.raises(FileNotFoundError):
        Shards([tmp_path / "none"], [3]).read([0], [0], [1])
