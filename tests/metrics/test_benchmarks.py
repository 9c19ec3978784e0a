"""The published rows of BERT-large give the published scores of both benchmarks."""

import pytest

from t5x_lite.metrics.benchmarks import BENCHMARKS, GLUE, GLUE_WITHOUT_WNLI, SUPER_GLUE, task_score

# BERT-large on GLUE's leaderboard, and on SuperGLUE's (Wang et al. 2019, table 3).
BERT_GLUE = {
    "glue_cola": {"matthews_correlation": 60.5},
    "glue_sst2": {"accuracy": 94.9},
    "glue_mrpc": {"f1": 89.3, "accuracy": 85.4},
    "glue_stsb": {"pearson_corrcoef": 87.6, "spearman_corrcoef": 86.5},
    "glue_qqp": {"f1": 72.1, "accuracy": 89.3},
    "glue_mnli_matched": {"accuracy": 86.7},
    "glue_mnli_mismatched": {"accuracy": 85.9},
    "glue_qnli": {"accuracy": 92.7},
    "glue_rte": {"accuracy": 70.1},
    "glue_wnli": {"accuracy": 65.1},
}
BERT_SUPER_GLUE = {
    "super_glue_boolq": {"accuracy": 77.4},
    "super_glue_cb": {"mean_3class_f1": 75.7, "accuracy": 83.6},
    "super_glue_copa": {"accuracy": 70.6},
    "super_glue_multirc": {"f1": 70.0, "exact_match": 24.1},
    "super_glue_record": {"f1": 72.0, "exact_match": 71.3},
    "super_glue_rte": {"accuracy": 71.7},
    "super_glue_wic": {"accuracy": 69.6},
    "super_glue_wsc": {"accuracy": 64.4},
}


def test_the_leaderboards_scores_of_bert():
    assert GLUE.score(BERT_GLUE) == pytest.approx(80.5, abs=0.05)
    assert SUPER_GLUE.score(BERT_SUPER_GLUE) == pytest.approx(69.0, abs=0.05)


def test_wnli_may_be_left_out():
    without = {name: metrics for name, metrics in BERT_GLUE.items() if name != "glue_wnli"}
    assert GLUE.score(without) is None
    assert GLUE.missing(without) == ["WNLI"]
    assert GLUE_WITHOUT_WNLI.score(without) == GLUE_WITHOUT_WNLI.score(BERT_GLUE)
    assert GLUE_WITHOUT_WNLI.score(without) == pytest.approx((80.52 * 9 - 65.1) / 8, abs=0.01)


def test_rows_are_means():
    rows = GLUE.row_scores(BERT_GLUE)
    assert list(rows) == [
        "CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE", "WNLI",
    ]  # fmt: skip
    assert rows["MNLI"] == pytest.approx(86.3)
    assert rows["MRPC"] == pytest.approx(87.35)
    half = {"glue_mnli_matched": {"accuracy": 1.0}, "glue_rte": {"accuracy": 0.5}, "glue_qqp": {}}
    assert GLUE.row_scores(half) == {"RTE": 0.5}


def test_a_task_s_score_is_the_mean_of_its_metrics():
    assert task_score({"f1": 0.5, "accuracy": 1.0}) == 0.75
    assert task_score({"precision": 1.0, "recall": 0.25, "f1": 0.4}) == 0.4
    assert task_score({"precision": 1.0, "recall": 0.0}) == 0.5
    assert task_score({"word_error_rate": 0.25}) == -0.25
    with pytest.raises(ValueError, match="requires at least one metric"):
        task_score({})


def test_names_are_the_benchmarks_own():
    assert [benchmark.name for benchmark in BENCHMARKS] == [
        "GLUE", "GLUE without WNLI", "SuperGLUE", "XNLI",
    ]  # fmt: skip
