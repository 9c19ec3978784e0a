import math

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.metrics.benchmarks import (
    Standing,
    benchmark_scores,
    best_steps,
    best_tasks,
    scored,
    table,
    with_score,
)


def evaluation(rte, mrpc):
    tasks = {"glue_rte": {"accuracy": rte}, "glue_mrpc": {"f1": mrpc, "accuracy": mrpc - 0.1}}
    return {f"validation/{name}": value for name, value in scored(tasks).items()}


EVALUATIONS = {5: evaluation(0.5, 0.8), 10: evaluation(0.7, 0.7), 15: evaluation(0.7, 0.6)}


def test_scored():
    assert scored({"a_b": {"f1": 0.5, "accuracy": 1.0}, "a_c": {"accuracy": 0.25}}) == {
        "a_b/f1": 0.5, "a_b/accuracy": 1.0, "a_b/score": 0.75, "a_c/accuracy": 0.25,
        "a_c/score": 0.25, "score": 0.5,
    }  # fmt: skip
    assert scored({}) == {}
    tasks = {"glue_rte": {"accuracy": 0.5}, "glue_wnli": {"accuracy": 0.75}}
    assert scored(tasks, aside=["glue_wnli"])["score"] == 0.5
    assert scored(tasks, aside=tasks)["score"] == 0.625


def test_a_single_task_has_a_score():
    assert with_score({"f1": 0.5, "accuracy": 1.0}) == {"f1": 0.5, "accuracy": 1.0, "score": 0.75}
    assert with_score({"accuracy": 0.5, "score": 9.0}) == {"accuracy": 0.5, "score": 9.0}
    assert with_score({}) == {}
    runs = {5: {"v/accuracy": 0.5, "v/score": 0.5}, 10: {"v/accuracy": 0.25, "v/score": 0.25}}
    assert best_steps(runs, ["my_task"], split="v") == {"my_task": 5}


def test_each_task_has_its_best_step():
    names = ["glue_rte", "glue_mrpc", "glue_ax"]
    # Of equals the last; a task that was never measured has the best mean.
    assert best_steps(EVALUATIONS, names, split="validation") == {
        "glue_rte": 15, "glue_mrpc": 5, "glue_ax": 10,
    }  # fmt: skip
    with pytest.raises(InputError, match="no checkpoint has the metric test/score"):
        best_steps(EVALUATIONS, names, split="test")
    with pytest.raises(InputError, match="no checkpoint"):
        best_steps({}, names, split="validation")
    with pytest.raises(
        InputError, match=r"metrics of the checkpoints: v/loss, v/f1\); unset .* and give --step"
    ):
        best_steps({5: {"v/loss": 1.0, "v/f1": 0.5}}, names, split="v")


def test_best_tasks():
    rows = best_tasks(EVALUATIONS, split="validation")
    assert rows["glue_rte"] == Standing(step=15, metrics={"accuracy": 0.7})
    assert rows["glue_mrpc"].step == 5
    assert rows["glue_mrpc"].metrics == {"f1": 0.8, "accuracy": pytest.approx(0.7)}
    assert best_tasks({5: {"validation/accuracy": 1.0}}, split="validation") == {}


def test_what_is_no_number_is_never_best():
    evaluations = {5: {"v/a_b/score": 0.1, "v/a_b/f1": 0.1}, 10: {"v/a_b/score": math.nan}}
    assert best_tasks(evaluations, split="v") == {"a_b": Standing(step=5, metrics={"f1": 0.1})}


def test_benchmark_scores():
    assert benchmark_scores({"my_task": {"accuracy": 1.0}}) == {}
    found = benchmark_scores({"super_glue_cb": {"mean_3class_f1": 0.5, "accuracy": 0.7}})
    assert found == {
        "SuperGLUE": {
            "score": None,
            "rows": {"CB": pytest.approx(0.6)},
            "missing": ["BoolQ", "COPA", "MultiRC", "ReCoRD", "RTE", "WiC", "WSC"],
        }
    }


def test_table():
    rows = best_tasks(EVALUATIONS, split="validation")
    assert table(rows).splitlines() == [
        "task       step  score  metrics",
        "glue_rte     15  70.00  accuracy 70.00",
        "glue_mrpc     5  75.00  f1 80.00  accuracy 70.00",
        "GLUE average not computed; missing: CoLA, SST-2, STS-B, QQP, MNLI, QNLI, WNLI",
    ]
    whole = {
        f"super_glue_{name}": Standing(step=1000, metrics={"accuracy": 0.5})
        for name in ("boolq", "cb", "copa", "multirc", "record", "rte", "wic", "wsc")
    }
    assert table(whole).splitlines()[-1] == "SuperGLUE: 50.00"
    assert "1,000" in table(whole)
    names = (
        "cola",
        "sst2",
        "mrpc",
        "stsb",
        "qqp",
        "mnli_matched",
        "mnli_mismatched",
        "qnli",
        "rte",
    )
    glue = {f"glue_{name}": Standing(step=5, metrics={"accuracy": 0.5}) for name in names}
    assert table(glue).splitlines()[-2:] == [
        "GLUE average not computed; missing: WNLI",
        "GLUE without WNLI: 50.00",
    ]
    wnli = {"glue_wnli": Standing(step=5, metrics={"accuracy": 0.5})}
    assert table(whole | wnli).splitlines()[-1] == "SuperGLUE: 50.00"
    assert table({}) == "no task was evaluated"
