import pytest

from t5x_lite.data.config import Data


@pytest.fixture
def vocabulary(tiny_vocabulary):
    from t5x_lite.vocabulary.loading import load_vocabulary

    return load_vocabulary(tiny_vocabulary)


@pytest.fixture
def data(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    return Data(task="tasks.text:span_corruption", vocabulary="", directory=str(tmp_path))


def test_task_metrics_are_the_tasks_own(data, vocabulary):
    from t5x_lite.data.live import tasks as live_tasks

    postprocess, metrics = live_tasks.task_metrics(live_tasks.load_task(data, vocabulary))
    assert postprocess("text", example=None, is_target=True) == "text"
    assert metrics == []


def test_task_labels_are_those_that_the_postprocessor_names(data, vocabulary):
    from t5x_lite.data.live import tasks as live_tasks
    from t5x_lite.data.postprocess import ClassIndex

    task = live_tasks.load_task(data, vocabulary)
    assert live_tasks.task_labels(task) is None
    assert live_tasks.task_labels(task.replace(postprocess_fn=lambda text, **_: text)) is None
    labelled = task.replace(postprocess_fn=ClassIndex(("no", "yes")))
    assert live_tasks.task_labels(labelled) == ("no", "yes")
    postprocess, _ = live_tasks.task_metrics(labelled)
    assert postprocess("yes", example=None, is_target=True) == 1
