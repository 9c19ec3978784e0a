"""Tasks whose files are in a bucket: the batches of the local files, by ranges of bytes."""

import dataclasses
import gzip
import json
import os
import shutil

import pytest

from t5x_lite.core import object_store
from t5x_lite.core.errors import InputError
from t5x_lite.data import batches as data_batches
from tests import fake_store
from tests.batches import assert_equal_batches, take
from tests.fake_store import store  # noqa: F401 (a fixture)


@pytest.fixture(scope="module")
def vocabulary(tiny_vocabulary):
    from t5x_lite.data.vocabularies.loading import load_vocabulary

    return load_vocabulary(tiny_vocabulary)


@pytest.fixture
def quick(monkeypatch):
    hurried = object_store.Patience(answer=1.0, first=0.001, longest=0.01, total=1.0)
    monkeypatch.setattr(object_store, "PATIENCE", hurried)


@pytest.fixture
def places(tmp_path, store):  # noqa: F811
    """Copies a directory that a function fills to the bucket; gives both places."""

    def make(fill):
        (tmp_path / "here").mkdir()
        fill(tmp_path / "here")
        shutil.copytree(tmp_path / "here", store / "there", dirs_exist_ok=True)
        fake_store.counts.clear()
        return str(tmp_path / "here"), "gs://bucket/there"

    return make


def data(directory, **changes):
    from t5x_lite.data.config import Data

    options = {
        "task": "tasks.text:span_corruption", "vocabulary": "", "batch_size": 4,
        "inputs_length": 64, "targets_length": 24, "shuffle_buffer": 20,
    }  # fmt: skip
    return Data(directory=directory, **(options | changes))


def plain(lines):
    """Two files, so that lines are held out by their hashes."""

    def fill(directory):
        (directory / "a.txt").write_text("\n".join(lines[:300]))
        (directory / "b.jsonl").write_text("".join(f"{json.dumps({'text': t})}\n" for t in lines))

    return fill


def packed(lines):
    """Files that are held out whole, by their name; compressed ones."""

    def fill(directory):
        import zstandard

        text = "\n".join(lines[:300]).encode()
        (directory / "train").mkdir()
        (directory / "train" / "a.txt.gz").write_bytes(gzip.compress(text))
        (directory / "b.txt.zst").write_bytes(zstandard.compress(text))
        (directory / "validation.txt").write_bytes(text[:2000])

    return fill


@pytest.mark.exhaustive
@pytest.mark.parametrize("fill", [plain, packed])
def test_texts(vocabulary, places, english_lines, monkeypatch, fill):
    """By parts or from the front, in the same order; killed and resumed."""
    from t5x_lite.data.formats import documents
    from t5x_lite.data.tasks import text_source

    monkeypatch.setattr(text_source, "IN_MEMORY_BYTES", 0)
    monkeypatch.setattr(documents, "PART_BYTES", 2000)
    here, there = places(fill(english_lines))
    local = data_batches.train_batches(data(here), vocabulary, seed=3)
    expected = take(local, 12)
    batches = data_batches.train_batches(data(there), vocabulary, seed=3)
    assert_equal_batches(take(batches, 6), expected[:6])
    again = data_batches.train_batches(data(there), vocabulary, seed=3)
    again.restore(batches.state())
    assert_equal_batches(take(again, 6), expected[6:])
    assert batches._identity == local._identity  # which does not say where the texts lie
    held_out = [[*data_batches.eval_batches(data(place), vocabulary)] for place in (here, there)]
    assert_equal_batches(held_out[1], held_out[0])


@pytest.mark.exhaustive
def test_a_few_batches_read_a_part_of_a_text(vocabulary, places, monkeypatch):
    """And list the directory only when the task begins."""
    from t5x_lite.data.tasks import text_source

    monkeypatch.setattr(text_source, "IN_MEMORY_BYTES", 0)

    def fill(directory):
        texts = (f"{number} rivers of stones went by the house" for number in range(400_000))
        (directory / "a.txt").write_text("\n".join(texts))

    here, there = places(fill)
    size = os.path.getsize(f"{here}/a.txt")
    assert size > 250 * 65_536
    batches = data_batches.train_batches(data(there), vocabulary, seed=3)
    found = take(batches, 5)
    listed = fake_store.counts["list"]
    assert listed <= 10
    found += take(batches, 5)
    assert fake_store.counts["list"] == listed
    read = fake_store.counts["read bucket/there/a.txt"]
    assert 0 < read < size / 2
    assert fake_store.counts["range"] <= 2 * 64 + 10  # so many parts are read in turn
    assert fake_store.counts["get"] - fake_store.counts["range"] <= 1  # is it a directory?
    assert_equal_batches(
        found, take(data_batches.train_batches(data(here), vocabulary, seed=3), 10)
    )


