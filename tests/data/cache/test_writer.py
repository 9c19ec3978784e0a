import errno
import os
import zlib

import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.cache import making
from t5x_lite.data.cache.files import Cache
from t5x_lite.data.cache.making import SplitWriter, new_cache
from tests.full_disk import MESSAGE, full_disk


def test_shards_are_of_whole_examples(tmp_path):
    writer = SplitWriter(tmp_path, "train", num_features=2, dtype="uint16", shard_bytes=12)
    for size in (2, 3, 5, 1):
        writer.add([np.arange(size), np.arange(1)])
    assert (writer.examples, writer.tokens) == (4, 15)
    split = writer.finish()
    assert [shard.name for shard in split.shards] == [
        "train-00000.tokens",
        "train-00001.tokens",
        "train-00002.tokens",
    ]
    assert [shard.examples for shard in split.shards] == [2, 1, 1]
    assert np.fromfile(tmp_path / "train.ends", "<u4").tolist() == [2, 3, 6, 7, 5, 6, 1, 2]
    tokens = np.fromfile(tmp_path / "train-00000.tokens", "<u2")
    assert tokens.tolist() == [0, 1, 0, 0, 1, 2, 0]
    checksums = np.fromfile(tmp_path / "train.checksums", "<u4")
    assert checksums[1] == zlib.crc32(tokens[3:].tobytes())


def test_a_shard_ends_where_its_tokens_could_not_be_numbered(tmp_path, monkeypatch):
    monkeypatch.setattr(making, "MOST_TOKENS", 6)
    writer = SplitWriter(tmp_path, "train", num_features=1, dtype="uint16")
    for size in (4, 2, 3):
        writer.add([np.arange(size)])
    assert [shard.examples for shard in writer.finish().shards] == [2, 1]


def test_a_split_that_is_given_up_closes_its_files(tmp_path):
    writer = SplitWriter(tmp_path, "train", num_features=1, dtype="uint16")
    writer.add([np.arange(3)])
    writer.close()
    writer.close()
    with pytest.raises(ValueError, match="closed"):
        writer.add([np.arange(3)])


@pytest.mark.parametrize("tokens", [[3, 65536], [-1, 3]])
def test_ids_that_do_not_fit_are_refused(tmp_path, tokens):
    writer = SplitWriter(tmp_path, "train", num_features=1, dtype="uint16")
    with pytest.raises(InputError, match=r"token ids range from .* has only ids from 0 to 65535"):
        writer.add([np.array(tokens)])


def test_an_example_without_tokens_is_one(tmp_path, small_cache, recipes):
    directory = small_cache(
        tmp_path / "c", {"train": [[np.zeros(0, np.int32)], [np.array([5])]]}, recipes.targets
    )
    found = Cache(directory).split("train").read(np.array([0, 1]))
    assert [example["targets"].tolist() for example in found] == [[], [5]]


def test_an_interrupted_run_leaves_nothing(tmp_path):
    def interrupted(directory):
        SplitWriter(directory, "train", num_features=1, dtype="uint16").add([np.arange(3)])
        assert not (tmp_path / "c").exists()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), new_cache(tmp_path / "c") as directory:
        interrupted(directory)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_left_is_named_and_is_no_cache(tmp_path, caplog):
    (tmp_path / ".c.12").mkdir()
    with new_cache(tmp_path / "c") as directory:
        (directory / "file").touch()
    assert "c.12 belongs to a run that was interrupted" in caplog.text
    assert (tmp_path / "c" / "file").exists()


def test_a_directory_that_is_there_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with new_cache(tmp_path / "empty") as directory:
        (directory / "file").touch()
    for _ in range(2):
        with pytest.raises(InputError, match="already exists"), new_cache(tmp_path / "empty"):
            pass
    assert (tmp_path / "empty" / "file").exists()


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(InputError, match=r"file/c cannot be written: Not a directory"),
        new_cache(tmp_path / "file" / "c"),
    ):
        pass
    with pytest.raises(InputError, match="mount the bucket"), new_cache("gs://bucket/c"):
        pass
    with (
        pytest.raises(InputError, match="c cannot be written: No space left on device"),
        new_cache(tmp_path / "c"),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_that_the_task_lacks_is_not_blamed_on_the_output(tmp_path):
    with pytest.raises(FileNotFoundError), new_cache(tmp_path / "c"):
        (tmp_path / "data" / "train.txt").read_bytes()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [0, 3000, 70_000])
def test_a_full_disk_is_named_with_the_output(tmp_path, size):
    def fill(directory):
        writer = SplitWriter(directory, "train", num_features=1, dtype="uint16")
        rng = np.random.default_rng(0)
        with full_disk(size):
            for _ in range(50):
                writer.add([rng.integers(0, 65536, 1000)])
            writer.finish()

    with (
        pytest.raises(InputError, match=rf"--output .*/c cannot be written: .*{MESSAGE}$"),
        new_cache(tmp_path / "c") as directory,
    ):
        fill(directory)
    assert list(tmp_path.iterdir()) == []
