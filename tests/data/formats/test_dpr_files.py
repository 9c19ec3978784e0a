"""Pairs of DPR's files."""

import gzip
import json

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.formats import retrieval_sets
from t5x_lite.data.formats.retrieval_sets import pairs_of, split_files


def passage(text, title=""):
    return {"title": title, "text": text, "score": 1.5, "passage_id": "7"}


ROWS = [
    {
        "dataset": "nq_train_psgs_w100",
        "question": " who wrote emma ",
        "answers": ["Jane Austen"],
        "positive_ctxs": [passage("By Jane Austen.", "Emma"), passage("Austen, née J., wrote it.")],
        "negative_ctxs": [passage("A random one.")],
        "hard_negative_ctxs": [
            passage("An actress.", "Emma Stone"),
            passage("By Jane Austen.", "Emma"),
        ],
    },
    {"question": "unknown", "positive_ctxs": [], "hard_negative_ctxs": [passage("x")]},
    {
        "question": "where",
        "positive_ctxs": [passage("Here.", None)],
        "negative_ctxs": [passage('There ]} \\" [{,')],
        "hard_negative_ctxs": [],
    },
]
FOUND = [
    (
        "who wrote emma",
        ["Emma By Jane Austen.", "Austen, née J., wrote it."],
        ["Emma Stone An actress."],
    ),
    ("where", ["Here."], ['There ]} \\" [{,']),
]


def found(*files):
    return [(one.query, list(one.positives), list(one.negatives)) for one in pairs_of(files)]


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
@pytest.mark.parametrize("form", [{}, {"indent": 4}, {"ensure_ascii": False}])
def test_questions_however_much_is_read_at_a_time(tmp_path, monkeypatch, size, form):
    monkeypatch.setattr(retrieval_sets, "_BYTES", size)
    file = tmp_path / "train.json"
    file.write_text(json.dumps(ROWS, **form) + "\n")
    assert found(file) == FOUND


def test_files_of_the_splits(tmp_path):
    packed = gzip.compress(json.dumps(ROWS).encode())
    (tmp_path / "biencoder-nq-train.json.gz").write_bytes(packed)
    (tmp_path / "biencoder-nq-dev.json").write_text(json.dumps(ROWS[2:]))
    (tmp_path / "nq-test.csv").write_text("not read")
    files = split_files(str(tmp_path))
    assert {split: found(*each) for split, each in files.items()} == {
        "train": FOUND,
        "validation": FOUND[1:],
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"question": "a"}', r"json: must be a JSON array of objects: expected \[, got \{"),
        ("", r"json: must be a JSON array of objects: expected \[, got the end"),
        ("[", "question 1: must be a JSON object, got the end"),
        ("[]", "no question has a positive passage"),
        (json.dumps(ROWS[1:2]), "no question has a positive passage"),
        (json.dumps(ROWS)[:-1], r"json: after question 3: expected \], got the end"),
        (json.dumps(ROWS)[:-9], "question 3: not JSON: Unterminated string"),
        (json.dumps(ROWS[:1])[:-1] + "} ]", r"after question 1: expected \], got \}"),
        (json.dumps(ROWS[:1])[:-1] + ", ]", r"question 2: must be a JSON object, got \]"),
        (json.dumps(ROWS) + "[]", "unexpected text after the JSON array"),
        ("[1]", "question 1: must be a JSON object, got 1"),
        ('[{"question": tru}]' + " " * 99, "question 1: not JSON: Expecting value"),
        ('[{"answers": []}]', 'question 1: must have "question", a text'),
        ('[{"question": "a", "positive_ctxs": {}}]', '"positive_ctxs" must be a list of objects'),
        ('[{"question": "a", "positive_ctxs": [{}]}]', '"positive_ctxs" must be a list of objects'),
        (
            '[{"question": "a", "positive_ctxs": [{"text": "b", "title": 1}]}]',
            '"title" in "positive_ctxs" must be a text',
        ),
    ],
)
def test_files_that_are_damaged(tmp_path, content, message):
    file = tmp_path / "train.json"
    file.write_text(content)
    with pytest.raises(InputError, match=message):
        found(file)


def test_a_compressed_file_that_was_cut_off(tmp_path):
    file = tmp_path / "train.json.gz"
    file.write_bytes(gzip.compress(json.dumps(ROWS).encode())[:-9])
    with pytest.raises(InputError, match="is truncated"):
        found(file)


def test_a_directory_without_them(tmp_path):
    (tmp_path / "dev.json").write_text(json.dumps(ROWS))
    for directory in ("", str(tmp_path), str(tmp_path / "none")):
        with pytest.raises(InputError, match=r"has no \*train\*\.json of DPR"):
            split_files(directory)


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_members_however_much_is_read_at_a_time(tmp_path, monkeypatch, size):
    monkeypatch.setattr(retrieval_sets, "_BYTES", size)
    content = {"Version": 1.25, "Data": ROWS, "x\u2028": [1, {"y": -3}], "n": None, "end": 12345}
    file = tmp_path / "a.json"
    file.write_text("\ufeff" + json.dumps(content, indent=1))
    assert list(retrieval_sets.array_elements(file, member="Data")) == ROWS
    with pytest.raises(InputError, match=r"a\.json: the JSON object must have 'data'"):
        list(retrieval_sets.array_elements(file, member="data"))
    file.write_text(json.dumps({"a": ROWS[0], "b": ROWS[1]}))
    assert dict(retrieval_sets.object_members(file)) == {"a": ROWS[0], "b": ROWS[1]}
    file.write_text(json.dumps(content) + "]")
    with pytest.raises(InputError, match="unexpected text after the JSON object"):
        list(retrieval_sets.array_elements(file, member="Data"))
