"""Experiments as frozen dataclasses.

`experiment` defines them, and `evaluation` its largest part; `file` reads the Python file that
holds one, and `json` writes and reads them as JSON. The names that configs and programs need are
given here.
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
