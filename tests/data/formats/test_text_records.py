"""Files of texts: plain and JSON lines, ids, and what is wrong in them."""

import gzip
import io
import sys
import types

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.formats.pairs import read_texts


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return write


def test_every_line_of_text_is_one(write):
    path = write("a.txt", "one\n\n{\n")
    assert list(read_texts(path)) == [
        (f"{path}:1", "0", "one", ""),
        (f"{path}:2", "1", "", ""),
        (f"{path}:3", "2", "{", ""),
    ]


def test_compressed_files(write):
    path = write("a.jsonl.gz", gzip.compress(b'{"_id": "d", "text": "one"}\n'))
    assert list(read_texts(path)) == [(f"{path}:1", "d", "one", "")]
    path = write("a.txt.gz", gzip.compress(b"one\n"))
    assert list(read_texts(path)) == [(f"{path}:1", "0", "one", "")]
    path = write("b.jsonl.gz", gzip.compress(b'{"text": "one"}\n' * 99)[:30])
    with pytest.raises(InputError, match=r"b\.jsonl\.gz: the file is truncated"):
        list(read_texts(path))


def test_json_lines_with_titles_and_ids(write):
    lines = ['{"_id": "d", "id": 8, "title": "Emma", "text": "A novel."}', "", '{"text": "b"}']
    path = write("a.jsonl", "\n".join([*lines, '{"id": 7, "title": "", "text": "c"}']))
    assert list(read_texts(path)) == [
        (f"{path}:1", "d", "Emma A novel.", ""),
        (f"{path}:3", "1", "b", ""),
        (f"{path}:4", "7", "c", ""),
    ]


def test_a_line_names_its_adapter(write):
    path = write("a.jsonl", '{"text": "b", "adapter": "rte"}\n')
    assert [record.adapter for record in read_texts(path)] == ["rte"]
    with pytest.raises(
        InputError, match=r'a\.jsonl:1: "adapter" must be a string, the name of an adapter'
    ):
        list(read_texts(write("a.jsonl", '{"text": "b", "adapter": 3}\n')))


def test_the_format_may_be_said(write, monkeypatch):
    path = write("a.data", '{"text": "b"}\n')
    assert [record.text for record in read_texts(path)] == ['{"text": "b"}']
    assert [record.text for record in read_texts(path, format="jsonl")] == ["b"]
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=io.BytesIO(b"x\n")))
    assert list(read_texts("-")) == [("standard input:1", "0", "x", "")]


def test_a_text_that_is_too_long_is_refused(write):
    path = write("a.txt", "one\nfour\n")
    records = read_texts(path, longest=4)
    assert next(records).text == "one"
    with pytest.raises(InputError, match=r"a\.txt:2: the line has more than 4 bytes; .*--longest-"):
        next(records)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"good\nb\xff\n", r"a\.txt:2: not .*UTF-8"),
        ("a.jsonl", b'{"text": "a"}\n\n{"text": "\xff"}', r"a\.jsonl:3: not UTF-8"),
        ("a.jsonl", '{"text": "a"}\nb\n', r"a\.jsonl:2: not JSON \("),
        ("a.jsonl", '{"inputs": "a"}\n', r'a\.jsonl:1: must have "text", a string'),
        ("a.jsonl", '{"text": "a", "title": 3}\n', r'a\.jsonl:1: "title" must be a string'),
        ("a.jsonl", '{"text": "a", "_id": [1]}\n', r"a\.jsonl:1: the id must be a string or"),
    ],
)
def test_what_is_wrong_is_named_with_file_and_line(write, name, content, message):
    with pytest.raises(InputError, match=message):
        list(read_texts(write(name, content)))


def test_a_file_that_is_not_there():
    for name in ("none.txt", "none.jsonl"):
        with pytest.raises(InputError, match=rf"{name}: .*No such file"):
            list(read_texts(name))
