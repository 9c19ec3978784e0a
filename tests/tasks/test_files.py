import dataclasses

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.preprocessors import Columns
from tests.tasks.examples import pairs

REVIEWS = Columns(inputs="review: {text}", targets="{stars}", labels=("1=bad", "5=good"))


@pytest.fixture
def files():
    from tasks import files

    return files


@pytest.fixture
def arguments(tmp_path, tiny_vocabulary):
    from t5x_lite.data.config import TaskArguments
    from t5x_lite.data.vocabularies.loading import load_vocabulary

    (tmp_path / "train.csv").write_text('text,stars\n"Fine, fine",5\nNo,1\n')
    (tmp_path / "dev.tsv").write_text("stars\ttext\n1\tOh\n")
    return TaskArguments(
        vocabulary=load_vocabulary(tiny_vocabulary),
        directory=str(tmp_path),
        inputs_length=64,
        targets_length=16,
        columns=REVIEWS,
    )


def test_the_config_says_which_columns(files, arguments):
    task = files.classify(arguments)
    assert pairs(task, "train") == [("review: Fine, fine", "good"), ("review: No", "bad")]
    assert pairs(task, "validation") == [("review: Oh", "bad")]
    assert set(task.splits) == {"train", "validation"}
    assert task.postprocess_fn("good") == 1


def test_data_columns_reach_the_task(arguments):
    from t5x_lite.data import loading, reading
    from t5x_lite.data.config import Data

    data = Data(
        task="tasks.files:classify",
        vocabulary="",
        directory=arguments.directory,
        columns=REVIEWS,
        inputs_length=64,
        targets_length=16,
    )
    (example,) = reading.eval_examples(data, arguments.vocabulary)
    assert (example.inputs_text, example.targets_text, example.target) == ("review: Oh", "bad", 0)
    task = loading.load_task(data, arguments.vocabulary)
    assert loading.task_labels(task) == ("bad", "good")


@pytest.mark.parametrize(
    ("name", "target", "prediction", "expected"),
    [
        ("text_to_text", "a", "a", {"exact_match": 1.0}),
        ("classify", "good", "fine", {"accuracy": 0.0}),
        ("answer", "The rain.", "rain", {"exact_match": 1.0, "f1": 1.0}),
    ],
)
def test_metrics(files, arguments, name, target, prediction, expected):
    task = getattr(files, name)(arguments)
    post = task.postprocess_fn
    (metric,) = task.predict_metric_fns
    targets = [post(target, example={}, is_target=True)]
    assert metric(targets, [post(prediction, example={}, is_target=False)]) == expected


def test_metrics_of_free_text(files, arguments):
    names = {
        name: [metric.__name__ for metric in getattr(files, name)(arguments).predict_metric_fns]
        for name in ("translate", "summarize", "regress")
    }
    assert names == {
        "translate": ["bleu"],
        "summarize": ["rouge"],
        "regress": ["pearson", "spearman"],
    }
    assert files.regress(arguments).postprocess_fn("2.5") == 2.5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"columns": Columns()}, r"data\.columns\.inputs must name a column in braces"),
        ({"directory": "elsewhere"}, r"data.directory elsewhere: no such file or directory"),
        ({"directory": ""}, r"no train, validation or test file"),
    ],
)
def test_what_is_missing_is_said(files, arguments, changes, message):
    with pytest.raises(InputError, match=message):
        files.text_to_text(dataclasses.replace(arguments, **changes))


def test_labels_come_from_the_training_rows(files, arguments):
    columns = dataclasses.replace(REVIEWS, labels=())
    task = files.classify(dataclasses.replace(arguments, columns=columns))
    assert pairs(task, "train") == [("review: Fine, fine", "5"), ("review: No", "1")]
    assert (task.postprocess_fn("1"), task.postprocess_fn("5")) == (0, 1)
    held_out = dataclasses.replace(columns, validation=("dev.tsv",))
    with pytest.raises(InputError, match=r"classify needs data\.columns\.labels, or training rows"):
        files.classify(dataclasses.replace(arguments, columns=held_out))


def test_a_template_takes_the_place_of_the_inputs(files, arguments):
    worded = dataclasses.replace(arguments, template="{text} Stars?")
    assert pairs(files.classify(worded), "validation") == [("Oh Stars?", "bad")]
    prefixed = dataclasses.replace(arguments, prefix="film")
    assert pairs(files.classify(prefixed), "validation") == [("film review: Oh", "bad")]
    bare = dataclasses.replace(worded, columns=dataclasses.replace(REVIEWS, inputs=""))
    assert pairs(files.classify(bare), "validation") == [("Oh Stars?", "bad")]
    wrong = dataclasses.replace(arguments, template="{title}")
    with pytest.raises(
        InputError, match=r"dev\.tsv:1: the header lacks title; the columns are stars, text"
    ):
        pairs(files.classify(wrong), "validation")
