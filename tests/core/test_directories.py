"""New directories: whole or not at all."""

import os

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.core.files import new_directory


@pytest.mark.parametrize("exists", [False, True])
def test_the_directory_gets_its_name_at_the_end(tmp_path, exists):
    target = tmp_path / "a" / "b"
    if exists:
        target.mkdir(parents=True)
    with new_directory(target) as directory:
        assert directory.parent == target.parent
        (directory / "file").write_text("x")
        assert not (target / "file").exists()
    assert (target / "file").read_text() == "x"
    assert os.listdir(target.parent) == ["b"]


@pytest.mark.parametrize("error", [InputError("wrong"), KeyboardInterrupt(), ValueError("bug")])
def test_nothing_is_left_of_a_block_that_fails(tmp_path, error):
    def fail():
        with new_directory(tmp_path / "a" / "b") as directory:
            (directory / "file").write_text("x")
            raise error

    with pytest.raises(type(error)):
        fail()
    assert os.listdir(tmp_path) == []


def test_what_is_there_is_not_touched(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (tmp_path / "file").touch()
    for name, message in {"full": "is not empty", "file": "is not a directory"}.items():
        with pytest.raises(InputError, match=message), new_directory(tmp_path / name):
            raise AssertionError
    assert sorted(os.listdir(tmp_path)) == ["file", "full"]


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    message = r"cannot be written: .*File exists"
    with pytest.raises(InputError, match=message), new_directory(tmp_path / "file" / "new"):
        raise AssertionError


def test_a_disk_that_is_full(tmp_path):
    message = r"new cannot be written: .*No space left"
    with pytest.raises(InputError, match=message), new_directory(tmp_path / "new"):
        raise OSError(28, "No space left on device")
    assert os.listdir(tmp_path) == []


def test_a_source_that_cannot_be_read_is_not_taken_for_the_destination(tmp_path):
    message = r"^[^ ]*source: No such file"
    with pytest.raises(InputError, match=message), new_directory(tmp_path / "new"):
        (tmp_path / "source").read_bytes()
