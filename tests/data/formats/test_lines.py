import gzip
import io
import pathlib
import sys

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.formats import lines
from t5x_lite.data.formats.lines import read_lines


def test_read_lines_of_files_and_standard_input(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes("één\r\n\ntwee".encode())
    (tmp_path / "b").write_bytes(b"three\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"standard\n")))
    paths = [str(tmp_path / "a"), "-", str(tmp_path / "b")]
    assert list(read_lines(paths)) == ["één", "", "twee", "standard", "three"]


def test_read_lines_of_compressed_files(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress("\ufeffeen\r\n".encode()) + gzip.compress(b"twee"))
    assert list(read_lines([str(path)])) == ["een", "twee"]
    path.write_bytes(path.read_bytes()[:15])
    with pytest.raises(InputError, match=r"a\.txt\.gz: the file is truncated"):
        list(read_lines([str(path)]))


def test_read_lines_names_the_line_that_is_not_utf8(tmp_path):
    path = tmp_path / "latin1.txt"
    path.write_bytes(b"fine\ncaf\xe9\n")
    lines = read_lines([str(path)])
    assert next(lines) == "fine"
    with pytest.raises(InputError, match=r"latin1\.txt:2: not UTF-8 \(byte 0xe9 at position 4\)"):
        next(lines)


def test_read_lines_finds_missing_files_at_the_call(tmp_path):
    (tmp_path / "there").write_text("line\n")
    with pytest.raises(InputError, match="gone: No such file"):
        read_lines([str(tmp_path / "there"), str(tmp_path / "gone")])
    with pytest.raises(InputError, match="Is a directory"):
        read_lines([str(tmp_path)])
    with pytest.raises(InputError, match="no input file"):
        read_lines([])


def test_lines_are_counted_for_progress(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_bytes(b"one\ntwo\nthree")
    assert lines.count_lines(str(tmp_path / "a.txt")) == 2
    assert lines.count_lines("-") is None
    assert lines.count_lines(str(tmp_path / "none.jsonl")) is None
    (tmp_path / "a.gz").write_bytes(b"\n")
    assert lines.count_lines(str(tmp_path / "a.gz")) is None
    monkeypatch.setattr(lines, "_COUNTED", 3)
    assert lines.count_lines(str(tmp_path / "a.txt")) is None


def test_a_long_line_is_refused_before_it_is_in_memory(tmp_path, monkeypatch):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"short\n" + b"x" * 5000))
    found = read_lines([str(path)], longest=1000)
    assert next(found) == "short"
    with pytest.raises(InputError, match=r"a\.txt\.gz:2: the line has more than 1000 bytes"):
        next(found)


def readers(directory):
    """Every reader of lines without a limit of its own, and a file that it reads."""
    from t5x_lite.commands import suites
    from t5x_lite.data.formats import benchmark_files, documents, rankings, retrieval_sets

    path = str(directory / "a.gz")
    source = documents.Source(name="a", files=(path,), weight=1.0)
    return {
        "run": lambda: list(rankings.read_run(path)),
        "qrels": lambda: rankings.read_qrels(path),
        "tags": lambda: list(benchmark_files.read_conll(directory / "a.gz")),
        "marco": lambda: retrieval_sets.judged_pairs(path, path, [path]),
        "answers": lambda: rankings.read_answers(path),
        "sts": lambda: suites.read_pairs(path),
        "weighted lines": lambda: documents.weighted_lines([source], seed=0),
        "text": lambda: list(read_lines([path])),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", readers(pathlib.Path()))
def test_no_reader_takes_a_line_without_end(tmp_path, name):
    with gzip.open(tmp_path / "a.gz", "wb") as file:
        for _ in range(65):
            file.write(b"x " * (1 << 19))
    with pytest.raises(InputError, match=r"a\.gz:1: the line has more than \d+ bytes"):
        readers(tmp_path)[name]()
