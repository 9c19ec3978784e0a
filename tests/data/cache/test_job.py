"""What the writers of a cache share; test_caching.py runs tasks through it."""

from types import SimpleNamespace

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.cache.files import File, SplitIndex
from t5x_lite.data.cache.making import Job, goes_without, index_of, load_job
from t5x_lite.data.config import Data


@pytest.fixture
def job(byte_vocabulary, recipes):
    return Job(
        data=Data(task="tasks.small:task", vocabulary="bytes", directory="texts"),
        vocabulary=byte_vocabulary,
        task=SimpleNamespace(predict_metric_fns=[]),
        recipe=recipes.spans,
        seed=7,
        bake=False,
    )


def test_a_split_without_an_example_is_told_or_refused(job, caplog):
    goes_without(job, "validation", asked=False)
    assert "skipping split validation, because it has no examples" in caplog.text
    for split, asked in (("train", False), ("validation", True)):
        with pytest.raises(InputError, match=f"no example for split '{split}' in texts"):
            goes_without(job, split, asked=asked)


def test_the_index_says_what_the_job_is(job):
    file = File(name="train.ends", size=4, sha256="0", examples=1)
    split = SplitIndex(examples=1, tokens=3, shards=(), ends=file, checksums=file)
    index = index_of(job, {"train": split})
    assert (index.task, index.dtype, index.baked) == ("tasks.small:task", "uint16", None)
    assert (index.recipe, index.splits) == (job.recipe, {"train": split})
    assert index.vocabulary["digest"] == job.vocabulary.digest


def test_a_job_needs_a_task(byte_vocabulary):
    data = Data(cache="c", vocabulary="bytes")
    with pytest.raises(InputError, match="no task to cache"):
        load_job(data, byte_vocabulary, splits=None, seed=0, bake=False)
