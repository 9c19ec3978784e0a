"""The surface of the command line is frozen: commands, options, types and defaults.

A change here breaks somebody's scripts: it needs a line in CHANGELOG.md.
"""

import dataclasses
import typing
from pathlib import Path

from t5x_lite.adapters.config import Adapters
from t5x_lite.c4.config import Cleaning
from t5x_lite.checkpoints.init import Init
from t5x_lite.commands import COMMANDS
from t5x_lite.config import Checkpoints, Evaluation, Experiment, FewShot, Hosts
from t5x_lite.evaluate.retrieval import Retrieval
from t5x_lite.options import is_configs, is_positional
from t5x_lite.sharding import MeshConfig
from t5x_lite.train.early_stopping import EarlyStopping
from t5x_lite.train.profiling import Profile
from t5x_lite.train.tracking import Tracking

GOLDEN = Path(__file__).parent / "golden" / "cli_surface.txt"


def surface() -> str:
    """Lists every command with its options, and the options that every config has."""
    lines = []
    for name, command in COMMANDS.items():
        lines += [f"t5x-lite {name}", *_options(command), *_options_of_parts(command)]
        if command.takes_overrides:
            lines.append("  [--FIELD VALUE ...]")
        lines.append("")
    lines += ["fields of every config", *_options(Experiment)]
    parts = {
        "adapters": Adapters,
        "init": Init,
        "checkpoints": Checkpoints,
        "evaluation": Evaluation,
        "evaluation.few_shot": FewShot,
        "evaluation.retrieval": Retrieval,
        "mesh": MeshConfig,
        "hosts": Hosts,
        "profile": Profile,
        "stop_early": EarlyStopping,
        "tracking": Tracking,
    }
    for name, part in parts.items():
        lines += _options(part, prefix=f"{name}.")
    lines += ["", "rules of t5x-lite c4", *_options(Cleaning, prefix="cleaning.")]
    return "\n".join(lines) + "\n"


def _options_of_parts(command: typing.Any) -> list[str]:
    parts = {name: hint for name, hint in typing.get_type_hints(command).items()
             if dataclasses.is_dataclass(hint)}  # fmt: skip
    return [line for name, hint in parts.items() for line in _options(hint, prefix=f"{name}.")]


def _options(config: typing.Any, *, prefix: str = "") -> list[str]:
    marked = typing.get_type_hints(config, include_extras=True)
    hints = typing.get_type_hints(config)
    lines = []
    for field in dataclasses.fields(config):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint) or is_configs(hint):
            continue
        name = f"--{prefix}{field.name.replace('_', '-')}"
        if is_positional(marked[field.name]):
            name = field.name.upper()
        shown = hint.__name__ if isinstance(hint, type) and hint.__name__ != "tuple" else str(hint)
        default = "required" if field.default is dataclasses.MISSING else repr(field.default)
        lines.append(f"  {name}: {shown.replace('typing.', '')} = {default}")
    return lines


def test_surface_is_frozen():
    assert surface() == GOLDEN.read_text(encoding="utf-8"), (
        "the command line changed; if that is meant, run python tests/test_cli_surface.py"
    )


if __name__ == "__main__":
    GOLDEN.write_text(surface(), encoding="utf-8")
