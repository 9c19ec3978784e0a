"""From a task's name, "module:function", to the function; without TensorFlow."""

import difflib
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from t5x_lite.errors import InputError


def find_task(name: str) -> Callable[..., Any]:
    """The function that "module:function" names; the module is imported.

    Raises:
      InputError: if the name has another form, or module or function do not exist; the message
        offers the nearest name.
    """
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name:
        raise InputError(f"data.task must be module:function, as tasks.glue:sst2, got {name!r}")
    module = _import(module_name)
    function = getattr(module, function_name, None)
    if not callable(function):
        hint = _nearest(function_name, task_names(module))
        raise InputError(f"data.task: module {module_name} has no task {function_name!r}{hint}")
    return function


def task_names(module: ModuleType) -> list[str]:
    """The public callables that a module itself made: its functions, and partials of them."""
    return [
        name
        for name, value in vars(module).items()
        if callable(value)
        and not name.startswith("_")
        and not inspect.isclass(value)
        and _home(value) == module.__name__
    ]


def _home(value: Any) -> str | None:
    """The module of a function; for a functools.partial, that of the function inside."""
    return getattr(getattr(value, "func", value), "__module__", None)


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Only the absence of the named module is the user's; one that it imports in turn is not.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        hint = _nearest(name, _module_names(error.name.rpartition(".")[0]))
        raise InputError(
            f"data.task: there is no module {name!r}{hint} (it is looked for in the current "
            "directory, in the config's project and among the installed packages)"
        ) from error


def _module_names(parent: str) -> list[str]:
    if not parent:
        return [module.name for module in pkgutil.iter_modules()]
    path = getattr(sys.modules[parent], "__path__", [])
    return [f"{parent}.{module.name}" for module in pkgutil.iter_modules(path)]


def _nearest(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
