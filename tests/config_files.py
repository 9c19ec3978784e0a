"""Config files of experiments, for commands that take one."""

from pathlib import Path

from t5x_lite import config


def saved(experiment: config.Experiment, directory: Path) -> str:
    """The path of a new config file in a directory."""
    path = directory / "experiment.json"
    config.save(experiment, path)
    return str(path)
