import numpy as np
import pytest

from t5x_lite.errors import InputError
from t5x_lite.records.string_table import StringTable, open_array, save_array

STRINGS = ["d7", "", "é 日", "NA"]


def test_there_and_back(tmp_path):
    table = StringTable.of(iter(STRINGS))
    assert list(table) == STRINGS
    table.save(tmp_path / "ids")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ids.bytes.npy", "ids.ends.npy"]
    opened = StringTable.open(tmp_path / "ids")
    assert [opened[i] for i in range(len(opened))] == STRINGS
    assert opened.part(1, 3) == ["", "é 日"]
    assert opened.part(3, 9) == ["NA"]


@pytest.mark.parametrize("strings", [[], [""]])
def test_nothing_there_and_back(tmp_path, strings):
    StringTable.of(strings).save(tmp_path / "ids")
    assert list(StringTable.open(tmp_path / "ids")) == strings


def test_what_is_no_array_is_refused(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        open_array(tmp_path / "a.npy")
    for content in (b"", b"text that is no array"):
        (tmp_path / "a.npy").write_bytes(content)
        with pytest.raises(InputError, match="not an array of NumPy"):
            open_array(tmp_path / "a.npy")
    save_array(tmp_path / "a.npy", np.arange(1000))
    whole = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(whole[:-8])
    with pytest.raises(InputError, match="cut off"):
        open_array(tmp_path / "a.npy")