@pytest.mark.exhaustive
def test_c4s_shards(vocabulary, places, english_lines):
    def fill(directory):
        for split, count in (("train", 2), ("validation", 1)):
            for number in range(count):
                lines = "".join(f"{json.dumps({'text': t})}\n" for t in english_lines[number::3])
                name = f"c4-{split}.{number:05}-of-{count:05}.json.gz"
                (directory / name).write_bytes(gzip.compress(lines.encode()))

    here, there = places(fill)
    options = {"task": "tasks.c4:c4_v220_span_corruption"}
    both = (
        data_batches.train_batches(data(d, **options), vocabulary, seed=1) for d in (here, there)
    )
    assert_equal_batches(*(take(batches, 8) for batches in both))


@pytest.mark.exhaustive
def test_ones_own_files_and_benchmarks(vocabulary, places):
    from t5x_lite.data.preprocessors import Columns

    def fill(directory):
        (directory / "train.csv").write_text("text,label\n" + "a word,good\nnone,bad\n" * 9)
        (directory / "RTE").mkdir()
        rows = "".join(f"{i}\tA cat.\tA dog {i}.\tentailment\n" for i in range(20))
        header = "index\tsentence1\tsentence2\tlabel\n"
        (directory / "RTE" / "train.tsv").write_text(header + rows)

    here, there = places(fill)
    columns = Columns(inputs="{text}", targets="{label}", labels=("good=good", "bad=bad"))
    for options in (
        {"task": "tasks.files:classify", "columns": columns},
        {"task": "tasks.glue:rte"},
    ):
        both = [
            data_batches.train_batches(data(d, **options), vocabulary, seed=1)
            for d in (here, there)
        ]
        assert_equal_batches(*(take(batches, 6) for batches in both))
        assert fake_store.counts["list"] < 10
        both[0].restore(both[1].state())
    none = data("gs://bucket/none", task="tasks.files:classify", columns=columns)
    with pytest.raises(InputError, match=r"no train, validation or test file .*'gs://bucket/none'"):
        data_batches.train_batches(none, vocabulary, seed=1)


def test_a_mixtures_members_are_in_their_folders(tmp_path, store):  # noqa: F811
    from t5x_lite.data.mixtures import Member, member_data

    (store / "there" / "glue").mkdir(parents=True)
    member = Member(task="some.glue:cola", examples=1, directory="glue")
    mixed = data("gs://bucket/there")
    assert member_data(mixed, member).directory == "gs://bucket/there"
    (store / "there" / "glue" / "a").write_text("")
    assert member_data(mixed, member).directory == "gs://bucket/there/glue"


@pytest.mark.usefixtures("quick")
@pytest.mark.slow
def test_a_bucket_that_stays_away_is_one_line(vocabulary, places, english_lines, monkeypatch):
    from t5x_lite.data.tasks import text_source

    monkeypatch.setattr(text_source, "IN_MEMORY_BYTES", 0)
    _, there = places(plain(english_lines))
    fake_store.trouble.errors = [OSError("502")] * 3
    batches = data_batches.train_batches(data(there), vocabulary, seed=3)
    assert fake_store.counts["failed"] == 3
    fake_store.trouble.always = OSError("503")
    with pytest.raises(object_store.BucketError) as raised:
        next(batches)
    assert str(raised.value).startswith("gs://bucket/there/")
    assert str(raised.value).endswith(
        "cannot be read for 1 seconds (OSError: 503); check the network and the bucket, and run "
        "the same command again"
    )
    object_store._given_up.clear()
    with pytest.raises(object_store.BucketError, match="gs://bucket/there cannot be read"):
        data_batches.train_batches(data(there), vocabulary, seed=3)


@pytest.mark.slow
def test_caches_of_a_buckets_texts_are_written_to_a_bucket(
    vocabulary,
    places,
    english_lines,
    store,  # noqa: F811
):
    from t5x_lite.data.cache.files import Cache
    from t5x_lite.data.cache.making import write_cache

    here, there = places(plain(english_lines))
    write_cache(data(here), vocabulary, f"{here}/cache", splits=["train"])
    write_cache(data(there), vocabulary, "gs://bucket/cache", splits=["train"])
    one, other = Cache(f"{here}/cache"), Cache("gs://bucket/cache")
    assert one.digest == other.digest
    other.verify()
    puts = fake_store.counts["put"]
    assert puts == len([*(store / "cache").rglob("*.*")])
    with pytest.raises(InputError, match="--output gs://bucket/cache already exists"):
        write_cache(data(there), vocabulary, "gs://bucket/cache")
    alone = dataclasses.replace(data(there), directory="gs://bucket/none")
    with pytest.raises(InputError, match=r"data\.directory 'gs://bucket/none' is not a directory"):
        write_cache(alone, vocabulary, "gs://bucket/other")
    assert not (store / "other").exists()
