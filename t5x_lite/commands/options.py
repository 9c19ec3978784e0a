"""Options that several commands share: their checks, and loading the config that CONFIG names."""

import glob
import importlib
import logging
import os
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from t5x_lite.commands import PROG
from t5x_lite.core.errors import InputError, install_command
from t5x_lite.core.options import OptionError, option_names

_logger = logging.getLogger(__name__)


def some_directory(directories: Sequence[str]) -> None:
    """Raise OptionError if --checkpoint was given without a directory."""
    if not directories:
        raise OptionError("--checkpoint needs at least one directory")


def before_beam(overrides: Sequence[str], *, runner: str) -> tuple[list[str], tuple[str, ...]]:
    """Split arguments at "--" into the command's arguments and the options of Apache Beam.

    Raises:
      OptionError: if there are options after "--", but the runner is local.
    """
    end = overrides.index("--") if "--" in overrides else len(overrides)
    beam_options = tuple(overrides[end + 1 :])
    if beam_options and runner == "local":
        raise OptionError(
            "the options after -- are for Apache Beam, but --runner is local; set --runner to "
            "an Apache Beam runner"
        )
    return list(overrides[:end]), beam_options


def load_driver(module: str, *, runner: str, extras: str) -> ModuleType:
    """Import and return a module that runs on Apache Beam.

    Args:
      module: full name of the module.
      runner: name of the Beam runner, for messages.
      extras: extras of this package to install for the module, separated by commas.

    Raises:
      InputError: if Beam or another dependency of the module is not installed.
    """
    silent = logging.NullHandler()
    logging.root.addHandler(silent)  # Beam warns at its import of what only BigQuery needs
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise InputError(
            f"--runner {runner} needs Apache Beam, which is missing; run "
            f"{install_command(*extras.split(','))}"
        ) from error
    finally:
        logging.root.removeHandler(silent)
    _logger.info("submitting the Beam pipeline to %s and waiting for its end", runner)
    return found


def load_config(path: str, overrides: Sequence[str], *, command: type) -> Any:
    """Return the experiment of a config file, for a command with additional options."""
    from t5x_lite import config

    return config.load(
        path, overrides, prog=f"{PROG} train {path}", other_options=option_names(command)
    )


def with_epochs_of(
    path: str, overrides: Sequence[str], *, command: type, may_lack_data: bool = False
) -> Any:
    """Return the experiment of a config file, with its number of epochs converted to steps."""
    experiment = load_config(path, overrides, command=command)
    if experiment.epochs is None:
        return experiment
    from t5x_lite.train.completion import with_epochs

    return with_epochs(experiment, options=overrides, may_lack_data=may_lack_data)


def refuse_output_as_input(command: Any) -> None:
    """Raise OptionError if the file of --output is also an input file of the command."""
    options = vars(command)
    output = options.get("output")
    if not isinstance(output, str) or not os.path.isfile(output):
        return
    for name, value in options.items():
        values = value if isinstance(value, tuple) else (value,)
        for path in _paths(values) if name not in ("output", "config") else ():
            if os.path.isfile(path) and os.path.samefile(path, output):
                option = f"--{name.replace('_', '-')}"
                raise OptionError(
                    f"--output {output} is also an input file ({option}); give a new output file"
                )


def _paths(values: Sequence[Any]) -> Iterator[str]:
    """Yield the paths in option values of the form PATH, PATTERN, NAME=PATH or PATH=WEIGHT."""
    for value in values:
        if isinstance(value, str):
            name, _, rest = value.partition("=")
            for path in {value, name, rest, value.rpartition("=")[0]} - {""}:
                yield path
                yield from glob.iglob(path) if glob.has_magic(path) else ()
