"""Pairs of SNLI's and MultiNLI's files."""

import gzip
import json

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.formats.pairs import pairs_of, split_files

ROWS = [
    ("entailment", "A man plays.", "Someone plays."),
    ("neutral", "A man plays.", "A man is tired."),
    ("contradiction", "A dog barks.", "A dog is silent."),  # entails nothing
    ("contradiction", "A man plays.", "Nobody plays."),
    ("-", "A man plays.", "He wins."),
    ("entailment", "A man plays.", "Someone plays."),
    ("entailment", "A man plays.", "A person plays."),
    ("contradiction", "A man plays.", "A person plays."),  # said both: it is no negative
]


def lines(rows):
    return "".join(
        json.dumps({"gold_label": label, "sentence1": first, "sentence2": second, "pairID": "1c"})
        + "\n"
        for label, first, second in rows
    )


def test_what_is_entailed_answers_and_what_contradicts_does_not(tmp_path):
    (tmp_path / "snli_1.0_train.jsonl").write_text(lines(ROWS[:4]))
    (tmp_path / "multinli_1.0_train.jsonl.gz").write_bytes(gzip.compress(lines(ROWS[4:]).encode()))
    (tmp_path / "multinli_1.0_dev_matched.jsonl").write_text(lines(ROWS[:1]))
    (tmp_path / "snli_1.0_test.jsonl").write_text("not read")
    files = split_files(str(tmp_path))
    assert {split: len(each) for split, each in files.items()} == {"train": 2, "validation": 1}
    [found] = pairs_of(files["train"])
    assert (found.query, sorted(found.positives), list(found.negatives)) == (
        "A man plays.",
        ["A person plays.", "Someone plays."],
        ["Nobody plays."],
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lines(ROWS[:1]) + lines([("maybe", "a", "b")]), r"jsonl:2: \"gold_label\" must be one of"),
        ('{"gold_label": "entailment", "sentence1": "a"}\n', "jsonl:1: must have .*sentence2"),
        ("{", "jsonl:1: not JSON"),
        (lines(ROWS[2:3]), "no premise has a sentence labeled entailment"),
    ],
)
def test_files_that_are_damaged(tmp_path, content, message):
    (tmp_path / "train.jsonl").write_text(content)
    with pytest.raises(InputError, match=message):
        pairs_of(split_files(str(tmp_path))["train"])


def test_a_directory_without_them(tmp_path):
    (tmp_path / "dev.jsonl").write_text(lines(ROWS))
    for directory in ("", str(tmp_path), str(tmp_path / "none")):
        with pytest.raises(InputError, match=r"has no \*train\*\.jsonl of SNLI or MultiNLI"):
            split_files(directory)
