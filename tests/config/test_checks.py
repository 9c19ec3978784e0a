"""Fields that must have a value."""

import copy
import dataclasses

import pytest

from t5x_lite.config import Checkpoints, Evaluation, Hosts
from t5x_lite.core.errors import InputError


@pytest.mark.parametrize(
    ("config", "name"),
    [
        *((Checkpoints, name) for name in ("keep", "period", "timeout", "whole")),
        *((Evaluation, name) for name in ("period", "num_beams", "few_shot", "split")),
        *((Hosts, name) for name in ("heartbeat", "watchdog", "coordinator")),
    ],
)
def test_none_for_a_field_that_must_have_a_value(config, name):
    where = config.__name__.lower()
    with pytest.raises(InputError, match=f"^{where}.{name} must have a value, got None$"):
        _with_none(config(), name).__post_init__()


@pytest.mark.parametrize("name", ["steps", "data", "seed", "log_period", "compilation_cache"])
def test_none_in_an_experiment(tiny_experiment, name):
    with pytest.raises(InputError, match=rf"^(config field )?{name} must "):
        _with_none(tiny_experiment, name).__post_init__()


@pytest.mark.parametrize("part", ["data", "model", "mesh", "tracking"])
def test_none_at_any_depth_of_an_experiment(tiny_experiment, part):
    name = dataclasses.fields(getattr(tiny_experiment, part))[0].name
    config = _with_none(getattr(tiny_experiment, part), name)
    with pytest.raises(InputError, match=rf"^{part}.{name} must have a value, got None$"):
        dataclasses.replace(tiny_experiment, **{part: config})


def _with_none(config, name):
    """Copy a config with None in a field; the tests' type checks would refuse it in `replace`."""
    config = copy.copy(config)
    object.__setattr__(config, name, None)
    return config
