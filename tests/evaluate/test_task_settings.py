"""Which settings each task of a config has."""

import dataclasses

import pytest

from t5x_lite import layouts
from t5x_lite.config import Evaluation
from t5x_lite.core.errors import InputError
from t5x_lite.data.config import Data
from t5x_lite.data.mixing import Mixing
from t5x_lite.evaluate.task_suite import TaskSettings

DATA = Data(task="tasks.mixtures:all_proportional", vocabulary="bytes")
PAPER = "num_beams=4, length_penalty=0.6, max_decode_length=128"


def test_tasks_inherit_what_no_line_says():
    lines = (f"wmt_*: {PAPER}", "enro: num_beams=2, inputs_length=64", "tasks.squad: rank=True")
    found = TaskSettings(Evaluation(per_task=lines, batch_size=8), DATA)
    plain = Evaluation(batch_size=8)
    beam = Evaluation(batch_size=8, num_beams=4, length_penalty=0.6, max_decode_length=128)
    assert found.evaluation("glue_rte") == plain
    assert found.evaluation("wmt_ende") == beam
    assert found.evaluation("wmt_enro") == dataclasses.replace(beam, num_beams=2)
    assert found.evaluation("squad_squad") == dataclasses.replace(plain, rank=True)
    assert found.data("wmt_enro", DATA) == dataclasses.replace(DATA, inputs_length=64)
    assert found.data("wmt_ende", DATA) is DATA


def test_the_task_whose_examples_are_shown():
    lines = ("mnli_*: examples_of='tasks.glue:mnli'",)
    found = TaskSettings(Evaluation(per_task=lines), DATA)
    assert found.evaluation("glue_mnli_matched") == Evaluation()
    assert found.shown("glue_mnli_matched", DATA).task == "tasks.glue:mnli"
    assert found.shown("glue_rte", DATA) is DATA


def test_a_task_that_is_left_out_may_have_a_line():
    data = dataclasses.replace(DATA, mixing=Mixing(leave_out=("tasks.wmt",)))
    TaskSettings(Evaluation(per_task=(f"wmt_*: {PAPER}",)), data)


def test_a_task_that_stands_alone(caplog):
    caplog.set_level("INFO", logger="t5x_lite")
    data = dataclasses.replace(DATA, task="tasks.wmt:ende")
    lines = (f"wmt_*: {PAPER}", "glue_rte: rank=True")
    found = TaskSettings(Evaluation(per_task=lines), data)
    assert found.evaluation("wmt_ende").num_beams == 4
    assert not found.evaluation("wmt_ende").rank
    assert caplog.messages == [
        "ignoring the line 'glue_rte' of evaluation.per_task, which does not match data.task"
    ]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("wmt_ened", r"per_task: no task matches the pattern 'wmt_ened'; did you mean wmt_ende\?$"),
        ("xyz*", r"no task matches the pattern 'xyz\*'; the tasks are glue_cola, glue_sst2, "),
    ],
)
def test_a_line_about_no_task_is_refused(pattern, message):
    with pytest.raises(InputError, match=message):
        TaskSettings(Evaluation(per_task=(f"{pattern}: num_beams=2",)), DATA)


def test_rows_of_a_head_have_one_length():
    data = Data(task="tasks.glue:rte", vocabulary="bytes", layout=layouts.Labelled(), pack=False)
    TaskSettings(Evaluation(per_task=("rte: batch_size=2",)), data)
    with pytest.raises(InputError, match=r"has one length for all rows; set --data\.inputs-length"):
        TaskSettings(Evaluation(per_task=("rte: inputs_length=64",)), data)
