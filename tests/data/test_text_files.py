from pathlib import Path

import pytest

from t5x_lite.data.text_files import split_files
from t5x_lite.errors import InputError


def make(directory: Path, *names: str) -> str:
    for name in names:
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text("a line\n")
    return str(directory)


def names(files):
    return [file.name for file in files]


def test_files_named_validation_are_held_out(tmp_path):
    directory = make(tmp_path, "b.txt", "a.jsonl", "validation-1.txt", "notes.md", "train.txt")
    splits = split_files(directory)
    assert names(splits["train"]) == ["a.jsonl", "b.txt", "train.txt"]
    assert names(splits["validation"]) == ["validation-1.txt"]


def test_directories_train_and_validation(tmp_path):
    directory = make(tmp_path, "train/a.txt", "train/b.txt", "validation/c.txt")
    splits = split_files(directory)
    assert names(splits["train"]) == ["a.txt", "b.txt"]
    assert names(splits["validation"]) == ["c.txt"]


def test_of_twenty_files_every_twentieth_is_held_out(tmp_path):
    directory = make(tmp_path, *(f"{i:02}.txt" for i in range(41)))
    splits = split_files(directory)
    assert names(splits["validation"]) == ["19.txt", "39.txt"]
    assert len(splits["train"]) == 39


def test_fewer_files_are_on_both_sides(tmp_path):
    splits = split_files(make(tmp_path, "a.txt", "b.txt"))
    assert splits["train"] is splits["validation"]


@pytest.mark.parametrize(
    ("files", "message"),
    [((), "no *.txt or *.jsonl file to train on"), (("validation.txt",), "file to train on")],
)
def test_a_directory_without_training_text_is_refused(tmp_path, files, message):
    with pytest.raises(InputError) as caught:
        split_files(make(tmp_path, *files))
    assert message in str(caught.value)


@pytest.mark.parametrize("directory", ["", "no/such/directory"])
def test_a_missing_directory_is_refused(directory):
    with pytest.raises(InputError, match=f"data.directory '{directory}' is not a directory"):
        split_files(directory)
