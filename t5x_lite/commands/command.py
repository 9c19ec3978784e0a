"""A command is a function: its parameters are the options, and its docstring is their help.

    @command
    def fuse(runs: Files, *, output: File, depth: Positive = 1000) -> None: ...

    fuse(["a", "b"], output="c")      # from Python
    fuse.options                      # the frozen dataclass that tyro, completion and docs read

Options that several commands share are a dataclass: a parameter that is annotated with it and
`SHARED` has its fields among the command's own. A parameter `overrides: Overrides` gets what else
stands on the command line: options that are fields of a config, and what follows "--".

    @command
    def train(config: Config, overrides: Overrides = (), *, dry_run: bool = False) -> None: ...

    train("configs/tiny_pretrain.py", ["--steps", "100"])

What a command needs is imported in its body, so that `--help` does not pay for it.
"""

import collections.abc
import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Generic, ParamSpec, TypeVar

from t5x_lite.core.errors import shown
from t5x_lite.core.option_types import OVERRIDES, SHARED
from t5x_lite.core.options import OptionError, refusal, suggesting

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Command(Generic[Parameters, Result]):
    """A function whose bounds are checked, and which has a dataclass of its options."""

    def __init__(self, function: Callable[Parameters, Result]):
        self.function = function
        functools.update_wrapper(self, function)

    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        """Call the function.

        Raises:
          OptionError: if an argument is unknown or outside of its bounds.
        """
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
        """Parameter -> the dataclass whose fields are options."""
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
        """The dataclass of the options; its `run` calls the function."""
        about, _, args = (self.function.__doc__ or "").partition("Args:\n")
        lines = [args.partition("\n\n")[0].rstrip()]
        fields: list[Any] = []
        for name, parameter in inspect.signature(self.function).parameters.items():
            if name == self._overrides:
                continue
            group = self._shared.get(name)
            if group is not None:
                hints = _hints_of(group)
                fields += [(f.name, _for_tyro(hints[f.name]), f) for f in dataclasses.fields(group)]
                lines.append((group.__doc__ or "").partition("Attributes:\n")[2].rstrip())
                continue
            required = parameter.default is parameter.empty
            default = dataclasses.MISSING if required else parameter.default
            field = dataclasses.field(default=default)
            fields.append((name, _for_tyro(self._hints[name]), field))
        made: Any = dataclasses.make_dataclass(
            self.function.__name__,
            fields,
            namespace={
                "run": lambda options, overrides: self._run(options, overrides),
                "takes_overrides": self._overrides is not None,
                "__module__": self.function.__module__,
                "__doc__": about + "Attributes:\n" + "\n".join(lines) + "\n",
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


def command(function: Callable[Parameters, Result]) -> Command[Parameters, Result]:
    """Make a command of a function."""
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


def _for_tyro(hint: Any) -> Any:
    """Return an annotation as tyro reads it: a sequence is a tuple, and a path is a string."""
    if typing.get_origin(hint) is Annotated:
        inner, *marks = typing.get_args(hint)
        return Annotated[_for_tyro(inner), *marks]
    if typing.get_origin(hint) is collections.abc.Sequence:
        return tuple[typing.get_args(hint)[0], ...]
    return str if Path in typing.get_args(hint) else hint
