"""Passages of the files in which collections come, and what is wrong in them."""

import gzip
import json

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.formats.pairs import Passage, line_reader, read_passages, titled_text

DPR = 'id\ttext\ttitle\n1\t"Aaron ( or ; ""Ahärôn"") is a prophet"\tAaron\n2\tplain\t"the ""T"""\n'
MARCO = '0\tsay "a"\n7\t"b" c\n'


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return write


def test_dpr_s_passages_are_quoted_and_named_in_the_first_line(write):
    path = write("psgs_w100.tsv.gz", gzip.compress(DPR.encode()))
    assert list(read_passages(path)) == [
        (f"{path}:2", "1", "Aaron", 'Aaron ( or ; "Ahärôn") is a prophet'),
        (f"{path}:3", "2", 'the "T"', "plain"),
    ]


def test_ms_marco_s_passages_have_no_names_and_no_quotation(write):
    path = write("collection.tsv", MARCO)
    assert list(read_passages(path)) == [
        (f"{path}:1", "0", "", 'say "a"'),
        (f"{path}:2", "7", "", '"b" c'),
    ]


def test_ms_marco_s_documents_have_an_address_and_a_title(write):
    path = write("msmarco-docs.tsv", "D1\thttps://a.b\tEmma\tA novel.\n")
    assert list(read_passages(path)) == [(f"{path}:1", "D1", "Emma", "A novel.")]


def test_columns_may_be_named_in_any_order_and_lines_may_be_blank(write):
    path = write("a.tsv", "title\tdocid\ttext\n\nEmma\t3\tA novel.\n")
    assert list(read_passages(path)) == [(f"{path}:3", "3", "Emma", "A novel.")]


def test_json_lines_and_plain_lines(write):
    path = write("corpus.jsonl", '{"docid": "d#1", "title": "Emma", "text": "A novel."}\n')
    assert list(read_passages(path)) == [(f"{path}:1", "d#1", "Emma", "A novel.")]
    path = write("a.txt", "one\n\n")
    assert list(read_passages(path)) == [(f"{path}:1", "0", "", "one"), (f"{path}:2", "1", "", "")]
    path = write("a.data", MARCO)
    assert next(read_passages(path, format="tsv")).text == 'say "a"'


def test_title_and_text_stand_together():
    assert Passage("", "", "Emma", "A novel.").whole == "Emma A novel."
    assert titled_text({"text": "b"}) == "b"


def test_nothing_is_in_an_empty_file(write):
    for name in ("a.tsv", "a.txt", "a.jsonl"):
        assert list(read_passages(write(name, ""))) == []


def test_a_file_is_read_as_its_passages_are_asked_for(write):
    passages = read_passages(write("a.tsv", "1\ta\n2\n"))
    assert next(passages).text == "a"
    with pytest.raises(InputError, match=r"a\.tsv:2: must have 2 columns, id TAB text, got 1: '2'"):
        next(passages)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "1\ta\tb\n", r"a\.tsv:1: the first line has 3 columns.* id TAB text TAB title"),
        ("a.tsv", 'id\ttext\n1\t"a\n', r"a\.tsv:2: must have 2 columns, id TAB text, got 0"),
        ("a.tsv", 'id\ttext\n1\t"a"b\n', r"a\.tsv:2: must have 2 columns"),
        ("a.tsv", b"1\t\xff\n", r"a\.tsv:1: not UTF-8"),
        ("a.jsonl", '{"text": "a", "_id": [1]}\n', r"a\.jsonl:1: the id must be a string or"),
        ("a.jsonl", '{"title": "a"}\n', r'a\.jsonl:1: must have "text"'),
    ],
)
def test_what_is_wrong_is_named_with_file_and_line(write, name, content, message):
    with pytest.raises(InputError, match=message):
        list(read_passages(write(name, content)))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("psgs.tsv", DPR),
        ("collection.tsv", MARCO),
        ("a.jsonl", '{"id": 1, "title": "Emma", "text": "b"}\n'),
        ("a.txt", "one\n"),
    ],
)
def test_lines_may_be_read_in_any_order(write, name, content):
    path = write(name, content)
    read = line_reader(path)
    lines = list(enumerate(content.encode().splitlines(), start=1))
    found = [read(line.strip(), f"{path}:{number}") for number, line in reversed(lines)]
    there = [(p.where, p.title, p.text) for p in reversed(found) if p is not None]
    assert there == [(p.where, p.title, p.text) for p in read_passages(path)]


def test_a_title_that_is_empty_may_be_stripped_from_its_line(write):
    read = line_reader(write("a.tsv", "id\ttext\ttitle\n1\tb\t\n"))
    assert read(b"1\tb", "a.tsv:2") == ("a.tsv:2", "1", "", "b")


@pytest.mark.parametrize(
    "header",
    [
        "pid\tpassage",
        "qid\tquery",
        "query-id\ttext",
        "_id\tcontents",
        '"docid"\t"body"',
        "ID\tText",
    ],
)
def test_a_first_line_of_names_is_no_passage(write, header):
    path = write("a.tsv", f'{header}\n1\tsay "a"\n2\tquery\n')
    assert [each[1:] for each in read_passages(path)] == [("1", "", 'say "a"'), ("2", "", "query")]
    read = line_reader(path)
    assert read(header.encode(), f"{path}:1") is None
    assert read(b"2\tquery", f"{path}:3").text == "query"


def test_quotation_marks_are_text_unless_the_column_is_called_text(write):
    path = write("a.tsv", 'pid\tpassage\n1\t"Hello," he said\n')
    assert next(read_passages(path)).text == '"Hello," he said'


def test_columns_of_documents_may_be_named_and_others_are_not_read(write):
    path = write("a.tsv", "docid\turl\ttitle\tbody\nD1\thttps://a.b\tEmma\tA novel.\n")
    assert [each[1:] for each in read_passages(path)] == [("D1", "Emma", "A novel.")]
    path = write("b.tsv", "id\ttext\ttitle\tlanguage\n1\tA novel.\tEmma\ten\n")
    assert [each[1:] for each in read_passages(path)] == [("1", "Emma", "A novel.")]


@pytest.mark.parametrize("line", ["1\tquery", "id\tpid", "text\tquery", "d1\ttext"])
def test_a_first_line_of_data_is_a_passage(write, line):
    path = write("a.tsv", f"{line}\n2\tb\n")
    assert [each.id for each in read_passages(path)] == [line.split("\t")[0], "2"]


def test_contents_as_pyserini_writes_them(tmp_path):
    file = tmp_path / "docs.jsonl"
    rows = [
        {"id": "1#0", "contents": "Title\n\nText\n\nmore"},
        {"id": "1#1", "contents": "Two\nlines\n\nof text"},
        {"id": "1#2", "contents": "Text"},
        {"id": "1#3", "contents": "not read", "text": "Text"},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = [(one.id, one.title, one.text) for one in read_passages(str(file))]
    assert found == [
        ("1#0", "Title", "Text\n\nmore"),
        ("1#1", "", "Two\nlines\n\nof text"),
        ("1#2", "", "Text"),
        ("1#3", "", "Text"),
    ]
    reader = line_reader(str(file))
    line = json.dumps(rows[0]).encode()
    assert reader(line, f"{file}:1") == next(iter(read_passages(str(file))))
    file.write_text('{"id": "1", "contents": 3}\n')
    with pytest.raises(InputError, match=r'docs\.jsonl:1: "contents" must be a string'):
        list(read_passages(str(file)))
