"""What `evaluate` writes of a single task; of a mixture, see test_task_suite.py."""

import dataclasses
import json

import pytest

from t5x_lite.config import Evaluation
from t5x_lite.core.errors import InputError
from t5x_lite.core.sharding import MeshConfig, make_mesh
from t5x_lite.evaluate.results import Outcome, SameParams, Submissions, check_output
from t5x_lite.inference.loading import Loaded
from t5x_lite.train.measuring import Measurement


def test_a_single_task_has_one_file_of_predictions(
    tiny_run, tiny_experiment, tiny_glue, tmp_path, caplog, compile_once
):
    pytest.importorskip("seqio")
    caplog.set_level("INFO", logger="t5x_lite")
    settings = Evaluation(loss=False, max_examples=4, max_decode_length=4, bootstrap=10)
    experiment = dataclasses.replace(
        tiny_experiment,
        data=dataclasses.replace(
            tiny_experiment.data, task="tasks.glue:sst2", directory=str(tiny_glue)
        ),
        evaluation=settings,
    )
    loaded = Loaded.from_checkpoint(str(tiny_run), step=None)
    made = Measurement(
        experiment, loaded.learner, loaded.vocabulary, mesh=make_mesh(MeshConfig()), workdir=None
    )
    metrics = made(10, loaded.params)
    outcome = Outcome(
        made.suite,
        settings,
        metrics,
        SameParams(loaded.params, 10),
        Submissions(made.suite, settings),
    )
    outcome.tell()
    outcome.write(tmp_path / "out", {"step": 10, **metrics})
    content = json.loads((tmp_path / "out" / "metrics.json").read_text())
    lines = (tmp_path / "out" / "predictions.jsonl").read_text().splitlines()
    wrong = sum(json.loads(line)["prediction"] not in ("negative", "positive") for line in lines)
    assert len(lines) == 4
    assert content["invalid_predictions"] == wrong
    told = f"glue_sst2: {wrong} of 4 predictions were not valid labels and count as wrong"
    assert (told in caplog.messages) == (wrong > 0)
    assert list(content["intervals"]) == ["validation/accuracy"]
    assert set(content) == {"step", "intervals", "invalid_predictions", *metrics}
    assert "glue_sst2: metrics of each class\n                  precision  recall" in caplog.text
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "classes.jsonl",
        "metrics.json",
        "predictions.jsonl",
    ]


def test_a_run_without_a_task_has_its_metrics_alone(tmp_path):
    outcome = Outcome(
        None,
        Evaluation(),
        {"validation/loss": 2.0},
        SameParams({}, 5),
        Submissions(None, Evaluation()),
    )
    outcome.tell()
    outcome.write(tmp_path, {"step": 5, "validation/loss": 2.0})
    assert json.loads((tmp_path / "metrics.json").read_text()) == {
        "step": 5,
        "validation/loss": 2.0,
    }
    assert [p.name for p in tmp_path.iterdir()] == ["metrics.json"]


def test_check_output(tmp_path):
    check_output(tmp_path / "a" / "b")
    check_output(tmp_path)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="is not a directory"):
        check_output(tmp_path / "file")
    with pytest.raises(InputError, match="cannot be written"):
        check_output(tmp_path / "file" / "below")
