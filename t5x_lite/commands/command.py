"""A command is a function: its parameters are the options, and its docstring is their help.

Options that several commands share: their checks, and loading the config that CONFIG names.

Framework of the commands: a command is a function with options as parameters.

    @command
    def fuse(runs: Files, *, output: File, depth: Positive = 1000) -> None: ...

    fuse(["a", "b"], output="c")      # from Python
    fuse.options                      # the frozen dataclass that tyro, completion and docs read

`--help` shows the paragraphs of the function's docstring, its section "Example:", and its options.
If a command has many options, the options in `GROUPS` are shown in groups with titles.

Options that several commands share are the fields of a dataclass; a parameter annotated with the
dataclass and `SHARED` adds them to the command's options. A parameter `overrides: Overrides`
receives all other arguments: config fields, and arguments after "--".

    @command
    def train(config: Config, overrides: Overrides = (), *, dry_run: bool = False) -> None: ...

    train("configs/tiny_pretrain.py", ["--steps", "100"])

A command imports its dependencies in its body, so that `--help` is fast.
"""

import collections.abc
import dataclasses
import functools
import glob
import importlib
import inspect
import logging
import os
import re
import shutil
import textwrap
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Generic, ParamSpec, TypeVar

import tyro

from t5x_lite.commands import PROG
from t5x_lite.core.errors import InputError, install_command, shown
from t5x_lite.core.option_types import OVERRIDES, SHARED
from t5x_lite.core.options import OptionError, former_names, option_names, refusal, suggesting

_logger = logging.getLogger(__name__)


def some_directory(directories: Sequence[str]) -> None:
    """Raise OptionError if the option --checkpoint was given without a directory."""
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
    """Load a config file with overrides; if one is misspelled, suggest the command's options."""
    from t5x_lite import config

    return config.load(
        path, overrides, prog=f"{PROG} train {path}", other_options=option_names(command)
    )


def with_epochs_of(
    path: str, overrides: Sequence[str], *, command: type, may_lack_data: bool = False
) -> Any:
    """Return the experiment of a config file, with its epochs converted to training steps."""
    experiment = load_config(path, overrides, command=command)
    if experiment.epochs is None:
        return experiment
    from t5x_lite.train.training import with_epochs

    return with_epochs(experiment, options=overrides, may_lack_data=may_lack_data)


def refuse_output_as_input(command: Any) -> None:
    """Raise OptionError if the output file of a command is also one of its input files."""
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


Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

GROUPS = {
    "checkpoint": (
        "step base adapters.use adapters.load adapters-directory head compute-dtype trust-project"
    ),
    "encoding": (
        "pooling normalize dimensions precision role prefix prompt query-prefix passage-prefix "
        "document-prefix heads weights mcls bag-top vector-numbers"
    ),
    "batches and lengths": (
        "batch-size lengths wait-ms inputs-length targets-length query-length passage-length "
        "document-length long-inputs longest-line"
    ),
    "decoding": (
        "max-decode-length num-beams length-rule length-penalty early-stopping num-return "
        "temperature top-k top-p min-p min-length no-repeat-ngram"
    ),
    "answers of heads": "probabilities threshold doc-stride longest-answer impossible-answers",
    "choice of negatives": (
        "first last negatives take margin relative-margin min-score max-score fill rescore"
    ),
    "limits of the server": (
        "queue max-texts max-body connections timeout body-timeout compilation-cache"
    ),
}
"""Group title -> options listed below the title, in the help of commands with over `_MANY` options.

A group with only one of the command's options gets no title; the option stays below "options".
"""

_MANY = 12

_CONTINUED = re.compile(r"\n {8,}")
"""Line break inside an option's description; tyro keeps line breaks before signs such as "--"."""


class Command(Generic[Parameters, Result]):
    """Command-line command: a function with checked arguments and a dataclass of options."""

    def __init__(self, function: Callable[Parameters, Result]):
        self.function = function
        functools.update_wrapper(self, function)

    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        """Call the function that implements the command.

        Raises:
          OptionError: if an argument is unknown or out of bounds.
        """
        for old, new in former_names(self.function).items():
            if old in kwargs:
                kwargs[new] = kwargs.pop(old)
        given = inspect.signature(self.function).bind_partial(*args).arguments | kwargs
        _check_bounds(given, self._hints)
        for name in self._shared.keys() & given:
            _check_bounds(vars(given[name]), _hints_of(self._shared[name]))
        return suggesting(self.function)(*args, **kwargs)

    @functools.cached_property
    def _hints(self) -> dict[str, Any]:
        return _hints_of(self.function)

    @functools.cached_property
    def _shared(self) -> dict[str, type]:
        return {
            name: typing.get_args(hint)[0]
            for name, hint in self._hints.items()
            if SHARED in getattr(hint, "__metadata__", ())
        }

    @functools.cached_property
    def _overrides(self) -> str | None:
        marked = (
            name
            for name, hint in self._hints.items()
            if OVERRIDES in getattr(hint, "__metadata__", ())
        )
        return next(marked, None)

    @functools.cached_property
    def options(self) -> type:
        """Dataclass with the command's options as fields; its method `run` calls the function."""
        text, _, args = (self.function.__doc__ or "").partition("Args:\n")
        about, _, example = text.partition("Example:\n")
        example = textwrap.dedent(example).strip()
        lines = [args.partition("\n\n")[0].rstrip()]
        fields: list[Any] = []
        for name, parameter in inspect.signature(self.function).parameters.items():
            if name == self._overrides:
                continue
            group = self._shared.get(name)
            if group is not None:
                hints = _hints_of(group)
                for each in dataclasses.fields(group):
                    fields.append((each.name, _for_tyro(hints[each.name], each.default), each))
                lines.append((group.__doc__ or "").partition("Attributes:\n")[2].rstrip())
                continue
            required = parameter.default is parameter.empty
            default = dataclasses.MISSING if required else parameter.default
            hint = _for_tyro(self._hints[name], default)
            fields.append((name, hint, dataclasses.field(default=default)))
        made: Any = dataclasses.make_dataclass(
            self.function.__name__,
            fields,
            namespace={
                "run": lambda options, overrides: self._run(options, overrides),
                "takes_overrides": self._overrides is not None,
                "example": example,
                "help": lambda text: arranged(text, example=example),
                "__module__": self.function.__module__,
                "__doc__": about + "Attributes:\n" + _CONTINUED.sub(" ", "\n".join(lines)) + "\n",
            },
            frozen=True,
            kw_only=True,
        )
        return made

    def _run(self, options: Any, overrides: collections.abc.Sequence[str]) -> None:
        values = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
        for name, group in self._shared.items():
            own = [field.name for field in dataclasses.fields(group)]
            values[name] = group(**{each: values.pop(each) for each in own})
        if self._overrides is not None:
            values[self._overrides] = overrides
        typing.cast(Any, self)(**values)


