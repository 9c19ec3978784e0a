"""Tests of run.json."""

import json

import pytest

import t5x_lite
from t5x_lite.core.errors import invoked_as
from t5x_lite.core.tracking import RUN_FILE, Start, add_start, read_starts


def test_every_start_is_kept_the_newest_last(tmp_path):
    with invoked_as(["train", "c.py"]):
        (tmp_path / RUN_FILE).write_bytes(add_start(tmp_path, step=0, devices="1 cpu"))
    with invoked_as(["train", "c.py", "--steps", "20"]):
        (tmp_path / RUN_FILE).write_bytes(add_start(tmp_path, step=10, devices="1 cpu"))
    first, second = read_starts(tmp_path)
    assert (first.command, first.step) == ("t5x-lite train c.py", 0)
    assert (second.command, second.step) == ("t5x-lite train c.py --steps 20", 10)
    assert second.versions["t5x_lite"] == t5x_lite.__version__
    assert {"python", "jax", "numpy"} <= second.versions.keys()


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '{"starts": 3}', '{"starts": [{"command": 3}]}', "[" * 5000]
)
def test_a_damaged_file_says_nothing(tmp_path, content):
    (tmp_path / RUN_FILE).write_text(content)
    assert read_starts(tmp_path) == []


def test_unknown_fields_are_left_out_and_old_starts_dropped(tmp_path):
    starts = [{"command": str(i), "more": 1} for i in range(30)]
    (tmp_path / RUN_FILE).write_text(json.dumps({"starts": starts}))
    assert read_starts(tmp_path)[0] == Start(command="0")
    (tmp_path / RUN_FILE).write_bytes(add_start(tmp_path, step=1, devices=""))
    assert len(read_starts(tmp_path)) == 20
