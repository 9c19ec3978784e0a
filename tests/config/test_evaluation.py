"""Evaluation: settings by task, and where its class is named."""

import json

import pytest

from configs.tiny_finetune import experiment
from t5x_lite import config
from t5x_lite.config import Evaluation, FewShot
from t5x_lite.core.errors import InputError

LINES = ("wmt_*: num_beams=4, max_examples=None", "glue_rte: rank=True, inputs_length=64")


def test_other_settings_of_a_task():
    settings = Evaluation(per_task=LINES, max_examples=7, batch_size=3)
    assert [line.pattern for line in settings.lines] == ["wmt_*", "glue_rte"]
    changed = settings.changed(settings.lines[0].values)
    assert changed == Evaluation(num_beams=4, max_examples=None, batch_size=3)
    assert settings.changed(settings.lines[1].values) == Evaluation(
        rank=True, max_examples=7, batch_size=3
    )
    assert settings.ranks
    assert not Evaluation(per_task=LINES[:1]).ranks


def test_a_value_out_of_range_names_the_line():
    message = r"^evaluation\.per_task 'wmt_\*': evaluation\.num_beams must be at least 1: got 0$"
    with pytest.raises(InputError, match=message):
        Evaluation(per_task=("wmt_*: num_beams=0",))


def test_examples_are_shown_for_task_metrics():
    with pytest.raises(InputError, match=r"set --evaluation\.task-metrics True"):
        Evaluation(few_shot=FewShot(examples=1), task_metrics=False)


def test_metrics_of_classes_have_names():
    with pytest.raises(InputError, match=r"macro_f1, weighted_f1, got 'macro_F1'; .*macro_f1"):
        Evaluation(class_metrics=("macro_F1",))


def test_options_and_a_saved_config(tmp_path):
    options = ["--evaluation.per-task", *LINES, "--evaluation.few-shot.examples", "2"]
    options += [
        "--evaluation.few-shot.seeds",
        "0",
        "1",
        "--evaluation.few-shot.templates",
        "Q: {inputs} A: {targets}",
    ]
    config.save(experiment, tmp_path / "plain.json")
    changed = config.load(tmp_path / "plain.json", options)
    assert changed.evaluation.per_task == LINES
    assert changed.evaluation.few_shot == FewShot(
        examples=2, seeds=(0, 1), templates=("Q: {inputs} A: {targets}",)
    )
    config.save(changed, tmp_path / "config.json")
    assert config.load(tmp_path / "config.json") == changed


@pytest.mark.parametrize("module", ["t5x_lite.config.experiment", "t5x_lite.config"])
def test_a_config_of_before_there_were_few_shot_prompts(tmp_path, module):
    config.save(experiment, tmp_path / "config.json")
    content = json.loads((tmp_path / "config.json").read_text())
    assert content["evaluation"]["type"] == "t5x_lite.config.evaluation:Evaluation"
    content["evaluation"]["type"] = f"{module}:Evaluation"
    del content["evaluation"]["per_task"], content["evaluation"]["few_shot"]
    (tmp_path / "config.json").write_text(json.dumps(content))
    assert config.load(tmp_path / "config.json") == experiment
