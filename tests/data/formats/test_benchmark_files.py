import json
import logging

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.formats.benchmark_files import (
    label_index,
    numbered,
    read_csv,
    read_dpr,
    read_jsonl,
    read_squad,
    read_tsv,
)


@pytest.fixture
def file(tmp_path):
    """A function that writes a file's content."""

    def write(content, name="rows.tsv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def fields(rows):
    return [row.fields for row in rows]


def places(rows, path):
    return [row.where.removeprefix(str(path)) for row in rows]


def test_tsv_has_no_quoting(file):
    path = file('a\tb\nsays "hi\t1\r\n\n"x\t"2\n')
    rows = read_tsv(path, columns=("a",))
    assert fields(rows) == [{"a": 'says "hi', "b": "1"}, {"a": '"x', "b": '"2'}]
    assert places(rows, path) == [":2", ":4"]


def test_tsv_without_a_header_gets_one(file):
    rows = read_tsv(file("gj04\t1\t\tIt rained.\n"), columns=(), header=("s", "l", "x", "t"))
    assert fields(rows) == [{"s": "gj04", "l": "1", "x": "", "t": "It rained."}]


def test_tsv_with_incomplete_rows(file, caplog):
    path = file("id\tq\tl\n1\ta\t0\n2\tb has a\nline end\t1\n3\tc\t1\n")
    with pytest.raises(
        InputError, match=r"rows\.tsv:3: the line has 2 columns, but the header has 3"
    ):
        read_tsv(path, columns=("id",))
    with caplog.at_level(logging.WARNING):
        rows = read_tsv(path, columns=("id",), skip_incomplete=True)
    assert [row.fields["id"] for row in rows] == ["1", "3"]
    assert "skipping 2 rows with too few columns (lines 3, 4)" in caplog.text
    with pytest.raises(
        InputError, match=r"rows\.tsv:2: the line has 3 columns, but the header has 2"
    ):
        read_tsv(file("a\tb\n1\t2\t3\n"), columns=(), skip_incomplete=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\tb\n1\t2\n1\n", "rows.tsv:3: the line has 1 columns, but the header has 2"),
        (b"c\tb\n", "rows.tsv:1: the header lacks a; the columns are c, b"),
        (b"a\ta\n", "rows.tsv:1: the header has column a more than once"),
        (b"a\tb\n1\t\xff\n", "rows.tsv:2: not UTF-8"),
    ],
)
def test_a_bad_tsv_is_named_with_its_line(file, content, message):
    with pytest.raises(InputError) as caught:
        read_tsv(file(content), columns=("a",))
    assert message in str(caught.value)


def test_csv_has_quoting(file):
    path = file('\ufefftext,"a ""b"""\r\n"x, ""y""\nz",1\r\n\r\n,"2"\n"",3', "rows.csv")
    rows = list(read_csv(path, columns=("text",)))
    assert fields(rows) == [
        {"text": 'x, "y"\nz', 'a "b"': "1"},
        {"text": "", 'a "b"': "2"},
        {"text": "", 'a "b"': "3"},
    ]
    assert places(rows, path) == [":2", ":5", ":6"]


def test_csv_of_one_column_and_an_empty_last_entry(file):
    assert fields(read_csv(file("a\n1\n\n2"), columns=("a",))) == [{"a": "1"}, {"a": "2"}]
    assert fields(read_csv(file("a,b\n1,"), columns=("a",))) == [{"a": "1", "b": ""}]


def test_another_separator_and_no_quoting(file):
    path = file('a\tb\n"x\t1"\n')
    rows = list(read_csv(path, columns=("a",), separator="\t", quoting=False))
    assert fields(rows) == [{"a": '"x', "b": '1"'}]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('a,b\n1,2\nsays "hi",3\n', "rows.csv:3: an unquoted entry contains a quotation mark"),
        (
            'a,b\n"x\ny",2\n"says "hi"",3\n',
            "rows.csv:4: an unquoted entry contains a quotation mark",
        ),
        ('a,b\n1,"never closed\n2,3\n', "rows.csv:2: an unquoted entry contains a quotation mark"),
        ("a,b\n1,2\n1,2,3\n", "rows.csv:3: the line has 3 columns, but the header has 2"),
        ("b\n1\n", "rows.csv:1: the header lacks a; the columns are b"),
        ("", "rows.csv: the file is empty; its first line must name the columns"),
        (b"a,b\n1,2\n\xff,3\n", "rows.csv:3: not UTF-8"),
    ],
)
def test_a_bad_csv_is_named_with_its_line(file, content, message):
    with pytest.raises(InputError) as caught:
        list(read_csv(file(content, "rows.csv"), columns=("a",)))
    assert message in str(caught.value)


def test_jsonl_rows(file):
    path = file('{"a": "x", "n": 3}\n\n{"a": "y"}\n')
    rows = list(read_jsonl(path, fields=("a",), numbers=("n",)))
    assert fields(rows) == [{"a": "x", "n": 3}, {"a": "y"}]
    assert places(rows, path) == [":1", ":3"]
    with pytest.raises(InputError, match=r'rows\.tsv:1: must have "b", a string'):
        list(read_jsonl(path, fields=("b",)))


