"""Caches of version 0.1: read, and converted."""

import functools
import logging
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

from t5x_lite.cli import main
from t5x_lite.core.errors import InputError
from t5x_lite.data import batches as data_batches
from t5x_lite.data.cache import files, making
from t5x_lite.data.cache.files import INDEX_NAME, Cache
from t5x_lite.data.cache.making import convert_cache
from t5x_lite.data.config import Data
from tests.fake_store import store  # noqa: F401 (a fixture)


@pytest.fixture(scope="module")
def new(tmp_path_factory, small_cache, recipes, chunks):
    """Several shards of chunks, and 11 of validation."""
    where = tmp_path_factory.mktemp("made") / "new"
    splits = {"train": chunks(3000), "validation": chunks(11, seed=1)}
    return small_cache(
        where, splits, recipes.spans, shard_bytes=30_000, longest=lambda features: len(features[0])
    )


@pytest.fixture(scope="module")
def old(new, as_old):
    return as_old(new, new.with_name("old"))


def content(directory):
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def batches_of(cache, vocabulary, count, state=None):
    data = Data(
        cache=(str(cache),), batch_size=8, inputs_length=32, targets_length=16, vocabulary="bytes"
    )
    batches = data_batches.train_batches(data, vocabulary, seed=3)
    try:
        if state is not None:
            batches.restore(state)
        return [next(batches) for _ in range(count)], batches.state()
    finally:
        batches.close()


