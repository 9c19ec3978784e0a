from pathlib import Path

import pytest

from t5x_lite.c4.output import Workdir, differences, refuse_other
from t5x_lite.core.errors import InputError

RUN = {"cleaning": {"max_chars": 10}, "inputs": [{"path": "a", "size": 1}], "kinds": ("json",)}


def opened(output, run=RUN) -> Workdir:
    workdir = Workdir(output)
    workdir.open(run)
    return workdir


def refusal(output, run=RUN) -> str:
    with pytest.raises(InputError) as raised:
        opened(output, run)
    return str(raised.value)


def test_a_run_is_gone_on_with(tmp_path):
    output = tmp_path / "new" / "c4"
    workdir = opened(output)
    assert workdir.finished("read") is None
    (workdir.directory("read") / "part").touch()
    workdir.finish("read", {"pages": 3, "text": "\ud800"})
    (workdir.directory("read") / ".part.123").touch()
    (output / ".c4-train.json.gz.123").touch()
    workdir.close()
    workdir = opened(output)
    assert workdir.finished("read") == {"pages": 3, "text": "\ud800"}
    assert [path.name for path in workdir.directory("read").iterdir()] == ["part"]
    assert sorted(path.name for path in output.iterdir()) == [".work"]
    workdir.discard("read")
    assert not (output / ".work/read").exists()
    workdir.remove()
    assert list(output.iterdir()) == []


def test_one_process_at_a_time(tmp_path):
    workdir = opened(tmp_path)
    assert refusal(tmp_path) == (
        f"--output {tmp_path} is locked by another process that writes to it; wait until that "
        "process ends"
    )
    workdir.close()
    opened(tmp_path).close()


def test_other_runs_are_refused(tmp_path):
    opened(tmp_path).close()
    assert refusal(tmp_path, RUN | {"cleaning": {"max_chars": 11}}) == (
        f"--output {tmp_path} has the output of another run, in which cleaning.max_chars was 10, "
        "but cleaning.max_chars is now 11; "
        f"give another directory, or remove {tmp_path}"
    )
    assert "inputs was 1 entries, but inputs is now 2 entries" in refusal(
        tmp_path, RUN | {"inputs": RUN["inputs"] * 2}
    )


def test_directories_with_something_else_are_refused(tmp_path):
    (tmp_path / "thesis.tex").touch()
    assert refusal(tmp_path) == (
        f"--output {tmp_path} is not empty (thesis.tex) and has no unfinished run; "
        "give a new directory"
    )
    assert "is a file" in refusal(tmp_path / "thesis.tex")


def test_differences():
    before = {"a": [1, {"b": 2}], "c": None}
    assert list(differences(before, {"a": [1, {"b": 3}], "d": 4})) == [
        ("a[1].b", 2, 3),
        ("d", None, 4),
    ]
    refuse_other(Path("c4"), before, before)
