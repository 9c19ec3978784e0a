"""The files for servers, whatever is wrong with one of them; of a whole suite: test_task_suite."""

import pytest

from t5x_lite.config import Evaluation
from t5x_lite.core.errors import InputError
from t5x_lite.evaluate.results import SameParams, Submissions
from t5x_lite.evaluate.submission import Answer
from t5x_lite.evaluate.task_suite import TaskSuite

CHOSEN = SameParams({}, 10)


class Suite(TaskSuite):
    """RTE whose file is bad, CoLA with one answer, AX whose answers have one number twice."""

    def __init__(self, names, *, whole=True):
        self._names = names
        self._whole = whole

    def is_whole(self, name):
        return self._whole

    def submittable(self):
        return self._names

    def check_test(self, name):
        if name == "glue_rte":
            raise InputError("RTE/test.tsv:2: not UTF-8")

    def answers(self, name, params):
        if name == "glue_cola":
            return [Answer(index=(0,), text="good", value=-1)]
        return [Answer(index=(7,), text="neutral", value=1)] * 2 if name == "glue_ax" else None


def test_what_is_wrong_with_one_costs_it_alone(tmp_path, caplog):
    caplog.set_level("INFO", logger="t5x_lite")
    made = Submissions(Suite(["glue_rte", "glue_sst2", "glue_ax", "glue_cola"]), Evaluation())
    assert caplog.messages == [
        "glue_rte: skipping the submission file, because RTE/test.tsv:2: not UTF-8"
    ]
    assert made.names == ["glue_sst2", "glue_ax", "glue_cola"]
    (tmp_path / "glue").mkdir()
    (tmp_path / "glue" / "RTE.tsv").write_text("old")
    with pytest.raises(InputError) as caught:
        made.write(tmp_path, CHOSEN)
    assert str(caught.value) == (
        "2 of 3 submission files could not be written (glue_rte: RTE/test.tsv:2: not UTF-8; "
        "glue_ax: AX.tsv: two test examples have the index 7); files of an earlier command remain: "
        f"{tmp_path}/glue/RTE.tsv"
    )
    assert (tmp_path / "glue" / "CoLA.tsv").read_text() == "index\tprediction\n0\t0\n"
    assert caplog.messages[2] == (
        f"{tmp_path}/glue/CoLA.tsv: 1 predictions were not valid labels; wrote the default "
        "label 0 instead"
    )


def test_nothing_is_read_that_is_not_written(tmp_path, caplog):
    caplog.set_level("INFO", logger="t5x_lite")
    for suite, settings in (
        (None, Evaluation()),
        (Suite(["glue_rte"]), Evaluation(submission=False)),
        (Suite(["glue_rte"], whole=False), Evaluation(max_examples=3)),
    ):
        Submissions(suite, settings).write(tmp_path, CHOSEN)
    assert caplog.messages == ["skipping submission files, because evaluation.max_examples is set"]
    assert list(tmp_path.iterdir()) == []
