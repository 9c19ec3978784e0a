import gzip

import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.formats import documents
from t5x_lite.data.formats.documents import Files, line_of


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def in_order(files, unit=0):
    blocks, number = [], 0
    while (block := files.read(unit, number)) is not None:
        blocks.append([text.decode() for text in block.texts])
        number += 1
    return blocks


def by_parts(files):
    found = []
    for part in range(files.num_parts):
        number = 0
        while (block := files.read_part(part, number)) is not None:
            found += zip(block.places, (text.decode() for text in block.texts), strict=True)
            number += 1
    return found


def test_lines_by_blocks_of_128(tmp_path):
    file = write(tmp_path / "a.txt", "\n".join(f" {i}\r" for i in range(130)) + "\n\n")
    files = Files([file])
    assert in_order(files) == [[str(i) for i in range(128)], ["128", "129"]]
    assert files.read(0, 1).texts == [b"128", b"129"]  # as a restored iterator asks for it
    assert files.read(0, 1).places == [128, 129]


def test_an_empty_file_and_one_line(tmp_path):
    empty, one = write(tmp_path / "a.txt", ""), write(tmp_path / "b.txt", "\ufeffone")
    files = Files([empty, one])
    assert (in_order(files, 0), in_order(files, 1)) == ([], [["one"]])
    assert by_parts(files) == [(0, "one")]


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(documents, "PART_BYTES", 16)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_parts_have_each_line_once(tmp_path, end):
    rng = np.random.default_rng(0)
    for number in range(20):
        lines = ["é" * int(size) for size in rng.integers(0, 30, size=12)]
        content = "\ufeff" * (number % 2) + (end or "\n").join(lines) + end
        file = write(tmp_path / f"{number}.txt", content)
        files = Files([file])
        assert files.num_parts == max(1, -(-len(content.encode()) // 16))
        found = by_parts(files)
        assert [text for _, text in found] == [line for line in lines if line]
        places = [line_of(str(file), place) - 1 for place, _ in found]
        if files.num_parts > 1:
            assert places == [i for i, line in enumerate(lines) if line]


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("read", [in_order, by_parts])
def test_a_line_that_is_too_long_is_refused(tmp_path, monkeypatch, read):
    monkeypatch.setattr(documents, "LONGEST_LINE", 20)
    file = write(tmp_path / "a.txt", "0123456789\n" * 4 + "x" * 19 + "\n" + "y" * 20 + "\n")
    with pytest.raises(
        InputError, match=r"a\.txt:6: the line has more than 20 bytes; divide the line"
    ):
        read(Files([file]))


@pytest.mark.usefixtures("small_parts")
def test_parts_have_each_document_once(tmp_path):
    rng = np.random.default_rng(1)
    for number in range(40):
        lines = [("word " * int(size)).strip() for size in rng.integers(0, 4, size=20)]
        file = write(tmp_path / f"{number}.txt", "\n".join(lines))
        files = Files([file], documents=[True])
        expected = [text for block in in_order(files) for text in block]
        assert [text for _, text in by_parts(files)] == expected


@pytest.mark.usefixtures("small_parts")
def test_compressed_files_have_one_part(tmp_path):
    a = write(tmp_path / "a.txt.gz", gzip.compress(b"one\n" * 300))
    b = write(tmp_path / "b.txt", "two\n" * 8)
    files = Files([a, b])
    assert files.num_parts == 3
    assert [text for _, text in by_parts(files)] == ["one"] * 300 + ["two"] * 8


@pytest.mark.usefixtures("small_parts")
def test_a_file_that_grew_or_shrank_is_read_as_far_as_it_was(tmp_path):
    file = write(tmp_path / "a.txt", "one\n" * 16)
    files = Files([file])
    assert files.num_parts == 4
    write(file, "one\n" * 32)
    assert len(by_parts(files)) == 16
    write(file, "one\n" * 5)
    assert len(by_parts(files)) == 5


@pytest.mark.usefixtures("small_parts")
def test_what_is_wrong_is_named_with_its_line(tmp_path):
    file = write(tmp_path / "a.txt", b"a line of text\n" * 9 + b"caf\xe9\n")
    for whole in (False, True):
        files = Files([file], documents=[whole])
        with pytest.raises(InputError, match=r"a\.txt:10: not UTF-8: convert it to UTF-8"):
            in_order(files)
    with pytest.raises(InputError, match=r"a\.txt:10: not UTF-8"):
        by_parts(Files([file]))
    cut = write(tmp_path / "b.txt.gz", gzip.compress(b"line\n" * 9999)[:50])
    with pytest.raises(InputError, match=r"b\.txt\.gz: the file is truncated"):
        in_order(Files([cut]))
    with pytest.raises(InputError, match=r"cannot read .*c\.txt: No such file"):
        in_order(Files([tmp_path / "c.txt"]))
