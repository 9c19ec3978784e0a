"""A run's config by the names that its options have on the command line.

    settings({"steps": 20, "model": {"type": "t5x_lite.models.t5:T5Config", "d_model": 64}})
    # {"--steps": "20", "model": "T5Config", "--model.d-model": "64"}

What only the config file can choose, the class of a part, has a name without dashes.
"""

from collections.abc import Mapping
from typing import Any

from t5x_lite.invocation import quoted
from t5x_lite.train.tracking import flat

_TYPE = "type"


def settings(config: Mapping[str, Any]) -> dict[str, str]:
    """Option -> value as the command line takes it; of a part its class."""
    found = {}
    for path, value in flat(config).items():
        parent, _, name = path.rpartition(".")
        if name == _TYPE:
            if parent:  # the whole is an Experiment
                found[parent] = str(value).rpartition(":")[2]
        else:
            found[f"--{path.replace('_', '-')}"] = _words(value)
    return found


def option_lines(config: Mapping[str, Any]) -> list[str]:
    """One line for each setting, to be copied: "--steps 20"; classes of parts are comments."""
    return [
        f"{name} {value}".rstrip() if name.startswith("--") else f"# {name}: {value}"
        for name, value in settings(config).items()
    ]


def _words(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(_words(each) for each in value)
    return quoted(value) if isinstance(value, str) else str(value)
