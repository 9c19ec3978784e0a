"""Lookup of task functions by name, and the prefix and template of a task's inputs.

`find_task` returns the function of a task's name, "module:function", without TensorFlow. A name
"seqio:module:name" is looked up in seqio's registry (seqio_registry.py). A task function takes one
TaskArguments. Functions with another signature are rejected before they are called.

`Wording` is the text around a record's columns, a hyperparameter (Raffel et al. 2020, section 2.4):

    mnli = Wording(prefix="mnli", template="hypothesis: {hypothesis} premise: {premise}")
    mnli.changed(arguments)     # with --data.template "{premise} So {hypothesis}?"
    # Wording(prefix="mnli", template="{premise} So {hypothesis}?", ...)

`mark` marks tasks that support data.template and data.prefix. For any other task, including custom
tasks, `loading.load_task` rejects these options.
"""

import dataclasses
import inspect
import pkgutil
import sys
import typing
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from t5x_lite.core import project, renames
from t5x_lite.core.errors import InputError
from t5x_lite.core.options import did_you_mean
from t5x_lite.core.signals import quiet_import
from t5x_lite.data.config import TaskArguments
from t5x_lite.data.preprocessors import fill, places

SEQIO = "seqio"
"""Prefix of the names of tasks in seqio's registry."""


def parts_of(name: str) -> tuple[str, str]:
    """Return the module and the name of a task "module:function" or "seqio:module:name"."""
    module, _, rest = name.partition(":")
    if module == SEQIO:
        module, _, rest = rest.partition(":")
    return module, rest


def find_task(name: str) -> Callable[..., Any]:
    """Import the module of a task "module:function", and return the task function.

    For "seqio:module:name" the returned function returns the registered task.

    Raises:
      InputError: if the name does not have this form, if module or function do not exist, or if the
        function does not take one TaskArguments. The message suggests the most similar task.
    """
    if name.startswith(f"{SEQIO}:"):
        from t5x_lite.data.tasks.seqio_registry import find_registered  # it needs this module

        return find_registered(name)
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name:
        raise InputError(
            f"data.task must be module:function, such as tasks.glue:sst2, got {name!r}"
        )
    module = import_tasks(module_name)
    function = getattr(module, function_name, None)
    if not callable(function):
        raise InputError(
            f"data.task: module {module_name} has no task {function_name!r}{other_tasks(name)}"
        )
    if inspect.isclass(function):
        raise InputError(f"data.task: {name} is a class, but must be a function{other_tasks(name)}")
    if not _takes_task_arguments(function):
        raise InputError(
            f"data.task: {name} must take one TaskArguments, but takes "
            f"{_parameters(function)}{other_tasks(name)}"
        )
    return function


def task_names(module: ModuleType) -> list[str]:
    """Return the names of the public functions that a module defines and that may be tasks.

    Partials of its functions are included.
    """
    return [
        name
        for name, value in vars(module).items()
        if callable(value)
        and not name.startswith("_")
        and not inspect.isclass(value)
        and _home(value) == module.__name__
        and _takes_task_arguments(value)
    ]


def other_tasks(name: str) -> str:
    """Return a hint for a wrong task name: the most similar task of its module, or all tasks."""
    if name.startswith(f"{SEQIO}:"):
        return ""
    module_name, _, function_name = name.partition(":")
    names = [one for one in task_names(sys.modules[module_name]) if one != function_name]
    listed = f"; {module_name} has {', '.join(names)}" if names else ""
    return did_you_mean(function_name, names) or listed


def _takes_task_arguments(function: Callable[..., Any]) -> bool:
    try:
        bound = inspect.signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:  # a C function without a signature
        return True
    (parameter,) = bound.arguments
    try:
        hint = typing.get_type_hints(getattr(function, "func", function)).get(parameter)
        return not isinstance(hint, type) or issubclass(TaskArguments, hint)
    except (NameError, TypeError):  # an annotation that cannot be evaluated
        return True


def _parameters(function: Callable[..., Any]) -> str:
    return str(inspect.signature(function).replace(return_annotation=inspect.Signature.empty))


def _home(value: Any) -> str | None:
    """Return the module of a function, or of the function inside a functools.partial."""
    return getattr(getattr(value, "func", value), "__module__", None)


def import_tasks(name: str) -> ModuleType:
    """Import the module that data.task names."""
    try:
        with quiet_import():
            return project.import_module(name)
    except ImportError as error:
        if renamed := renames.hint(error):
            raise InputError(f"data.task: {name} cannot be imported: {error}{renamed}") from error
        # Report only the absence of the named module; a failing import inside it is reraised.
        absent = error.name if isinstance(error, ModuleNotFoundError) else None
        if absent is None or not f"{name}.".startswith(f"{absent}."):
            raise
        hint = did_you_mean(name, _module_names(absent.rpartition(".")[0]))
        raise InputError(
            f"data.task: module {name!r} does not exist{hint} (searched: the current directory, "
            "the config's project and the installed packages)"
        ) from error


def _module_names(parent: str) -> list[str]:
    if not parent:
        return project.module_names()
    path = getattr(sys.modules[parent], "__path__", [])
    return [f"{parent}.{module.name}" for module in pkgutil.iter_modules(path)]


_MARK = "t5x_lite_is_worded"


@dataclass(frozen=True, kw_only=True)
class Wording:
    """Prompt of a task: the text around the columns of a record.

    Attributes:
      prefix: text before the template, separated by a space; "" for no prefix.
      template: text after the prefix, with column names in braces.
      columns: columns that a user's template may name; () for the columns in `template`, None for
        any columns.
    """

    prefix: str
    template: str
    columns: tuple[str, ...] | None = ()

    @property
    def inputs(self) -> str:
        """Template of the complete inputs: the prefix, a space, and the template."""
        if not self.prefix:
            return self.template
        literal = self.prefix.replace("{", "{{").replace("}", "}}")
        return f"{literal} {self.template}"

    def changed(self, arguments: TaskArguments) -> "Wording":
        """Return the wording with the config's template and prefix, if they are set."""
        known = places(self.template) if self.columns == () else self.columns
        prefix = self.prefix if arguments.prefix is None else arguments.prefix
        template = arguments.template or self.template
        named = places(template)
        fill(template, dict.fromkeys(named, ""))  # raises InputError for a single brace
        listed = "" if known is None else f"; the task's columns are {', '.join(known)}"
        if arguments.template and not named:
            raise InputError(f"data.template {template!r} names no column in braces{listed}")
        unknown = [name for name in named if known is not None and name not in known]
        if unknown:
            raise InputError(f"data.template {template!r} names {unknown[0]!r}{listed}")
        return dataclasses.replace(self, prefix=prefix, template=template, columns=known)


def mark(task: Any) -> Any:
    """Mark a seqio.Task as supporting data.template and data.prefix."""
    setattr(task, _MARK, True)
    return task


def is_marked(task: Any) -> bool:
    """Return True if a task supports data.template and data.prefix."""
    return getattr(task, _MARK, False)
