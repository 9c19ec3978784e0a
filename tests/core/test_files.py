"""Files that appear whole: what is there after success, after failure, through links and pipes."""

import errno
import os
import stat
import tempfile
import threading

import pytest

from t5x_lite.core import files
from t5x_lite.core.errors import InputError
from t5x_lite.core.files import naming, open_atomically, sync_to_disk, without_bom, write_atomically
from tests.full_disk import MESSAGE, full_disk


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_a_new_file_and_one_that_was_there(tmp_path):
    path = tmp_path / "a.txt"
    write_atomically(path, b"one")
    write_atomically(str(path), b"two\n")
    assert path.read_bytes() == b"two\n"
    assert names(tmp_path) == ["a.txt"]


def test_nothing_is_seen_before_the_end(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with open_atomically(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new"


@pytest.mark.parametrize("old", [None, "old"])
def test_an_error_while_writing_leaves_what_was_there(tmp_path, old):
    path = tmp_path / "a.txt"
    if old is not None:
        path.write_text(old)

    def write_half():
        with open_atomically(path) as file:
            file.write(b"half")
            raise KeyError

    with pytest.raises(KeyError):
        write_half()
    assert names(tmp_path) == ([] if old is None else ["a.txt"])
    assert old is None or path.read_text() == old


def test_a_link_stays_and_its_target_is_replaced(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere" / "a.txt", tmp_path / "link.txt"
    link.symlink_to(target)
    for content in (b"the target is made", b"and replaced"):
        write_atomically(link, content)
        assert link.is_symlink()
        assert target.read_bytes() == content
    assert names(tmp_path / "elsewhere") == ["a.txt"]


def test_a_pipe_and_a_device_are_written_to(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write_atomically(pipe, b"through a pipe")
    reader.join()
    assert read == [b"through a pipe"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    write_atomically(os.devnull, b"nothing")
    assert not stat.S_ISREG(os.stat(os.devnull).st_mode)


def test_standard_output_may_be_a_pipe_without_a_name(tmp_path):
    readable, writable = os.pipe()
    write_atomically(f"/dev/fd/{writable}", b"x")
    os.close(writable)
    with open(readable, "rb") as file:
        assert file.read() == b"x"


def test_permissions_stay(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    path.chmod(0o600)
    write_atomically(path, b"new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("a")
    (tmp_path / "loop").symlink_to("loop")
    for name, error in (
        ("", IsADirectoryError),
        ("none/a.txt", FileNotFoundError),
        ("file/a.txt", NotADirectoryError),
        ("loop", OSError),
    ):
        with pytest.raises(error):
            write_atomically(tmp_path / name, b"b")
    assert names(tmp_path) == ["file", "loop"]
    assert (tmp_path / "loop").is_symlink()


def test_a_byte_order_mark_is_no_text():
    lines = [b"\xef\xbb\xbffirst\n", b"\xef\xbb\xbfsecond\n"]
    assert list(without_bom(lines)) == [b"first\n", b"\xef\xbb\xbfsecond\n"]
    assert list(without_bom([])) == []


def test_an_error_that_names_no_file_gets_a_name(tmp_path):
    with pytest.raises(OSError, match="No space") as raised, naming(tmp_path / "metrics.jsonl"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert str(raised.value) == f"[Errno 28] No space left on device: '{tmp_path}/metrics.jsonl'"
    with pytest.raises(FileNotFoundError) as raised, naming(tmp_path / "metrics.jsonl"):
        (tmp_path / "other").read_bytes()
    assert raised.value.filename == str(tmp_path / "other")


def test_a_full_disk_is_told_by_the_name_of_the_file_itself(tmp_path):
    with pytest.raises(OSError, match="No space") as raised, open_atomically(tmp_path / "answers"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert raised.value.filename == str(tmp_path / "answers")
    with pytest.raises(OSError, match="Input/") as raised, open_atomically(tmp_path / "answers"):
        raise OSError(errno.EIO, os.strerror(errno.EIO))  # of a file that was read, perhaps
    assert raised.value.filename is None
    with pytest.raises(FileNotFoundError) as raised, open_atomically(tmp_path / "no" / "answers"):
        pass
    assert raised.value.filename == str(tmp_path / "no" / "answers")
    assert list(tmp_path.iterdir()) == []


def test_what_is_on_the_disk(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(b"a")
    sync_to_disk(tmp_path / "a")
    sync_to_disk(tmp_path)

    def fail(number):
        def fsync(descriptor):
            raise OSError(number, os.strerror(number))

        return fsync

    monkeypatch.setattr(os, "fsync", fail(errno.EINVAL))
    sync_to_disk(tmp_path)  # the file system cannot do it
    monkeypatch.setattr(os, "fsync", fail(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        sync_to_disk(tmp_path / "a")


@pytest.mark.parametrize("name", ["/etc/passwd", "..", "../a", "a/../../b", "a\0", 7, None, "a\\b"])
def test_a_path_that_leaves_the_directory_is_refused(name, tmp_path):
    with pytest.raises(InputError, match=r"list\.json: the path .* must be inside the directory"):
        files.inside(tmp_path, name, where="list.json")


@pytest.mark.parametrize("name", ["", ".", "a", "a/b", "./a"])
def test_a_path_inside_is_that_path(name, tmp_path):
    assert files.inside(tmp_path, name, where="list.json") == tmp_path / name


def test_a_lone_surrogate_is_no_json():
    assert files.plain_json('{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}
    with pytest.raises(ValueError, match="surrogates"):
        files.plain_json('{"a": ["\\ud800"]}')


def test_a_full_temporary_directory_is_named():
    files.check_temporary_directory()
    with (
        full_disk(1000),
        pytest.raises(InputError, match=rf"{tempfile.gettempdir()} cannot be written \({MESSAGE}"),
    ):
        files.check_temporary_directory()


def test_no_temporary_directory_is_one_line(monkeypatch):
    def find(**options):
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in []")

    monkeypatch.setenv("TMPDIR", "/nowhere")
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "TemporaryFile", find)
    with pytest.raises(InputError, match=r"directory /nowhere cannot be written .* set TMPDIR"):
        files.check_temporary_directory()


def test_an_unfinished_directory_is_of_one_process(tmp_path):
    with files.scratch_directory(tmp_path / "part", output="out") as part:
        (part / "a").write_text("")
        held = "out: another process is writing this output"
        with (
            pytest.raises(InputError, match=held),
            files.scratch_directory(tmp_path / "part", output="out"),
        ):
            pass
        assert names(part) == ["a"]
    (tmp_path / "part").mkdir()  # of a dead process
    (tmp_path / "part" / "b").write_text("")
    with files.scratch_directory(tmp_path / "part") as part:
        assert names(part) == []
        part.rename(tmp_path / "out")
    assert names(tmp_path) == ["out"]
