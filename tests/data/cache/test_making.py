"""From a task to a cache, and that seqio and the cache give the same examples."""

import dataclasses
import itertools
import json
import sys

import numpy as np
import pytest

from t5x_lite import layouts
from t5x_lite.core.errors import InputError
from t5x_lite.data import batches as data_batches
from t5x_lite.data.cache.files import Cache
from t5x_lite.data.cache.making import write_cache
from t5x_lite.data.config import Data
from tests.batches import assert_equal_batches


@pytest.fixture(scope="module")
def data(tiny_text, tiny_vocabulary):
    return Data(
        task="tasks.text:span_corruption",
        vocabulary=str(tiny_vocabulary),
        directory=str(tiny_text),
        batch_size=8,
        inputs_length=64,
        targets_length=24,
        shuffle=False,
    )


@pytest.fixture(scope="module")
def spans(tmp_path_factory, data, vocabulary):
    """The cache of `data`, in several shards."""
    directory = tmp_path_factory.mktemp("caching") / "spans"
    write_cache(data, vocabulary, directory, shard_bytes=10_000)
    return directory


@pytest.mark.slow
def test_seqio_and_the_cache_give_the_same_examples_in_every_epoch(data, vocabulary, spans):
    data = dataclasses.replace(data, pack=False)
    size = Cache(spans).index.splits["train"].examples
    assert len(Cache(spans).index.splits["train"].shards) > 3
    count = size // data.batch_size + 20  # into the second epoch
    on_the_fly = data_batches.train_batches(data, vocabulary, seed=3)
    from_cache = data_batches.train_batches(
        dataclasses.replace(data, cache=str(spans)), vocabulary, seed=3
    )
    assert_equal_batches(
        itertools.islice(from_cache, count), list(itertools.islice(on_the_fly, count))
    )
    assert from_cache.epoch > 1.1
    from_cache.close()


def examples_of(batches):
    """All packed examples as (inputs, targets), sorted."""
    found = []
    for batch in batches:
        for row in range(len(batch["encoder_input_tokens"])):
            for segment in range(1, batch["encoder_segment_ids"][row].max() + 1):
                both = []
                for side, name in (("encoder", "input"), ("decoder", "target")):
                    of = batch[f"{side}_segment_ids"][row] == segment
                    both.append(batch[f"{side}_{name}_tokens"][row][of].tolist())
                found.append(both)
    return sorted(found)


@pytest.mark.slow
def test_the_held_out_examples_are_the_same(data, vocabulary, spans):
    from_cache = dataclasses.replace(data, cache=str(spans))
    expected = examples_of(data_batches.eval_batches(data, vocabulary))
    assert len(expected) == Cache(spans).index.splits["validation"].examples
    assert examples_of(data_batches.eval_batches(from_cache, vocabulary)) == expected


LAYOUTS = [
    ("prefix_lm", layouts.PrefixLM()),
    ("language_model", layouts.LM()),
    ("prefix_lm", layouts.ConcatLM(separator=" target:", loss_on_inputs=False)),
]


@pytest.mark.parametrize(("task", "layout"), LAYOUTS)
@pytest.mark.slow
def test_the_layouts_of_language_models(data, vocabulary, tmp_path, task, layout):
    data = dataclasses.replace(
        data, task=f"tasks.text:{task}", layout=layout, pack=False, targets_length=64
    )
    write_cache(data, vocabulary, tmp_path / "c", splits=["validation"])
    from_cache = dataclasses.replace(data, cache=str(tmp_path / "c"))
    assert_equal_batches(
        list(data_batches.eval_batches(from_cache, vocabulary)),
        list(data_batches.eval_batches(data, vocabulary)),
    )


def test_a_supervised_task_can_be_read_with_any_lengths(data, vocabulary, tmp_path, tiny_glue):
    data = dataclasses.replace(
        data, task="tasks.glue:sst2", directory=str(tiny_glue), targets_length=8, pack=False
    )
    index = write_cache(data, vocabulary, tmp_path / "c", splits=["train", "validation"])
    assert index.recipe.stored == ("inputs", "targets")
    assert data_batches.has_task_metrics(dataclasses.replace(data, cache=str(tmp_path / "c")))
    assert index.recipe.lengths is None
    for length in (64, 20):  # 20 trims
        shorter = dataclasses.replace(data, inputs_length=length)
        from_cache = dataclasses.replace(shorter, cache=str(tmp_path / "c"))
        assert_equal_batches(
            list(data_batches.eval_batches(from_cache, vocabulary)),
            list(data_batches.eval_batches(shorter, vocabulary)),
        )