def squad_file(*qas, context="It rained."):
    paragraph = {"context": context, "qas": list(qas)}
    return json.dumps({"version": "1.1", "data": [{"title": "Rain", "paragraphs": [paragraph]}]})


def test_squad_questions(file):
    answer = {"text": "It", "answer_start": 0}
    content = squad_file(
        {"id": "a", "question": "What?", "answers": [answer, answer]},
        {"id": "b", "question": "Who?"},
    )
    first, second = read_squad(file(content))
    assert first == {
        "id": "a",
        "title": "Rain",
        "context": "It rained.",
        "question": "What?",
        "answers": {"text": ["It", "It"], "answer_start": [0, 0]},
    }
    assert second["answers"] == {"text": [], "answer_start": []}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON that can be read"),
        ("[]", "data: the field must be a list; use a file in the format of SQuAD"),
        ('{"data": [1]}', "data[0]: the list entry must be a JSON object"),
        (
            squad_file({"id": "a", "answers": []}),
            'data[0].paragraphs[0].qas[0] must have "question"',
        ),
        (
            squad_file({"id": "a", "question": "?"}, {"id": "a", "question": "!"}),
            "data[0].paragraphs[0].qas[1]: the id 'a' occurs twice, first in data[0]",
        ),
        (
            squad_file({"id": "a", "question": "?", "answers": [{"text": 3}]}),
            'data[0].paragraphs[0].qas[0].answers[0] must have "text", a string',
        ),
    ],
)
def test_a_bad_squad_file_is_named_with_its_place(file, content, message):
    with pytest.raises(InputError) as caught:
        list(read_squad(file(content)))
    assert message in str(caught.value)


def test_questions_without_answer(file):
    answer = {"text": "It", "answer_start": 0}
    question = {"id": "a", "question": "What?", "answers": [answer], "is_impossible": False}
    none = {"id": "b", "question": "Who?", "answers": [], "is_impossible": True}
    plausible = {**none, "plausible_answers": [answer]}
    first, second = read_squad(file(squad_file(question, plausible)), unanswerable=True)
    assert (first["is_impossible"], second["is_impossible"]) == (False, True)
    assert second["answers"] == {"text": [], "answer_start": []}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {},
            'the question must have "is_impossible", true or false; use a file of SQuAD 2.0',
        ),
        ({"is_impossible": 0}, 'qas[0]: the question must have "is_impossible", true or false'),
        (
            {"is_impossible": False},
            'qas[0]: "is_impossible" is false, but the question has no answer; correct',
        ),
        (
            {"is_impossible": True, "answers": [{"text": "It", "answer_start": 0}]},
            'qas[0]: "is_impossible" is true, but the question has answers; correct one of the two',
        ),
        (
            {"is_impossible": False, "answers": [{"text": "It", "answer_start": "0"}]},
            """qas[0].answers[0]: "answer_start" must be a whole number, got '0'""",
        ),
    ],
)
def test_a_bad_file_of_squad_v2_is_named_with_its_place(file, fields, message):
    path = file(squad_file({"id": "a", "question": "?", **fields}))
    with pytest.raises(InputError) as caught:
        list(read_squad(path, unanswerable=True))
    assert str(caught.value).startswith(f"{path}: data[0].paragraphs[0].")
    assert message in str(caught.value)


def test_dpr_records(file):
    path = file("Ann saw Bob as he left.\nhe\nAnn,Bob\nBob\n\nIt is it.\nit\nA, B\nA\n\n")
    assert list(read_dpr(path, "train")) == [
        {
            "sentence": "Ann saw Bob as he left.",
            "pronoun": "he",
            "candidates": ["Ann", "Bob"],
            "label": 1,
        },
        {"sentence": "It is it.", "pronoun": "it", "candidates": ["A", "B"], "label": 0},
    ]
    with pytest.raises(
        InputError, match=r"rows\.tsv:6: an example must have five lines: a sentence, a pronoun"
    ):
        list(read_dpr(file("a he b\nhe\nA,B\nB\n\nA\nit\nA,B\nC\n"), "train"))


def test_rows_are_numbered_by_a_column_or_from_zero(file):
    path = file("index\ta\n7\tx\n3\ty\n")
    rows = read_tsv(path, columns=())
    assert [number for _, number in numbered(rows, column="index")] == [7, 3]
    assert [number for _, number in numbered(rows, column="idx")] == [0, 1]
    with pytest.raises(
        InputError, match=r"rows\.tsv:3: index 7 occurs twice, first in .*rows\.tsv:2"
    ):
        list(numbered(read_tsv(file("index\n7\n7\n"), columns=()), column="index"))
    with pytest.raises(
        InputError, match=r"rows\.tsv:2: column index must be a whole number, got 'x'"
    ):
        list(numbered(read_tsv(file("index\nx\n"), columns=()), column="index"))


def test_label_index(file):
    (row,) = read_tsv(file("label\n1\n"), columns=())
    assert label_index(row, "label", ("0", "1")) == 1
    with pytest.raises(
        InputError, match=r"rows\.tsv:2: column label is '1', but must be one of a, b"
    ):
        label_index(row, "label", ("a", "b"))
    with pytest.raises(
        InputError, match=r"rows\.tsv:2: the column gold is missing; only a test split may"
    ):
        label_index(row, "gold", ("a", "b"))
