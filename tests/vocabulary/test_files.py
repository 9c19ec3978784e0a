"""Writing a vocabulary's file, whole or not at all."""

import os

import pytest

from t5x_lite.errors import InputError
from t5x_lite.vocabulary.files import write_file


def test_parents_are_made(tmp_path):
    path = tmp_path / "a" / "b" / "file"
    assert write_file(b"x", path) == path
    assert path.read_bytes() == b"x"
    assert os.listdir(path.parent) == ["file"]


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot write .*: File exists"):
        write_file(b"x", tmp_path / "file" / "new")
