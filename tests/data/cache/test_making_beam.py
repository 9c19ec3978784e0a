"""Caches from Beam: the examples of the files one after another, whatever the workers."""

import dataclasses
import itertools

import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data import batches as data_batches
from t5x_lite.data.cache.files import Cache
from t5x_lite.data.cache.making import write_cache
from t5x_lite.data.config import Data
from tests.data.beam_service import job_service, run_python

pytest.importorskip("apache_beam")


@pytest.fixture(scope="module")
def texts(tmp_path_factory, english_lines):
    """A directory of three files to train on and one that is held out."""
    directory = tmp_path_factory.mktemp("beam_texts")
    for number in range(3):
        lines = english_lines[20 * number : 20 * number + 12 + 3 * number]
        (directory / f"{number}.txt").write_text("\n".join(lines))
    (directory / "validation.txt").write_text("\n".join(english_lines[80:90]))
    return directory


@pytest.fixture(scope="module")
def data(texts, tiny_vocabulary):
    return Data(
        task="tasks.text:span_corruption",
        vocabulary=str(tiny_vocabulary),
        directory=str(texts),
        batch_size=4,
        inputs_length=32,
        targets_length=12,
    )


def on_beam(data, vocabulary, output, *, runner="FnApiRunner", **options):
    from t5x_lite.data.cache import making_beam as caching_beam

    return caching_beam.write_cache(data, vocabulary, output, runner=runner, **options)


@pytest.fixture(scope="module")
def from_beam(tmp_path_factory, data, vocabulary):
    """A cache of all files, every bundle of which was run twice."""
    output = tmp_path_factory.mktemp("beam") / "c"
    repeat = ["--direct_runner_bundle_repeat=1"]
    on_beam(data, vocabulary, output, options=repeat, shard_bytes=400)
    assert [path.name for path in output.parent.iterdir()] == ["c"]
    return output


def tokens(directory, split):
    cache = Cache(directory)
    there = np.arange(cache.index.splits[split].examples)
    return [example["tokens"].tolist() for example in cache.split(split).read(there)]


@pytest.mark.exhaustive
def test_the_examples_are_those_of_one_file_after_another(
    from_beam, texts, data, vocabulary, tmp_path
):
    expected = []
    for number in range(3):
        alone = tmp_path / str(number)
        alone.mkdir()
        (alone / "train.txt").write_bytes((texts / f"{number}.txt").read_bytes())
        (alone / "validation.txt").write_bytes((texts / "validation.txt").read_bytes())
        of_file = dataclasses.replace(data, directory=str(alone))
        cache = tmp_path / f"c{number}"
        index = write_cache(of_file, vocabulary, cache, shard_bytes=400)
        expected += tokens(cache, "train")
    assert tokens(from_beam, "train") == expected
    found = Cache(from_beam)
    found.verify()
    assert found.index.splits["validation"] == index.splits["validation"]
    assert found.index.recipe == index.recipe
    assert len(found.index.splits["train"].shards) > 3
    assert sorted(path.name for path in from_beam.iterdir()) == sorted(
        [
            "cache.json",
            "vocabulary",
            *(shard.name for split in found.index.splits.values() for shard in split.shards),
            "train.checksums",
            "train.ends",
            "validation.checksums",
            "validation.ends",
        ]
    )


def test_training_corrupts_by_the_place_in_the_whole_cache(from_beam, data, vocabulary):
    """An example's number, of which its corruption is a function, is not that in its shard."""
    from_cache = dataclasses.replace(data, cache=str(from_beam), shuffle=False, pack=False)
    batches = data_batches.train_batches(from_cache, vocabulary, seed=3)
    rows = [row for batch in itertools.islice(batches, 6) for row in batch["encoder_input_tokens"]]
    batches.close()
    found = Cache(from_beam)
    recipe, stored = found.index.recipe, found.split("train").read(np.arange(24))
    assert found.index.splits["train"].shards[0].examples < 24
    lengths = {"inputs": 32, "targets": 12}
    for index, (row, example) in enumerate(zip(rows, stored, strict=True)):
        made = recipe.example(example, lengths=lengths, seed=3, epoch=0, index=index)
        assert row[: len(made["inputs"])].tolist() == made["inputs"].tolist()


