import dataclasses

import pytest

from t5x_lite import layouts
from t5x_lite.core.errors import InputError
from t5x_lite.data.config import Data


@pytest.fixture
def vocabulary(tiny_vocabulary):
    from t5x_lite.data.vocabularies.loading import load_vocabulary

    return load_vocabulary(tiny_vocabulary)


@pytest.fixture
def data(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    return Data(task="tasks.text:span_corruption", vocabulary="", directory=str(tmp_path))


def test_task_metrics_are_the_tasks_own(data, vocabulary):
    from t5x_lite.data import loading

    postprocess, metrics = loading.task_metrics(loading.load_task(data, vocabulary))
    assert postprocess("text", example=None, is_target=True) == "text"
    assert metrics == []


def test_task_labels_are_those_that_the_postprocessor_names(data, vocabulary):
    from t5x_lite.data import loading
    from t5x_lite.data.postprocess import ClassIndex

    task = loading.load_task(data, vocabulary)
    assert loading.task_labels(task) is None
    assert loading.task_labels(task.replace(postprocess_fn=lambda text, **_: text)) is None
    labelled = task.replace(postprocess_fn=ClassIndex(("no", "yes")))
    assert loading.task_labels(labelled) == ("no", "yes")
    postprocess, _ = loading.task_metrics(labelled)
    assert postprocess("yes", example=None, is_target=True) == 1


@pytest.fixture
def supervised(tiny_glue):
    return Data(
        task="tasks.glue:sst2",
        vocabulary="",
        directory=str(tiny_glue),
        inputs_length=12,
        targets_length=8,
        layout=layouts.PrefixLM(separator=" target:"),
    )


def test_the_words_at_the_end_of_inputs_survive_the_cut(supervised, vocabulary):
    from t5x_lite.data import loading

    words = vocabulary.encode(" target:")
    for length in (12, 200):
        data = dataclasses.replace(supervised, inputs_length=length)
        task = loading.load_task(data, vocabulary)
        assert loading.task_labels(task) == ("negative", "positive")
        for example in loading.examples_of(data, task, split="validation"):
            text = vocabulary.encode(example["inputs_pretokenized"].decode())
            expected = [*text[: length - len(words)], *words]
            assert example["inputs"].tolist() == expected
            assert example["targets"][-1] == 1


def test_unlabelled_text_leaves_room_for_the_words(data, vocabulary, tiny_text):
    from t5x_lite.data import loading

    words = vocabulary.encode(" target:")
    layout = layouts.ConcatLM(separator=" target:")
    data = dataclasses.replace(
        data, directory=str(tiny_text), inputs_length=40, targets_length=20, layout=layout
    )
    task = loading.load_task(data, vocabulary)
    first = next(loading.examples_of(data, task, split="train"))
    assert len(first["inputs"]) == 40
    assert first["inputs"].tolist()[-len(words) :] == words
    plain = dataclasses.replace(data, layout=layouts.ConcatLM(), inputs_length=40 - len(words) + 1)
    whole = next(loading.examples_of(plain, loading.load_task(plain, vocabulary), split="train"))
    assert whole["inputs"].tolist() == [*first["inputs"].tolist()[: -len(words)], 1]
    assert whole["targets"].tolist() == first["targets"].tolist()


def test_rows_without_room_for_the_words_are_refused(supervised, vocabulary):
    from t5x_lite.data import loading

    length = len(vocabulary.encode(" target:"))
    with pytest.raises(
        InputError,
        match=f"has {length} tokens, which leaves no room for text in inputs of at most {length}",
    ):
        loading.load_task(dataclasses.replace(supervised, inputs_length=length), vocabulary)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"template": "{text}"},
            "data.template cannot be set, because data.task 'tasks.text:span_corruption' does not "
            "use a template with data.layout seq2seq",
        ),
        (
            {"prefix": "", "template": "{a}"},
            "data.template and data.prefix cannot be set, because data.t",
        ),
        ({"task": "tasks.mixtures:glue", "prefix": "x"}, "data.prefix is for one task, but d"),
    ],
)
def test_words_that_do_not_reach_a_task_are_refused(data, vocabulary, changes, message):
    from t5x_lite.data.loading import trained_members

    with pytest.raises(InputError) as error:
        trained_members(dataclasses.replace(data, **changes), vocabulary)
    assert message in str(error.value)
