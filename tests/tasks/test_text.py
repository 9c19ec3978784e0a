from pathlib import Path

import pytest

from t5x_lite.errors import InputError


@pytest.fixture(scope="module")
def text():
    from tasks import text

    return text


def make(directory: Path, *names: str) -> str:
    for name in names:
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text("a line\n")
    return str(directory)


def names(files):
    return [file.name for file in files]


def test_files_named_validation_are_held_out(text, tmp_path):
    directory = make(tmp_path, "b.txt", "a.jsonl", "validation-1.txt", "notes.md", "train.txt")
    splits = text.split_files(directory)
    assert names(splits["train"]) == ["a.jsonl", "b.txt", "train.txt"]
    assert names(splits["validation"]) == ["validation-1.txt"]


def test_directories_train_and_validation(text, tmp_path):
    directory = make(tmp_path, "train/a.txt", "train/b.txt", "validation/c.txt")
    splits = text.split_files(directory)
    assert names(splits["train"]) == ["a.txt", "b.txt"]
    assert names(splits["validation"]) == ["c.txt"]


def test_of_twenty_files_every_twentieth_is_held_out(text, tmp_path):
    directory = make(tmp_path, *(f"{i:02}.txt" for i in range(41)))
    splits = text.split_files(directory)
    assert names(splits["validation"]) == ["19.txt", "39.txt"]
    assert len(splits["train"]) == 39


def test_of_fewer_files_about_every_hundredth_line_is_held_out(text, tmp_path):
    lines_and_blanks = "".join(f"{i}\n\n" for i in range(2000))
    (tmp_path / "a.txt").write_text(lines_and_blanks + "7\n" * 5)
    splits = text.split_files(str(tmp_path))

    def lines(split):
        return [int(e["text"]) for e in text._lines(splits, split).as_numpy_iterator()]

    train, validation = lines("train"), lines("validation")
    assert sorted({*train, *validation}) == list(range(2000))
    assert not {*train} & {*validation}
    assert 10 < len({*validation}) < 40
    assert validation == lines("validation")


@pytest.mark.parametrize(
    ("files", "message"),
    [((), "no *.txt or *.jsonl file to train on"), (("validation.txt",), "file to train on")],
)
def test_a_directory_without_training_text_is_refused(text, tmp_path, files, message):
    with pytest.raises(InputError) as caught:
        text.split_files(make(tmp_path, *files))
    assert message in str(caught.value)


@pytest.mark.parametrize("directory", ["", "no/such/directory"])
def test_a_missing_directory_is_refused(text, directory):
    with pytest.raises(InputError, match=f"data.directory '{directory}' is not a directory"):
        text.split_files(directory)