def test_a_bad_line_leaves_no_cache(data, vocabulary, tmp_path):
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a.txt").write_text("good")
    (texts / "b.txt").write_bytes(b"good\ncaf\xe9")
    (texts / "validation.txt").write_text("good")
    bad = dataclasses.replace(data, directory=str(texts))
    with pytest.raises(InputError, match=r"b\.txt:2: not UTF-8"):
        on_beam(bad, vocabulary, tmp_path / "c", splits=["train"])
    assert [path.name for path in tmp_path.iterdir()] == ["texts"]


def raises(error):
    def build(*args, **kwargs):
        raise error

    return build


@pytest.mark.parametrize(
    ("error", "expected", "told"),
    [
        (
            RuntimeError("Traceback\n  UnsharedError: <unshared>worker w: no</unshared> [while]\n"),
            InputError,
            "worker w: no",
        ),
        (RuntimeError("Traceback\nOSError: no space\n"), RuntimeError, "failed: OSError: no space"),
        (ConnectionError(), RuntimeError, "FnApiRunner failed: ConnectionError"),
    ],
)
def test_a_pipeline_that_fails_is_one_line(
    data, vocabulary, tmp_path, monkeypatch, error, expected, told
):
    from t5x_lite.data.cache import making_beam as caching_beam

    monkeypatch.setattr(caching_beam, "build", raises(error))
    with pytest.raises(expected) as found:
        on_beam(data, vocabulary, tmp_path / "c", splits=["validation"])
    assert str(found.value).endswith(told)
    assert list(tmp_path.iterdir()) == []


def test_what_is_refused_before_anything_starts(data, vocabulary, tmp_path, monkeypatch):
    from t5x_lite.data.cache import making_beam as caching_beam

    monkeypatch.setattr(caching_beam, "build", None)
    with pytest.raises(
        InputError, match=r"mount the bucket.*; every Beam worker must use the same --output path"
    ):
        on_beam(data, vocabulary, "gs://bucket/c")
    with pytest.raises(InputError, match="--runner NoSuchRunner"):
        on_beam(data, vocabulary, tmp_path / "c", runner="NoSuchRunner")
    with pytest.raises(InputError, match="has no split 'tset'"):
        on_beam(data, vocabulary, tmp_path / "c", splits=["tset"])
    assert list(tmp_path.iterdir()) == []


def test_the_pipeline_has_neither_side_inputs_nor_tagged_outputs(tmp_path):
    import apache_beam
    from apache_beam.portability import common_urns

    from t5x_lite.data.cache.making_beam import build
    from t5x_lite.data.cache.parts import PartWriter

    work = PartWriter(
        Data(task="tasks.text:ul2", vocabulary="v"),
        extra_ids=100,
        seed=0,
        parts=tmp_path,
        counts={"train": 2},
        shard_bytes=1,
    )
    pipeline = apache_beam.Pipeline()
    build(pipeline, [("train", 0), ("train", 1)], work, result=str(tmp_path / "r"))
    transforms = pipeline.to_runner_api().components.transforms.values()
    steps = [t for t in transforms if t.spec.urn == common_urns.primitives.PAR_DO.urn]
    assert steps
    assert all(len(step.inputs) == len(step.outputs) == 1 for step in steps)


@pytest.mark.slow
@pytest.mark.exhaustive  # c4 runs on it in the gate
@pytest.mark.multiprocess
def test_two_worker_processes_on_the_portable_job_service(from_beam, data, tmp_path):
    with job_service(tmp_path) as options:
        script = _SCRIPT.format(
            directory=data.directory,
            vocabulary=data.vocabulary,
            output=str(tmp_path / "c"),
            options=options,
        )
        told = run_python(script)
    assert Cache(tmp_path / "c").digest == Cache(from_beam).digest
    assert told.count("Starting worker with command") == 2


_SCRIPT = """
from t5x_lite.data.cache.making_beam import write_cache
from t5x_lite.data.config import Data
from t5x_lite.data.vocabularies.loading import load_vocabulary
data = Data(task="tasks.text:span_corruption", vocabulary={vocabulary!r},
            directory={directory!r}, batch_size=4, inputs_length=32, targets_length=12)
write_cache(data, load_vocabulary({vocabulary!r}), {output!r}, runner="PortableRunner",
            options={options!r}, shard_bytes=400)
"""