def assert_equal_batches(got, expected):
    for one, other in zip(got, expected, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.parametrize("held", [True, False])
def test_batches_do_not_depend_on_the_format(
    new,
    old,
    byte_vocabulary,
    tmp_path,
    store,  # noqa: F811
    monkeypatch,
    held,
):
    if not held:
        monkeypatch.setattr(files, "HELD_BYTES", 0)
    shutil.copytree(old, store / "old")
    convert_cache("gs://bucket/old", tmp_path / "converted")
    expected, _ = batches_of(new, byte_vocabulary, 60)
    for cache in (old, "gs://bucket/old", tmp_path / "converted"):
        assert_equal_batches(batches_of(cache, byte_vocabulary, 60)[0], expected)


def test_a_run_continues_with_the_converted_cache(old, byte_vocabulary, tmp_path):
    convert_cache(old, tmp_path / "converted")
    expected, _ = batches_of(old, byte_vocabulary, 30)
    _, state = batches_of(old, byte_vocabulary, 10)
    rest, _ = batches_of(tmp_path / "converted", byte_vocabulary, 20, state)
    assert_equal_batches(rest, expected[10:])
    assert Cache(tmp_path / "converted").digest == Cache(old).digest


def test_a_converted_cache_has_the_files_of_a_new_one(new, old, tmp_path, capsys):
    """But for the number of its shards and the digest of the old one in the index."""
    assert main(["cache", "--convert", str(old), "--output", str(tmp_path / "c")]) == 0
    assert str(tmp_path / "c") in capsys.readouterr().out
    found, expected = Cache(tmp_path / "c"), Cache(new)
    found.verify()
    assert {path.name for path in (tmp_path / "c").iterdir()} == {
        "cache.json", "vocabulary", "train-00000.tokens", "train.ends", "train.checksums",
        "train.longest", "validation-00000.tokens", "validation.ends", "validation.checksums",
        "validation.longest",
    }  # fmt: skip
    one, other = found.split("train"), expected.split("train")
    numbers = np.arange(other.size)
    for example, same in zip(one.read(numbers), other.read(numbers), strict=True):
        np.testing.assert_array_equal(example["tokens"], same["tokens"])
    np.testing.assert_array_equal(one.longest(), other.longest())
    assert found.index.recipe == expected.index.recipe


KILLED = """
import os, sys
from t5x_lite.data.cache import making
left, counted = int(sys.argv[1]), 0
def counting(call):
    def wrapped(*args, **kwargs):
        global counted
        counted += 1
        if counted == left:
            os.kill(os.getpid(), 9)
        return call(*args, **kwargs)
    return wrapped
os.fsync, os.replace, os.unlink = map(counting, (os.fsync, os.replace, os.unlink))
making.SplitWriter.__init__.__kwdefaults__["shard_bytes"] = 30_000
making.convert_cache(*sys.argv[2:])
print(counted)
"""


def convert_killed(left, old, output):
    line = [sys.executable, "-c", KILLED, str(left), str(old), str(output)]
    return subprocess.run(line, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_killed_conversion_resumes_to_equal_bytes(old, tmp_path):
    whole = convert_killed(0, old, tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    expected, calls = content(tmp_path / "whole"), int(whole.stdout)
    assert len([name for name in expected if name.endswith(".tokens")]) > 3
    for number, left in enumerate((1, 3, calls // 3, calls // 2, calls - 3, calls - 1)):
        place = tmp_path / str(number)
        assert convert_killed(left, old, place).returncode == -signal.SIGKILL
        done = convert_killed(0, old, place)
        assert done.returncode == 0, done.stderr
        assert content(place) == expected


def test_complete_shards_are_not_written_again(old, tmp_path, monkeypatch):
    writer = functools.partial(making.SplitWriter, shard_bytes=30_000)
    monkeypatch.setattr(making, "SplitWriter", writer)
    convert_killed(21, old, tmp_path / "c")
    done = len([*(tmp_path / "c.partial").glob("train-*.tokens")]) - 1
    assert done > 1
    written = []
    opened = making.described
    monkeypatch.setattr(
        making, "described", lambda path, **kw: written.append(path.name) or opened(path, **kw)
    )
    convert_cache(old, tmp_path / "c")
    assert f"train-{done - 1:05d}.tokens" not in written
    assert f"train-{done + 1:05d}.tokens" in written


def test_what_cannot_be_converted_is_refused_in_one_line(new, old, tmp_path, capsys):
    half = shutil.copytree(old, tmp_path / "half")
    (half / INDEX_NAME).unlink()
    flipped = shutil.copytree(old, tmp_path / "flipped")
    content = bytearray((flipped / "train-00000.array_record").read_bytes())
    content[300] ^= 1
    (flipped / "train-00000.array_record").write_bytes(content)
    for cache, told in (
        (half, "is not a cache, because it has no cache.json; write a cache with `t5x-lite cache`"),
        (new, "already has the current format; use this cache with --data.cache"),
        (flipped, "is damaged (a record of the ArrayRecord file is damaged); copy the cache again"),
        (tmp_path / "none", "is not a cache"),
    ):
        assert main(["cache", "--convert", str(cache), "--output", str(tmp_path / "c")]) == 2
        assert told in capsys.readouterr().err
        assert not (tmp_path / "c").exists()
        assert not (tmp_path / "c.partial").exists()
    convert_cache(old, tmp_path / "c")
    with pytest.raises(InputError, match="already exists"):
        convert_cache(old, tmp_path / "c")
    (tmp_path / "d.partial").mkdir()
    (tmp_path / "d.partial" / "identity.json").write_text('{"convert": "another"}')
    (tmp_path / "d.partial" / "train.ends").touch()
    with pytest.raises(InputError, match="a cache of another command"):
        convert_cache(old, tmp_path / "d")
    assert main(["cache", "x.py", "--convert", str(old), "--output", str(tmp_path / "e")]) == 2
    assert (
        "--convert can be combined only with --output, not with CONFIG" in capsys.readouterr().err
    )


def test_a_cache_is_converted_into_a_bucket(old, tmp_path, store):  # noqa: F811
    convert_cache(old, "gs://bucket/converted")
    Cache("gs://bucket/converted").verify()
    convert_cache(old, tmp_path / "c")
    assert content(store / "converted") == content(tmp_path / "c")


def test_an_old_cache_is_named_once_with_the_command(old, caplog, monkeypatch):
    monkeypatch.setattr(files, "_noted", set())
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            Cache(old)
    [line] = caplog.messages
    assert f"; convert the cache with `t5x-lite cache --convert {old} --output NEW`" in line


def test_damage_to_an_old_cache_is_found(old, tmp_path):
    for name, place, told in (
        ("train.lengths", 40, r"train\.lengths does not fit its checksum"),
        (
            "train-00000.array_record",
            300,
            r"is damaged \(a record of the ArrayRecord file is damaged\)",
        ),
        ("train-00000.array_record", -65_500, r"is damaged \("),
    ):
        damaged = shutil.copytree(old, tmp_path / str(abs(place)))
        content = bytearray((damaged / name).read_bytes())
        content[place] ^= 1
        (damaged / name).write_bytes(content)
        with pytest.raises(InputError, match=told):
            Cache(damaged).split("train").read(np.arange(100))
