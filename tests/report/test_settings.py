"""Tests of a config by the names of its options."""

from t5x_lite.report.runs import option_lines, settings

CONFIG = {
    "type": "t5x_lite.config.experiment:Experiment",
    "steps": 20,
    "model": {"type": "t5x_lite.models.t5:T5Config", "d_model": 64, "tied": True},
    "train": ["heads/mlm", "a b"],
    "heads": [{"type": "t5x_lite.models.heads:Mlm", "name": "mlm"}],
    "stop_early": {"metric": None},
    "workdir": "",
}


def test_settings_have_the_names_of_the_command_line():
    assert settings(CONFIG) == {
        "--steps": "20",
        "model": "T5Config",
        "--model.d-model": "64",
        "--model.tied": "True",
        "--train": "heads/mlm 'a b'",
        "heads.0": "Mlm",
        "--heads.0.name": "mlm",
        "--stop-early.metric": "None",
        "--workdir": "''",
    }


def test_lines_can_be_copied():
    assert option_lines(CONFIG)[:3] == ["--steps 20", "# model: T5Config", "--model.d-model 64"]
