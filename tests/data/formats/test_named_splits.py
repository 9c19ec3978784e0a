"""Files whose names say their split."""

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.formats.tables import split_files


def test_names_say_the_split(tmp_path):
    for name in ("b_train.json", "a_train.json.gz", "c_dev.json", "train.txt", "test.json"):
        (tmp_path / name).write_text("")
    (tmp_path / "train.json").mkdir()
    found = split_files(str(tmp_path), suffix=".json", expected="x")
    assert {split: [file.name for file in files] for split, files in found.items()} == {
        "train": ["a_train.json.gz", "b_train.json"],
        "validation": ["c_dev.json"],
    }


def test_nothing_to_train_on(tmp_path):
    (tmp_path / "dev.json").write_text("")
    with pytest.raises(InputError, match=r"has no \*train\*\.json of us"):
        split_files(str(tmp_path), suffix=".json", expected="*train*.json of us")
