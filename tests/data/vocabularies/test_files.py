"""Writing a vocabulary's file, whole or not at all."""

import os

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.vocabularies.added_tokens import write_file
from tests.full_disk import full_disk


def test_parents_are_made(tmp_path):
    path = tmp_path / "a" / "b" / "file"
    assert write_file(b"x", path) == path
    assert path.read_bytes() == b"x"
    assert os.listdir(path.parent) == ["file"]


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot write .*: File exists"):
        write_file(b"x", tmp_path / "file" / "new")


def test_a_full_disk_leaves_no_directory(tmp_path):
    with full_disk(100), pytest.raises(InputError, match=r"spm\.model: File too large"):
        write_file(bytes(1000), tmp_path / "new" / "vocabulary" / "spm.model")
    assert not list(tmp_path.iterdir())
    (tmp_path / "old").mkdir()
    with full_disk(100), pytest.raises(InputError):
        write_file(bytes(1000), tmp_path / "old" / "new" / "spm.model")
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