def arranged(text: str, *, example: str) -> str:
    """Return the help text written by tyro, with wrapped paragraphs, an example and option groups.

    Args:
      text: help text of tyro: usage, paragraphs, and boxes of options.
      example: lines of the example to insert after the paragraphs, or "" for no example.
    """
    columns = shutil.get_terminal_size().columns
    at = re.search(r"^(╭| [\w.]+ (options|arguments) *$| options *$)", text, re.MULTILINE)
    about, boxes = (text[: at.start()], text[at.start() :]) if at else (text, "")
    about = "\n".join(textwrap.fill(line, columns) for line in about.splitlines()).rstrip()
    about = re.sub(r"\n{3,}", "\n\n", about)
    shown = f"\n\nexample:\n{textwrap.indent(example, '  ')}" if example else ""
    return f"{about}{shown}\n\n{_grouped(boxes)}"


def _grouped(boxes: str) -> str:
    lines = boxes.splitlines()
    entries = _entries(lines)
    if len(entries) <= _MANY:
        return boxes
    title_of = {"--" + name: title for title, names in GROUPS.items() for name in names.split()}
    titles = [_title(entry, title_of) for entry in entries]
    found: dict[str, list[str]] = {"options": []} | {title: [] for title in GROUPS}
    for title, entry in zip(titles, entries, strict=True):
        found[title if titles.count(title) > 1 else "options"] += entry
    first = next(i for i, line in enumerate(lines) if re.match(r"(╭─)? options ", line))
    drawn = lines[:first]
    for title, rows in found.items():
        if rows:
            drawn += _box(title, rows, width=len(lines[0]), plain=not lines[0].startswith("╭"))
    return "\n".join(drawn) + "\n"


def _title(entry: list[str], title_of: Mapping[str, str]) -> str:
    required = any("(required)" in line for line in entry)
    name = re.split(r"[\s,]", entry[0][2:])[0]
    return "options" if required else title_of.get(name, "options")


def _entries(lines: list[str]) -> list[list[str]]:
    entries: list[list[str]] = []
    for line in lines:
        if re.match(r"(│ |  )--?\w", line):
            entries.append([line])
        elif re.match(r"(│  | {3})\s*\S", line) and entries:
            entries[-1].append(line)
    return entries


def _box(title: str, rows: list[str], *, width: int, plain: bool) -> list[str]:
    if plain:
        return [f" {title}".ljust(width), " " + "-" * (width - 2) + " ", *rows, " " * width]
    top = f"╭─ {title} ".ljust(width - 1, "─") + "╮"
    return [top, *rows, "╰" + "─" * (width - 2) + "╯"]


def command(function: Callable[Parameters, Result]) -> Command[Parameters, Result]:
    """Turn a function into a command."""
    return Command(function)


def _hints_of(declared: Any) -> dict[str, Any]:
    if isinstance(declared, type):
        return typing.get_type_hints(declared, include_extras=True)
    return {name: p.annotation for name, p in inspect.signature(declared).parameters.items()}


def _check_bounds(values: Mapping[str, Any], hints: Mapping[str, Any]) -> None:
    for name, value in values.items():
        option = "--" + name.replace("_", "-")
        for each in value if isinstance(value, list | tuple) else (value,):
            if wrong := refusal(hints.get(name), each):
                raise OptionError(f"{option} must be {wrong}, got {shown(each)}")
            if isinstance(each, int) and each >= 1 << 63:
                raise OptionError(f"{option} must be below 2^63, got {shown(each)}")


def _for_tyro(hint: Any, default: Any = dataclasses.MISSING) -> Any:
    if default is None or default in ("", ()):
        return Annotated[_for_tyro(hint), tyro.conf.arg(help_behavior_hint="")]
    if typing.get_origin(hint) is Annotated:
        inner, *marks = typing.get_args(hint)
        return Annotated[_for_tyro(inner), *marks]
    if typing.get_origin(hint) is collections.abc.Sequence:
        return tuple[typing.get_args(hint)[0], ...]
    return str if Path in typing.get_args(hint) else hint