@pytest.mark.parametrize("bake", [False, True])
@pytest.mark.slow
def test_words_at_the_end_of_inputs(data, vocabulary, tmp_path, tiny_glue, bake):
    data = dataclasses.replace(
        data,
        task="tasks.glue:sst2",
        directory=str(tiny_glue),
        layout=layouts.PrefixLM(separator=" target:"),
        inputs_length=20,
        targets_length=8,
    )
    index = write_cache(data, vocabulary, tmp_path / "c", splits=["validation"], bake=bake)
    assert index.recipe.ending == (() if bake else (*vocabulary.encode("target:"),))
    assert index.recipe.fixed == {"separator": " target:"}
    from_cache = dataclasses.replace(data, cache=str(tmp_path / "c"))
    assert_equal_batches(
        list(data_batches.eval_batches(from_cache, vocabulary)),
        list(data_batches.eval_batches(data, vocabulary)),
    )
    if not bake:
        short = dataclasses.replace(from_cache, inputs_length=2)
        with pytest.raises(InputError, match="leaves no room for text"):
            next(data_batches.eval_batches(short, vocabulary))


def test_the_words_of_a_task(data, vocabulary, tmp_path, tiny_glue):
    plain = dataclasses.replace(
        data, task="tasks.glue:sst2", directory=str(tiny_glue), targets_length=8
    )
    worded = dataclasses.replace(plain, template="is it good? {sentence}", prefix="")
    opened = write_cache(worded, vocabulary, tmp_path / "c", splits=["validation"])
    assert opened.wording == Cache(tmp_path / "c").index.wording
    assert opened.wording == {"template": "is it good? {sentence}", "prefix": ""}
    from_cache = {"cache": str(tmp_path / "c")}
    expected = examples_of(data_batches.eval_batches(worded, vocabulary))
    for how in ({}, {"task": ""}, {"task": "", "template": "", "prefix": None}):
        read = dataclasses.replace(worded, **from_cache, **how)
        assert examples_of(data_batches.eval_batches(read, vocabulary)) == expected
    for changes, message in [
        ({}, "was written with data.template 'is it good? {sentence}', but data.template is unset"),
        ({"template": worded.template}, "data.prefix '', but data.prefix is unset; set --data"),
        (
            {"template": "{sentence}", "prefix": "", "task": ""},
            "data.template is '{sentence}'; set",
        ),
    ]:
        with pytest.raises(InputError) as error:
            next(
                data_batches.eval_batches(
                    dataclasses.replace(plain, **from_cache, **changes), vocabulary
                )
            )
        assert message in str(error.value)


def test_what_the_index_says(data, vocabulary, spans):
    index = Cache(spans).index
    assert (index.task, index.dtype, index.baked) == ("tasks.text:span_corruption", "uint16", None)
    assert index.vocabulary == {"digest": vocabulary.digest, "extra_ids": 100, "size": 400}
    assert index.recipe.to_json() == {
        "stored": ["tokens"],
        "outputs": {"inputs": True, "targets": True},
        "eos": "after_trim",
        "eos_id": 1,
        "corruption": "span_corruption",
        "options": {
            "sentinel_start": 399,
            "noise_density": 0.15,
            "mean_noise_span_length": 3.0,
        },
        "lengths": {"inputs": 64, "targets": 24},
    }
    assert set(json.loads((spans / "cache.json").read_text())["splits"]) == {"train", "validation"}


@pytest.mark.slow
def test_a_baked_cache_stays_as_in_the_first_epoch(data, vocabulary, tmp_path):
    data = dataclasses.replace(data, pack=False)
    index = write_cache(data, vocabulary, tmp_path / "c", splits=["validation"], bake=True)
    assert (index.baked, index.recipe.corruption, index.recipe.eos) == (0, "", "none")
    from_cache = dataclasses.replace(data, cache=str(tmp_path / "c"))
    assert_equal_batches(
        list(data_batches.eval_batches(from_cache, vocabulary)),
        list(data_batches.eval_batches(data, vocabulary)),
    )


MY_TASKS = """
from functools import partial

import seqio

from t5x_lite.data.tasks import stages


def _task(*preprocessors):
    def task(arguments):
        return seqio.Task(
            "mine",
            source=stages.source(["train", "validation"], _texts),
            preprocessors=preprocessors,
            output_features=stages.features(arguments.vocabulary),
        )
    return task


def _texts(split):
    return stages.text_pairs(["a", "b c"], ["d", "e"] if split == "train" else ["", ""]).take(
        2 if split == "train" else 0
    )


def _mine(dataset):
    return dataset


def _split(tokens, *, seed, epoch, index):
    return {"inputs": tokens, "targets": tokens}


eos = seqio.preprocessors.append_eos_after_trim
here = seqio.CacheDatasetPlaceholder()
tokenize = seqio.preprocessors.tokenize
no_placeholder = _task(tokenize, eos)
after = _task(tokenize, here, _mine, eos)
corruption = _task(tokenize, here, partial(stages.corrupt, function=_split, seed=0), eos)
text = _task(here, tokenize, eos)
late = _task(here, eos)
eos_first = _task(tokenize, here, seqio.preprocessors.append_eos)
mapped = _task(_mine, tokenize, here, eos)
dropped = _task(
    tokenize, stages.number, lambda dataset: dataset.skip(1), here, eos
)
"""


