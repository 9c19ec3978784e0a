"""A module for t5x trains, resumes, is measured and is cached as it is."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from t5x_lite.commands.texts import cache
from t5x_lite.config import Evaluation
from t5x_lite.core import project, trees
from t5x_lite.core.errors import InputError
from t5x_lite.data import batches as data_batches
from t5x_lite.data.vocabularies.loading import load_vocabulary
from t5x_lite.inference.loading import Loaded
from t5x_lite.train.measuring import evaluate
from t5x_lite.train.training import train
from tests.config_files import saved
from tests.seqio_module import written

NAME = "seqio:my_seqio.tasks:"


@pytest.fixture(scope="module")
def experiment(tmp_path_factory, tiny_experiment, tiny_vocabulary):
    """Of the nested mixture; decoded answers are short."""
    with written(tmp_path_factory.mktemp("project"), str(tiny_vocabulary)):
        data = dataclasses.replace(tiny_experiment.data, task=NAME + "count_all", directory="")
        evaluation = Evaluation(max_decode_length=4, period=6, num_samples=1)
        yield dataclasses.replace(tiny_experiment, data=data, evaluation=evaluation, steps=6)


def params_of(workdir):
    return trees.flatten(Loaded.from_checkpoint(str(workdir), step=None).params)


@pytest.fixture(scope="module")
def whole(experiment, tmp_path_factory, compile_once):
    workdir = tmp_path_factory.mktemp("seqio") / "whole"
    train(dataclasses.replace(experiment, workdir=str(workdir)))
    return workdir


@pytest.mark.exhaustive
def test_a_mixture_trains_and_goes_on_bit_for_bit(experiment, whole, tmp_path, compile_once):
    parts = dataclasses.replace(experiment, workdir=str(tmp_path / "parts"))
    train(dataclasses.replace(parts, steps=3))
    train(parts)
    found, expected = params_of(parts.workdir), params_of(whole)
    assert all(np.array_equal(found[path], expected[path]) for path in expected)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_each_task_has_its_own_metrics(experiment, whole, tmp_path):
    metrics = evaluate(experiment, [str(whole)], output=str(tmp_path / "out"))
    for name in ("count_first", "count_length", "count_random"):
        assert 0 <= metrics[f"validation/{name}/accuracy"] <= 1
    assert metrics["validation/count_length/examples"] == 7
    assert (tmp_path / "out" / "predictions" / "count_first.jsonl").is_file()
    one = dataclasses.replace(
        experiment, data=dataclasses.replace(experiment.data, task=NAME + "count_length")
    )
    alone = evaluate(one, [str(whole)])
    assert alone["validation/accuracy"] == metrics["validation/count_length/accuracy"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["count_first", "count_length", "count_random"])
def test_batches_are_those_of_seqio(experiment, name):
    """Random steps of a task included, of equal seeds."""
    from t5x_lite.data.elements import seqio

    data = dataclasses.replace(experiment.data, pack=False, shuffle=False, task=NAME + name)
    vocabulary = load_vocabulary(data.vocabulary)
    batches = data_batches.train_batches(data, vocabulary, seed=5)
    found = np.concatenate([next(batches)["encoder_input_tokens"] for _ in range(6)])
    theirs = seqio.get_mixture_or_task(name).get_dataset(
        {"inputs": data.inputs_length, "targets": data.targets_length},
        "train",
        shuffle=False,
        seed=5,
        num_epochs=None,
        use_cached=False,
    )
    expected = [example["inputs"].tolist() for example in theirs.take(24).as_numpy_iterator()]
    assert [row[row > 0].tolist() for row in found] == expected


@pytest.mark.slow
def test_a_cache_of_a_task_and_of_a_mixture(experiment, tmp_path, capsys):
    data = dataclasses.replace(experiment.data, task=NAME + "count_length", pack=False)
    whole = dataclasses.replace(experiment, data=data)
    cache(saved(whole, tmp_path), output=str(tmp_path / "c"))
    told = json.loads(capsys.readouterr().out)
    assert told["task"] == NAME + "count_length"
    assert told["splits"]["train"]["examples"] == 60
    vocabulary = load_vocabulary(data.vocabulary)
    held_out = dataclasses.replace(data, cache=str(tmp_path / "c"))
    both = [list(data_batches.eval_batches(one, vocabulary)) for one in (held_out, data)]
    for first, second in zip(*both, strict=True):
        assert all(np.array_equal(first[name], second[name]) for name in first)
    mixed = dataclasses.replace(data, task=NAME + "count_both")
    whole = dataclasses.replace(experiment, data=mixed)
    cache(saved(whole, tmp_path), output=str(tmp_path / "both"))
    names = ("count_first", "count_length")
    assert {path.name for path in (tmp_path / "both").iterdir()} == set(names)
    of_caches = dataclasses.replace(
        mixed, cache=tuple(str(tmp_path / "both" / name) for name in names)
    )
    sources = data_batches.open_sources(of_caches, vocabulary, split="train")
    assert [round(float(source.rate), 3) for source in sources] == [0.786, 0.214]
    random = dataclasses.replace(data, task=NAME + "count_random")
    whole = dataclasses.replace(experiment, data=random)
    with pytest.raises(InputError, match=r"count_random.* has no CacheDatasetPlaceholder"):
        cache(saved(whole, tmp_path), output=str(tmp_path / "random"))


def test_another_vocabulary_is_one_error_of_a_mixture_too(experiment):
    data = dataclasses.replace(experiment.data, vocabulary="bytes")
    with pytest.raises(
        InputError, match=r"^seqio task count_first: the vocabulary of its feature inputs"
    ):
        data_batches.train_batches(data, load_vocabulary("bytes"), seed=0)


def test_missing_files_are_named_with_the_option_that_leaves_them_out(experiment, tiny_vocabulary):
    from my_seqio import tasks

    gone = f"{tasks.DATA}/first_train.tsv"
    shutil.move(gone, f"{gone}.elsewhere")
    try:
        with pytest.raises(InputError) as error:
            data_batches.train_batches(
                experiment.data, load_vocabulary(experiment.data.vocabulary), seed=0
            )
    finally:
        shutil.move(f"{gone}.elsewhere", gone)
    assert str(error.value) == (
        f"cannot read the data: {gone}; No such file or directory; --data.mixing.leave-out "
        "count_first trains without it"
    )


@pytest.mark.slow
def test_a_checkpoint_imports_no_module_of_its_task(whole, tmp_path):
    """The config of a checkpoint names the task; what reads the weights never imports it."""
    before = project.opened()
    project.open_again(project.Opened())
    try:
        loaded = Loaded.from_checkpoint(str(whole), step=None)
        assert loaded.experiment.data.task == NAME + "count_all"
        assert "my_seqio" not in project.opened().named
    finally:
        project.open_again(before)
