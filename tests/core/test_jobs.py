"""Outputs that are gone on with: after a kill, torn ones, by another command, by two at once."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.core.jobs import (
    AppendedFiles,
    is_resumable,
    resumable_array,
    resumable_directory,
    resumable_writer,
)
from tests.full_disk import MESSAGE, full_disk

LINES = [{"n": number, "é": "漢"} for number in range(7)]
WHOLE = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in LINES)


class Killed(BaseException):
    pass


@pytest.fixture(autouse=True)
def _own_directory(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def names():
    return sorted(path.name for path in Path().iterdir())


def write(*, until=7, chunk=2, error=Killed, path="out", **identity):
    """Writes the lines that are missing, and fails after `until`; returns how many were there."""
    with resumable_writer(path, identity=identity, chunk=chunk) as file:
        begin = file.done
        for start in range(begin, 7, chunk):
            if start >= until:
                raise error
            file.write(*LINES[start : start + chunk])
    return begin


def kill(**options):
    with pytest.raises(options.get("error", Killed)):
        write(**options)


def test_a_whole_output():
    assert write() == 0
    assert Path("out").read_text() == WHOLE
    assert names() == ["out"]


def test_what_was_killed_is_gone_on_with(caplog):
    caplog.set_level(logging.INFO)
    Path("out").write_text("old")
    kill(until=2, seed=1)
    assert Path("out").read_text() == "old"
    assert names() == ["out", "out.partial", "out.partial.json"]
    kill(until=4, seed=1)
    assert write(seed=1) == 4
    assert Path("out").read_text() == WHOLE
    assert names() == ["out"]
    partial = Path("out.partial").resolve()
    assert caplog.messages == [
        f"saved 2 lines in {partial}; run the same command again to resume",
        f"resuming an unfinished output after 2 lines of {partial}",
        f"saved 4 lines in {partial}; run the same command again to resume",
        f"resuming an unfinished output after 4 lines of {partial}",
    ]


@pytest.mark.parametrize(
    ("torn", "kept"),
    [
        ('{"n": 4, "', 4),
        ("".join(WHOLE.splitlines(keepends=True)[4:5]), 4),
        ("".join(WHOLE.splitlines(keepends=True)[4:6]) + "{", 6),
        ("\0" * 60 + "\n" + WHOLE, 4),
    ],
)
def test_a_torn_line_and_a_part_of_a_chunk_are_cut(torn, kept):
    kill(until=4)
    with Path("out.partial").open("a") as file:
        file.write(torn)
    assert write() == kept
    assert Path("out").read_text() == WHOLE


@pytest.mark.parametrize(
    ("options", "what"), [({"seed": 2}, "seed"), ({"seed": 1, "input": "b"}, "input")]
)
def test_another_command_leaves_the_lines_as_they_are(options, what):
    kill(until=4, seed=1)
    before = Path("out.partial").read_bytes(), Path("out.partial.json").read_bytes()
    with pytest.raises(InputError) as raised:
        write(**options)
    assert str(raised.value) == (
        f"{Path('out.partial').resolve()} contains lines of another command (other {what}); run "
        "the command that wrote the file again, delete the file, or choose another output than out"
    )
    assert (Path("out.partial").read_bytes(), Path("out.partial.json").read_bytes()) == before
    assert write(seed=1) == 4
    assert Path("out").read_text() == WHOLE


@pytest.mark.parametrize("state", [None, '{"se', "[]"])
def test_a_file_that_nobody_described_is_left_as_it_is(state):
    Path("out.partial").write_text("mine")
    if state is not None:
        Path("out.partial.json").write_text(state)
    with pytest.raises(InputError, match="contains output of an unknown command; run"):
        write()
    assert Path("out.partial").read_text() == "mine"
    assert names() == (["out.partial"] if state is None else ["out.partial", "out.partial.json"])


def test_without_lines_another_command_begins():
    Path("out.partial").write_text("")
    Path("out.partial.json").write_text('{"seed": 1}')
    assert write(seed=2) == 0
    assert names() == ["out"]


def test_nothing_stays_of_a_command_that_wrote_nothing():
    kill(until=0)
    assert names() == []


def test_bad_input_leaves_nothing_but_what_an_earlier_process_wrote():
    kill(until=4, error=InputError)
    assert names() == []
    kill(until=2)
    kill(until=4, error=InputError)
    assert names() == ["out.partial", "out.partial.json"]


def test_two_processes_do_not_write_the_same_output():
    with resumable_writer("out", identity={}, chunk=2) as file:
        file.write(*LINES[:2])
        with pytest.raises(
            InputError, match="out: another process is writing this output; wait until"
        ):
            write()
    assert Path("out").read_text() == "".join(WHOLE.splitlines(keepends=True)[:2])


def test_a_link_stays_and_so_do_permissions():
    Path("real").write_text("old")
    Path("real").chmod(0o640)
    Path("out").symlink_to("real")
    write()
    assert Path("out").is_symlink()
    assert Path("real").read_text() == WHOLE
    assert Path("real").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("path", ["none/out", "directory"])
def test_an_output_that_cannot_be_written(path):
    Path("directory").mkdir()
    Path("directory.partial").mkdir()
    with pytest.raises(InputError, match=r"cannot be written \((No such file|Is a dir)"):
        write(path=path)


def test_what_can_be_resumed():
    Path("file").write_text("")
    assert [is_resumable(path) for path in ("file", "new", "-", ".", "/dev/null")] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_on_a_full_disk_whole_chunks_are_kept():
    size = len("".join(WHOLE.splitlines(keepends=True)[:5]).encode())
    for _ in range(2):
        with full_disk(size):
            kill(error=InputError)
        assert names() == ["out.partial", "out.partial.json"]
    assert write() == 4
    assert Path("out").read_text() == WHOLE
    with pytest.raises(InputError) as raised, full_disk(10):
        write(path="new")
    assert str(raised.value) == f"new: cannot be written ({MESSAGE})"


ROWS = np.arange(28, dtype=np.float32).reshape(7, 4)


def write_rows(*, until=7, error=Killed, path="a.npy", rows=ROWS, **identity):
    with resumable_array(path, identity=identity, chunk=2) as file:
        begin = file.done
        for start in range(begin, 7, 2):
            if start >= until:
                raise error
            file.write(rows[start : start + 2])
    return begin


def test_rows_of_an_array_are_gone_on_with(caplog):
    caplog.set_level(logging.INFO)
    with pytest.raises(Killed):
        write_rows(until=4, seed=1)
    assert names() == ["a.npy.partial", "a.npy.partial.json"]
    with pytest.raises(InputError, match=r"contains rows of another command \(other seed\)"):
        write_rows(seed=2)
    assert write_rows(seed=1) == 4
    np.testing.assert_array_equal(np.load("a.npy"), ROWS)
    assert names() == ["a.npy"]
    assert caplog.messages[1].startswith("resuming an unfinished output after 4 rows of")
    whole = Path("a.npy").read_bytes()
    write_rows(path="b.npy")
    assert Path("b.npy").read_bytes() == whole


def test_an_array_that_was_killed_at_any_byte():
    write_rows()
    whole = Path("a.npy").read_bytes()
    start = len(whole) - ROWS.nbytes
    for size in [0, 1, 9, start - 1, *range(start, len(whole) + 1, 3)]:
        Path("a.npy.partial").write_bytes(whole[:size])
        Path("a.npy.partial.json").write_text("{}")
        assert write_rows() == max(0, size - start) // 32 * 2
        assert Path("a.npy").read_bytes() == whole


def test_rows_of_another_shape_are_refused():
    with pytest.raises(Killed):
        write_rows(until=2)
    with pytest.raises(InputError, match=r"but new rows are float32\[2\]; delete"):
        write_rows(rows=ROWS[:, :2])
    assert write_rows() == 2
    np.testing.assert_array_equal(np.load("a.npy"), ROWS)


def grow(*, until=4, error=Killed, torn=b"", **options):
    """Write entries into a directory, and fail after `until`."""
    with resumable_directory("d", identity={"a": options.pop("a", 1)}, **options) as folder:
        files = AppendedFiles(folder)
        begin = files.done
        for number in range(begin, 4):
            if number >= until:
                files.open("x").write(torn)
                files.open("y").write(torn)
                files.open("z").write(torn)
                files.close(whole=False)
                raise error
            files.open("x").write(b"%d" % number)
            files.open("y").write(b"%d\n" % number)
            files.commit(number + 1)
        files.close(whole=True)
    return begin


@pytest.mark.parametrize("torn", [b"", b"torn"])
def test_files_of_a_directory_are_gone_on_with(torn):
    with pytest.raises(Killed):
        grow(until=2, torn=torn)
    assert names() == ["d.partial"]
    with pytest.raises(
        InputError, match=r"contains a part of another command \(other a\); run the"
    ):
        grow(a=2)
    with pytest.raises(Killed):
        grow(until=3, torn=torn)
    assert grow() == 3
    assert names() == ["d"]
    found = {path.name: path.read_text() for path in Path("d").iterdir()}
    assert found == {"x": "0123", "y": "0\n1\n2\n3\n"}
    with pytest.raises(InputError, match="d already exists; delete it"):
        grow()


def test_nothing_stays_of_a_directory_without_files():
    with (
        pytest.raises(Killed),
        resumable_directory("new/d", identity={}),
    ):
        raise Killed
    assert names() == []


def test_bad_input_leaves_a_directory_of_an_earlier_process_only():
    with pytest.raises(InputError):
        grow(until=2, error=InputError)
    assert names() == []
    with pytest.raises(Killed):
        grow(until=2)
    with pytest.raises(InputError):
        grow(until=3, error=InputError)
    assert names() == ["d.partial"]


def test_a_scratch_directory_is_removed_at_the_end():
    Path("d").write_text("the output")
    with resumable_directory("d", identity={}, scratch=True) as folder:
        (folder / "x").write_text("x")
        with (
            pytest.raises(InputError, match="d: another process is writing this output"),
            resumable_directory("d", identity={}, scratch=True),
        ):
            raise AssertionError
    assert names() == ["d"]
