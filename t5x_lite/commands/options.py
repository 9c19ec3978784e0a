"""What the commands share: the types of their options, and the checks of them."""

import dataclasses
import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import tyro

from t5x_lite.commands import PROG
from t5x_lite.errors import shown
from t5x_lite.options import OptionError, option_names

Config = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CONFIG")]
Workdirs = Annotated[
    tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="WORKDIR [WORKDIR ...]")
]
Source = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SRC")]
Destination = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DST")]
SomeDirectory = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
Repository = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ORG/NAME")]
Directory = Annotated[str, tyro.conf.arg(metavar="DIR")]
Directories = Annotated[tuple[str, ...], tyro.conf.arg(metavar="DIR [DIR ...]")]
OptionalDirectory = Annotated[str | None, tyro.conf.arg(metavar="DIR")]
File = Annotated[str, tyro.conf.arg(metavar="FILE")]
Files = Annotated[tuple[str, ...], tyro.conf.arg(metavar="FILE [FILE ...]")]
OptionalFile = Annotated[str | None, tyro.conf.arg(metavar="FILE")]
Count = Annotated[int, tyro.conf.arg(metavar="N")]
OptionalCount = Annotated[int | None, tyro.conf.arg(metavar="N")]
OptionalStep = Annotated[int | Literal["best"] | None, tyro.conf.arg(metavar="N|best")]
Number = Annotated[float, tyro.conf.arg(metavar="X")]
OptionalNumber = Annotated[float | None, tyro.conf.arg(metavar="X")]
Text = Annotated[str, tyro.conf.arg(metavar="TEXT")]
Two = Annotated[tuple[float, float], tyro.conf.arg(metavar="X X")]
Three = Annotated[tuple[float, float, float], tyro.conf.arg(metavar="X X X")]
Texts = Annotated[tuple[str, ...], tyro.conf.arg(metavar="TEXT [TEXT ...]")]
OptionalText = Annotated[str | None, tyro.conf.arg(metavar="TEXT")]
LongInputs = Literal["cut", "refuse"]
Dtype = Literal["keep", "float32", "bfloat16"]
OptionalPooling = Literal["cls", "mean"] | None
OptionalFeedForward = (
    Literal["relu", "gelu", "silu", "gated-relu", "gated-gelu", "gated-silu"] | None
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Modules:
    """Modules of a checkpoint.

    Attributes:
      use: the names of those that are in use, with commas between; "" is the base alone. If not
        given, all that the checkpoint has, or of evaluate those that its config's adapters.use
        names.
    """

    use: OptionalText = None


ALL_MODULES = Modules()
"""All that the checkpoint has."""


def some_directory(directories: Sequence[str]) -> None:
    """Raises OptionError where --checkpoint names no directory."""
    if not directories:
        raise OptionError("--checkpoint needs at least one directory")


def at_least(minimum: int, values: Mapping[str, int | str | None]) -> None:
    """Raises OptionError for a number below the minimum; None is not given."""
    for name, value in values.items():
        if isinstance(value, int) and value < minimum:
            raise OptionError(f"{name} must be at least {minimum}, got {value}")
        if isinstance(value, int) and value >= 1 << 63:
            raise OptionError(f"{name} must be below 2^63, got {shown(value)}")


def before_beam(overrides: Sequence[str], *, runner: str) -> tuple[list[str], tuple[str, ...]]:
    """What comes before "--", and what comes after it: the options of Beam.

    Raises:
      OptionError: there are such options, and the runner is none of Beam.
    """
    end = overrides.index("--") if "--" in overrides else len(overrides)
    beam_options = tuple(overrides[end + 1 :])
    if beam_options and runner == "local":
        raise OptionError("options after -- are for Apache Beam; choose a --runner")
    return list(overrides[:end]), beam_options


def load_config(path: str, overrides: Sequence[str], *, command: type) -> Any:
    """The experiment of a command that has options of its own besides the config's fields."""
    from t5x_lite import config

    return config.load(
        path, overrides, prog=f"{PROG} train {path}", other_options=option_names(command)
    )


def with_epochs_of(
    path: str, overrides: Sequence[str], *, command: type, may_lack_data: bool = False
) -> Any:
    """The experiment of a command that trains, with the steps of its epochs."""
    experiment = load_config(path, overrides, command=command)
    if experiment.epochs is None:
        return experiment
    from t5x_lite.run.data_facts import with_epochs

    return with_epochs(experiment, options=overrides, may_lack_data=may_lack_data)


def refuse_output_as_input(command: Any) -> None:
    """Raises OptionError if the file of --output is also a file that the command reads."""
    options = vars(command)
    output = options.get("output")
    if not isinstance(output, str) or not os.path.isfile(output):
        return
    for name, value in options.items():
        values = value if isinstance(value, tuple) else (value,)
        for path in _paths(values) if name not in ("output", "config") else ():
            if os.path.isfile(path) and os.path.samefile(path, output):
                option = f"--{name.replace('_', '-')}"
                raise OptionError(f"--output {output} is also a file of {option}; name a new file")


def _paths(values: Sequence[Any]) -> Iterator[str]:
    """Yields the paths that options name: PATH, PATTERN, NAME=PATH or PATH=WEIGHT."""
    for value in values:
        if isinstance(value, str):
            name, _, rest = value.partition("=")
            for path in {value, name, rest, value.rpartition("=")[0]} - {""}:
                yield path
                yield from glob.iglob(path) if glob.has_magic(path) else ()