@pytest.fixture
def my_tasks(tmp_path, monkeypatch):
    (tmp_path / "my_tasks_of_caching.py").write_text(MY_TASKS)
    monkeypatch.syspath_prepend(tmp_path)
    yield "my_tasks_of_caching"
    sys.modules.pop("my_tasks_of_caching", None)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_placeholder", "put a seqio.CacheDatasetPlaceholder() after its tokenization, or"),
        ("after", "uses _mine after its CacheDatasetPlaceholder, but this preprocessor cannot run"),
        ("corruption", "uses the corruption _split after its CacheDatasetPlaceholder"),
        ("text", "uses tokenize after its CacheDatasetPlaceholder"),
        ("late", "inputs must be a sequence of token ids at the CacheDatasetPlaceholder, but is"),
        ("dropped", "drops or reorders examples after stages.number"),
    ],
)
def test_a_task_that_cannot_be_cached_is_refused(
    data, vocabulary, tmp_path, my_tasks, name, message
):
    data = dataclasses.replace(data, task=f"{my_tasks}:{name}")
    with pytest.raises(InputError) as error:
        write_cache(data, vocabulary, tmp_path / "c")
    assert message in str(error.value)
    assert not (tmp_path / "c").exists()
    assert not list(tmp_path.glob(".c*"))


def test_a_task_without_a_placeholder_can_be_baked(data, vocabulary, tmp_path, my_tasks):
    data = dataclasses.replace(data, task=f"{my_tasks}:no_placeholder")
    write_cache(data, vocabulary, tmp_path / "c", bake=True, splits=["train"])
    found = Cache(tmp_path / "c").split("train").read(np.arange(2))
    assert found[1]["inputs"].tolist() == [*vocabulary.encode("b c"), 1]


def test_which_lengths_and_which_eos(data, vocabulary, tmp_path, my_tasks, caplog):
    one = dataclasses.replace(data, task=f"{my_tasks}:eos_first")
    index = write_cache(one, vocabulary, tmp_path / "c")
    assert (index.recipe.eos, index.recipe.lengths) == ("before_trim", None)
    assert set(index.splits) == {"train"}
    assert "skipping split validation, because it has no examples" in caplog.text
    assert not list((tmp_path / "c").glob("validation*"))
    two = dataclasses.replace(data, task=f"{my_tasks}:mapped")
    index = write_cache(two, vocabulary, tmp_path / "d", splits=["train"])
    assert index.recipe.lengths == {"inputs": 64, "targets": 24}
    with pytest.raises(InputError, match="found no example for split 'validation'"):
        write_cache(two, vocabulary, tmp_path / "e", splits=["validation"])
    with pytest.raises(InputError, match="has no split 'tset'; its splits are train"):
        write_cache(two, vocabulary, tmp_path / "e", splits=["tset"])


def test_a_bad_line_leaves_no_cache(data, vocabulary, tmp_path):
    (tmp_path / "train.txt").write_bytes(b"good\ncaf\xe9")
    (tmp_path / "validation.txt").write_text("good")
    bad = dataclasses.replace(data, directory=str(tmp_path))
    with pytest.raises(InputError, match=r"train\.txt:2: not UTF-8"):
        write_cache(bad, vocabulary, tmp_path / "c")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.txt", "validation.txt"]


def test_workers_are_counted(data, vocabulary, tmp_path):
    with pytest.raises(InputError, match="--num-workers must be at least 1, but is 0"):
        write_cache(data, vocabulary, tmp_path / "c", num_workers=0)
    with pytest.raises(InputError, match="and with --bake 1, but is 2"):
        write_cache(data, vocabulary, tmp_path / "c", num_workers=2, bake=True)
    with pytest.raises(InputError, match="no task to cache"):
        write_cache(dataclasses.replace(data, task="", cache="c"), vocabulary, tmp_path / "c")


@pytest.mark.slow
def test_several_processes_write_the_same_cache(data, vocabulary, tmp_path, spans, monkeypatch):
    from t5x_lite.data.cache import making as caching

    monkeypatch.setattr(caching, "BLOCK", 128)  # three blocks for two workers
    write_cache(data, vocabulary, tmp_path / "c", num_workers=2, shard_bytes=10_000)
    assert Cache(tmp_path / "c").digest == Cache(spans).digest
    Cache(tmp_path / "c").verify()
