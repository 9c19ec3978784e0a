"""Experiments as frozen dataclasses.

`experiment` defines them, `file` reads the Python file that holds one, and `json` writes and reads
them as JSON. The names that configs and programs need are given here.
"""

from t5x_lite.config.experiment import (
    MATCHING_FIELDS,
    Checkpoints,
    Evaluation,
    Experiment,
    Hosts,
    check_same_experiment,
    differences,
    load,
    save,
)

__all__ = [
    "MATCHING_FIELDS",
    "Checkpoints",
    "Evaluation",
    "Experiment",
    "Hosts",
    "check_same_experiment",
    "differences",
    "load",
    "save",
]
