"""Experiments as frozen dataclasses.

`experiment` defines the config of a run, `evaluation` its settings for evaluation. `file` reads
configs from Python files and JSON. The names that configs and programs need are exported here.
"""

from t5x_lite.config.evaluation import Evaluation
from t5x_lite.config.experiment import (
    MATCHING_FIELDS,
    Checkpoints,
    Experiment,
    Hosts,
    check_same_experiment,
    differences,
    load,
    save,
)
from t5x_lite.data.few_shot import FewShot

__all__ = [
    "MATCHING_FIELDS",
    "Checkpoints",
    "Evaluation",
    "Experiment",
    "FewShot",
    "Hosts",
    "check_same_experiment",
    "differences",
    "load",
    "save",
]
