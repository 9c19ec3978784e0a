"""Parts of a cache, written and joined without Beam."""

import dataclasses
import json
import pickle
from pathlib import Path

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.cache import parts as cache_parts
from t5x_lite.data.cache.making import load_job, write_cache
from t5x_lite.data.cache.parts import Part, PartWriter, UnsharedError, join
from t5x_lite.data.config import Data
from t5x_lite.data.vocabularies.loading import load_vocabulary


@pytest.fixture(scope="module")
def job(tmp_path_factory, english_lines, tiny_vocabulary):
    """A task over three files, of which the second has no line to train on."""
    texts = tmp_path_factory.mktemp("parts")
    for name, lines in (("a", english_lines[:8]), ("b", []), ("c", english_lines[8:14])):
        (texts / f"{name}.txt").write_text("\n".join(lines))
    (texts / "validation.txt").write_text("\n".join(english_lines[20:22]))
    data = Data(
        task="tasks.text:span_corruption",
        vocabulary=str(tiny_vocabulary),
        directory=str(texts),
        inputs_length=32,
        targets_length=12,
    )
    return load_job(data, load_vocabulary(tiny_vocabulary), splits=None, seed=0, bake=False)


@pytest.fixture
def place(tmp_path):
    """A directory for a cache, with one for its parts."""
    (tmp_path / "parts").mkdir()
    return tmp_path


def writer(job, place, counts, **options):
    work = PartWriter.of(job, place / "parts", counts=counts, **options)
    return pickle.loads(pickle.dumps(work))


def through_json(part):
    return Part.from_json(json.loads(json.dumps(part.to_json())))


def test_the_directory_of_a_worker_is_absolute(job, place, monkeypatch):
    texts = Path(job.data.directory)
    monkeypatch.chdir(texts.parent)
    here = dataclasses.replace(job, data=dataclasses.replace(job.data, directory=texts.name))
    work = writer(here, place, {"validation": 1})
    monkeypatch.chdir(place)
    assert not work("validation", 0).error


@pytest.mark.slow
def test_one_shard_gives_the_cache_of_one_process(job, place):
    index = write_cache(
        job.data, job.vocabulary, place / "c", splits=["validation"], shard_bytes=80
    )
    part = writer(job, place, {"validation": 1}, shard_bytes=80)("validation", 0)
    found = join("validation", [through_json(part)], where=place / "parts", directory=place)
    assert found is not None
    assert len(found.shards) > 1
    assert found == index.splits["validation"]


@pytest.mark.slow
def test_parts_are_joined_in_the_order_of_the_source(job, place):
    work = writer(job, place, {"train": 3})
    parts = [work("train", number) for number in (2, 0, 1, 2)]
    assert parts[0] == parts[3]  # a repeated bundle
    found = join("train", parts[:3], where=place / "parts", directory=place)
    assert found is not None
    of_files = [part.written.examples for part in sorted(parts[:3], key=lambda part: part.number)]
    assert of_files[1] == 0
    assert [shard.examples for shard in found.shards] == [of_files[0], of_files[2]]
    assert [shard.name for shard in found.shards] == [
        "train-00000.tokens",
        "train-00001.tokens",
    ]
    assert found.ends.size == 4 * found.examples == 4 * sum(of_files)
    assert not list((place / "parts").glob(".*"))


def test_a_split_without_an_example_is_none(job, place):
    part = writer(job, place, {"train": 3})("train", 1)
    assert join("train", [part], where=place / "parts", directory=place) is None


def test_the_first_wrong_shard_is_told(place):
    parts = [Part(split="train", number=n, error=f"shard {n} is bad") for n in (2, 1)]
    with pytest.raises(InputError, match="shard 1 is bad"):
        join("train", parts, where=place / "parts", directory=place)


def test_a_worker_elsewhere_is_told(job, place, monkeypatch):
    work = writer(job, place, {"train": 2})
    assert (
        "sees 3 shards of split train, but the launching process sees 2" in work("train", 0).error
    )
    work = writer(job, place, {"train": 3})
    part = work("train", 0)
    (place / "parts" / part.written.ends.name).write_bytes(b"")
    with pytest.raises(
        InputError, match="has 0 bytes in the launching process; --output must be on a file system"
    ):
        join("train", [part], where=place / "parts", directory=place)
    monkeypatch.setattr(cache_parts.Path, "is_dir", lambda path: False)
    with pytest.raises(UnsharedError, match=r"does not see .*parts; --output must be on a file"):
        work("train", 0)


def test_a_bad_line_is_an_error_of_its_part(job, place):
    (place / "train.txt").write_bytes(b"good\ncaf\xe9")
    (place / "validation.txt").write_text("good")
    bad = dataclasses.replace(job, data=dataclasses.replace(job.data, directory=str(place)))
    part = writer(bad, place, {"train": 1})("train", 0)
    assert part.written is None
    assert part.error.endswith("train.txt:2: not UTF-8: convert it to UTF-8")
    assert [path.name for path in (place / "parts").iterdir()] == ["vocabulary"]
