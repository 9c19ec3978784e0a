"""Which tasks can be run on each shard of their source alone."""

import sys

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.cache.making import load_job
from t5x_lite.data.cache.parts import check_shards, shard_dataset, shards_of
from t5x_lite.data.config import Data
from t5x_lite.data.vocabularies.loading import load_vocabulary

TASKS = """
import seqio
import tensorflow as tf

from t5x_lite.data.tasks import stages


class Shardless(seqio.FunctionDataSource):
    def list_shards(self, split):
        raise NotImplementedError


def _texts(split, files):
    return stages.text_pairs([f"in {file}" for file in files], ["out"] * len(files))


def _task(*preprocessors, files=("a", "b", "c")):
    def task(arguments):
        return seqio.Task(
            "mine",
            source=stages.FileSource(["train"], lambda split: files, _texts),
            preprocessors=[seqio.preprocessors.tokenize, *preprocessors, here],
            output_features=stages.features(arguments.vocabulary),
        )
    return task


@seqio.map_over_dataset(num_seeds=1)
def _draw(example, seed):
    drawn = tf.random.stateless_uniform([1], seed, 3, 200, tf.int32)
    return {**example, "targets": drawn}


def _grouped(dataset):
    return dataset.filter(lambda example: True).ragged_batch(2).unbatch()


def _even(dataset):
    return dataset.enumerate().filter(lambda n, _: n % 2 == 0).map(lambda _, example: example)


def shardless(arguments):
    source = Shardless(lambda split, shuffle_files: _texts(split, ["a"]), splits=["train"])
    return _task()(arguments).replace(source=source)


here = seqio.CacheDatasetPlaceholder()
plain = _task()
numbered = _task(stages.number)
grouped = _task(_grouped)
drawn = _task(_draw)
early = _task(stages.number, _grouped)
even = _task(_even)
twice = _task(_even, stages.number)
first = _task(lambda dataset: dataset.take(1))
shuffled = _task(lambda dataset: dataset.shuffle(3))
alone = _task(_even, files=("a",))
empty = _task(files=())
"""


@pytest.fixture(scope="module")
def job_of(tmp_path_factory):
    directory = tmp_path_factory.mktemp("source_shards")
    (directory / "my_tasks_in_shards.py").write_text(TASKS)
    sys.path.insert(0, str(directory))

    def load(name):
        data = Data(task=f"my_tasks_in_shards:{name}", vocabulary="bytes")
        return load_job(data, load_vocabulary("bytes"), splits=None, seed=0, bake=False)

    yield load
    sys.path.remove(str(directory))
    sys.modules.pop("my_tasks_in_shards", None)


def texts(job, number, count):
    found = shard_dataset(job, "train", number, count).as_numpy_iterator()
    return [example["inputs_pretokenized"].decode() for example in found]


def test_each_shard_is_a_file_in_order(job_of):
    job = job_of("plain")
    assert shards_of(job, "train") == ("a", "b", "c")
    assert [texts(job, number, 3) for number in range(3)] == [["in a"], ["in b"], ["in c"]]
    assert texts(job, 0, 1) == ["in a", "in b", "in c"]
    assert job.task.source.list_shards("train") == ["train"]  # training divides examples


@pytest.mark.parametrize("name", ["plain", "numbered", "grouped", "drawn"])
def test_a_task_that_sees_neighbours_only_can_be_divided(job_of, name):
    check_shards(job_of(name), "train", 3)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("early", "stages.number"),
        ("even", "enumerate"),
        ("twice", "enumerate"),
        ("first", "take"),
        ("shuffled", "shuffle"),
    ],
)
def test_a_task_that_counts_is_refused(job_of, name, what):
    with pytest.raises(InputError) as error:
        check_shards(job_of(name), "train", 3)
    assert f"over the whole source ({what}), but a worker reads only one of 3 shards; write" in str(
        error.value
    )


def test_of_one_shard_anything_can_be_run(job_of):
    check_shards(job_of("alone"), "train", 1)


def test_each_shard_draws_its_own_numbers(job_of):
    job = job_of("drawn")
    drawn = [
        next(shard_dataset(job, "train", number, 3).as_numpy_iterator())["targets"].tolist()
        for number in (0, 1, 2, 1)
    ]
    assert drawn[1] == drawn[3]
    assert drawn[0] != drawn[1] != drawn[2]


def test_a_source_without_shards_is_refused(job_of):
    with pytest.raises(InputError, match="a source without shards, Shardless; write the cache"):
        shards_of(job_of("shardless"), "train")
    assert shards_of(job_of("empty"), "train") == ()
