import json

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.formats.rankings import Question, read_answers, read_mkqa


def written(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    return str(tmp_path / name)


def test_objects(tmp_path):
    path = written(
        tmp_path, "a.jsonl", '{"_id": "q", "answers": ["x"]}\n{"id": 2, "answers": []}\n'
    )
    assert read_answers(path) == {"q": ["x"], "2": []}


def test_dprs_form(tmp_path):
    text = 'who?\t[\'Ann\', "O\'Brien"]\nwhere?\t"[\'the ""Old"" Town\']"\n'
    path = written(tmp_path, "nq.csv", text)
    assert read_answers(path) == {"0": ["Ann", "O'Brien"], "1": ['the "Old" Town']}


@pytest.mark.parametrize("header", ["question\tanswers", '"Query"\t"answers"'])
def test_a_first_line_of_names_is_no_question(tmp_path, header):
    path = written(tmp_path, "nq.csv", f"{header}\nwho?\t['Ann']\nwhere?\t['here']\n")
    assert read_answers(path) == {"0": ["Ann"], "1": ["here"]}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '{"answers": ["x"]}\n', 'a.jsonl:1: must have "_id" and "answers"'),
        ("a.jsonl", '{"_id": "q", "answers": "x"}\n', "a.jsonl:1: must have"),
        ("a.jsonl", '{"_id": "q", "answers": []}\n' * 2, "a.jsonl:2: the id 'q' comes twice"),
        ("a.csv", "who?\n", r"a.csv:1: the line must be question TAB"),
        ("a.csv", "who?\tlen('x')\n", r"a.csv:1: the line must be question TAB"),
        ("a.csv", "who?\t[1]\n", r"a.csv:1: the line must be question TAB"),
        ("a.csv", "", "no question"),
    ],
)
def test_what_is_wrong(tmp_path, name, text, message):
    with pytest.raises(InputError, match=message):
        read_answers(written(tmp_path, name, text))


def test_mkqa(tmp_path):
    def record(number, kind, **german):
        english = [{"type": kind, "text": "Paris", "aliases": []}]
        return {
            "example_id": number,
            "queries": {"en": "where", "de": "wo"},
            "answers": {"en": english, "de": [german]},
        }

    records = [
        record(1, "entity", text="Paris", aliases=["Lutetia"]),
        record(2, "unanswerable", text=None),
        record(3, "binary", text="ja"),
        record(4, "long_answer", text=None),
        record(5, "date", text="1914", type="date"),
    ]
    path = written(tmp_path, "mkqa.jsonl", "\n".join(map(json.dumps, records)))
    assert read_mkqa(path, "de") == [
        Question("1", "wo", ["Paris", "Lutetia"]),
        Question("5", "wo", ["1914"]),
    ]
    with pytest.raises(InputError, match=r"mkqa.jsonl:1: must have .* in the languages en and fr"):
        read_mkqa(path, "fr")
