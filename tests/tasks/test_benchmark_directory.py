"""A saved iterator over any kind of benchmark goes on bit for bit."""

import pytest

from tests.batches import assert_equal_batches, take
from tests.tasks.benchmark_directory import write


@pytest.fixture(scope="module")
def directory(tmp_path_factory, english_lines):
    root = tmp_path_factory.mktemp("benchmarks")
    write(root, english_lines[:60])
    return str(root)


# One of each way of reading: in memory, several examples a record, lists, parallel lines.
@pytest.mark.gate("squad:squad")
@pytest.mark.parametrize("task", ["glue:mnli", "super_glue:record", "squad:squad", "wmt:ende"])
@pytest.mark.slow
def test_a_saved_iterator_goes_on(task, directory, vocabulary):
    from t5x_lite.data import batches as data_batches
    from t5x_lite.data.config import Data

    data = Data(
        task=f"tasks.{task}",
        vocabulary="",
        directory=directory,
        batch_size=3,
        inputs_length=96,
        targets_length=64,
        shuffle_buffer=16,
    )
    batches = data_batches.train_batches(data, vocabulary, seed=7)
    take(batches, 3)
    state = batches.state()
    expected = take(batches, 3)
    again = data_batches.train_batches(data, vocabulary, seed=7)
    again.restore(state)
    assert_equal_batches(take(again, 3), expected)


@pytest.mark.parametrize(
    "task",
    [
        "glue:cola",
        "glue:mrpc",
        "glue:qqp",
        "glue:stsb",
        "glue:mnli_mismatched",
        "glue:qnli",
        "glue:rte",
        "super_glue:boolq",
        "super_glue:cb",
        "super_glue:copa",
        "super_glue:multirc",
        "super_glue:record",
        "super_glue:rte",
        "super_glue:wic",
        "super_glue:wsc",
        "squad:squad",
        "squad:closed_book",
    ],
)
def test_the_right_answers_have_the_best_metrics(task, directory, vocabulary):
    from t5x_lite.data import loading, reading
    from t5x_lite.data.config import Data

    data = Data(task=f"tasks.{task}", vocabulary="", directory=directory)
    examples = reading.eval_examples(data, vocabulary, max_examples=12)
    postprocess, metrics = loading.task_metrics(loading.load_task(data, vocabulary))
    answers = [
        example.targets_text if task != "super_glue:wsc" or example.target else "nobody"
        for example in examples
    ]
    predictions = [
        postprocess(answer, example=example.raw, is_target=False)
        for answer, example in zip(answers, examples, strict=True)
    ]
    values = {}
    for metric in metrics:
        found = metric([example.target for example in examples], predictions)
        assert not values.keys() & found.keys()
        values |= found
    assert values
    if task not in ("glue:stsb", "super_glue:cb"):  # all scores are equal; a class is not there
        assert set(values.values()) == {1.0}
