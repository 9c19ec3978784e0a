"""Files that ArrayRecord writes, read by ranges."""

import sys

import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.formats.array_records import (
    LAST_BYTES,
    footer_range,
    plain_chunk,
    record_starts,
    records,
)


def write(path, texts, options="group_size:1"):
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path), options)
    for text in texts:
        writer.write(text)
    writer.close()
    return path.read_bytes()


def texts_of(count, longest=900, seed=0):
    rng = np.random.default_rng(seed)
    return [
        rng.integers(0, 3000, n).astype("<u2").tobytes() for n in rng.integers(0, longest, count)
    ]


def starts_of(content, count):
    start, end = footer_range(len(content), content[-LAST_BYTES:])
    return record_starts(content[start:end], start, examples=count)


def read(content, starts, numbers, sizes):
    chunks = [plain_chunk(content[starts[i] : starts[i + 1]], int(starts[i])) for i in numbers]
    return records(chunks, sizes)


@pytest.mark.parametrize("texts", [texts_of(1), [b"", b"a"], texts_of(700), texts_of(9, 90_000)])
@pytest.mark.parametrize("options", ["group_size:1", "group_size:1,uncompressed"])
def test_any_records_of_a_file(tmp_path, texts, options):
    """Over the borders of blocks of 64 KiB, too."""
    content = write(tmp_path / "a", texts, options)
    starts = starts_of(content, len(texts))
    assert len(starts) == len(texts) + 1
    numbers = np.random.default_rng(1).permutation(len(texts)).tolist()
    expected = [texts[number] for number in numbers]
    assert read(content, starts, numbers, [len(text) for text in expected]) == expected


def test_what_is_no_such_file_is_refused(tmp_path):
    texts = texts_of(50)
    content = write(tmp_path / "a", texts)
    for wrong in (b"", content[:-1], bytes(len(content)), content[:LAST_BYTES]):
        with pytest.raises(ValueError, match=r"."):
            starts_of(wrong, 50)
    with pytest.raises(
        ValueError, match="the ArrayRecord file has 50 record groups, but should have 51"
    ):
        starts_of(content, 51)
    grouped = write(tmp_path / "b", texts, "group_size:10")
    with pytest.raises(
        ValueError, match="the ArrayRecord file has 5 record groups, but should have 50"
    ):
        starts_of(grouped, 50)
    other = write(tmp_path / "c", texts, "group_size:1,brotli")
    with pytest.raises(ValueError, match="unsupported compression"):
        starts_of(other, 50)


def test_damage_is_found_wherever_it_is(tmp_path):
    texts = texts_of(20, 60)
    content = write(tmp_path / "a", texts)
    starts = starts_of(content, 20)
    sizes = [len(text) for text in texts]
    first = int(starts[3])
    for place in range(first, int(starts[4])):
        damaged = bytearray(content)
        damaged[place] ^= 4
        with pytest.raises(ValueError, match=r"."):
            read(bytes(damaged), starts, range(20), sizes)
    with pytest.raises(ValueError, match="differs from the expected length"):
        read(content, starts, [3], [sizes[3] + 2])
    with pytest.raises(ValueError, match=r"truncated|expected length"):
        plain_chunk(content[first : first + 30], first)


def test_without_the_package_that_decompresses(tmp_path, monkeypatch):
    content = write(tmp_path / "a", texts_of(3))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(InputError, match=r"0.1 requires the package zstandard.*\[zst\]"):
        starts_of(content, 3)
