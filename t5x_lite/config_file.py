"""Reading a config file: a Python file that defines `experiment`, or the JSON that was saved of it.

Whatever is wrong in the file becomes one line with its place:

    configs/my_run.py:7: T5Config has no field d_modle; did you mean d_model?
"""

import dataclasses
import re
import sys
import traceback
import types
from pathlib import Path
from typing import Any

from t5x_lite.errors import InputError
from t5x_lite.options import did_you_mean
from t5x_lite.serialization import from_json


def read_config(path: str | Path) -> Any:
    """Reads the object that a config file defines.

    The current directory and the config's project root go first on sys.path, so that the config,
    the task it names and the user's own modules can be imported, now and later. The root is the
    nearest parent directory with a pyproject.toml, a .git or a tasks folder, or else a Python
    config's own directory.

    Args:
      path: a Python file that defines `experiment`, or a config.json.

    Raises:
      InputError: no such file, an error in it (with file and line), or no experiment in it.
    """
    file = _existing_file(Path(path))
    _first_on_path(file)
    return _from_json_file(file) if file.suffix == ".json" else _from_python_file(file)


def _existing_file(file: Path) -> Path:
    """Returns the path of a readable .py or .json file."""
    if file.is_dir():
        raise InputError(f"{file} is a directory; give a config, such as {file / 'config.json'}")
    if not file.exists():
        siblings = [str(other) for other in sorted(file.parent.glob("*.py"))]
        raise InputError(f"{file} does not exist{did_you_mean(str(file), siblings)}")
    if file.suffix not in (".py", ".json"):
        raise InputError(f"{file} is no config: expected a .py file or a saved config.json")
    return file


def _first_on_path(file: Path) -> None:
    """Puts the current directory and the project root of a file first on sys.path."""
    parents = file.resolve().parents
    roots = [
        parent
        for parent in parents
        if (parent / "pyproject.toml").is_file()
        or (parent / ".git").exists()
        or (parent / "tasks").is_dir()
    ]
    if file.suffix == ".py":
        roots.append(parents[0])
    first = [str(directory) for directory in [Path.cwd(), *roots[:1]]]
    sys.path[:] = [*dict.fromkeys(first), *(entry for entry in sys.path if entry not in first)]


def _from_json_file(file: Path) -> Any:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read: {error}") from error
    return from_json(text, source=str(file))


def _from_python_file(file: Path) -> Any:
    """Runs a config file and returns its `experiment`.

    The module gets the name by which it can be imported from its project root, so that a class
    that the config defines can be found again from a saved config.
    """
    module = types.ModuleType(_module_name(file))
    module.__file__ = str(file)
    sys.modules[module.__name__] = module
    try:
        exec(compile(file.read_bytes(), str(file), "exec"), module.__dict__)
    except OSError as error:
        if error.filename != str(file):
            raise InputError(_where_and_what(error, file=file)) from error
        raise InputError(f"{file} cannot be read: {error.strerror}") from error
    except SyntaxError as error:
        raise InputError(f"{error.filename}:{error.lineno}: {error.msg}") from error
    except Exception as error:
        raise InputError(_where_and_what(error, file=file)) from error
    if not hasattr(module, "experiment"):
        raise InputError(
            f"{file} defines no `experiment`{did_you_mean('experiment', vars(module))}"
        )
    return module.experiment


def _module_name(file: Path) -> str:
    """The dotted name of a file below the first entry of sys.path that holds it, if it is free."""
    resolved = file.resolve()
    for entry in sys.path[:2]:
        if not resolved.is_relative_to(entry):
            continue
        name = ".".join(resolved.relative_to(entry).with_suffix("").parts)
        taken = getattr(sys.modules.get(name), "__file__", None)
        if name.partition(".")[0] in sys.stdlib_module_names:
            break
        if name not in sys.modules or (taken and Path(taken).resolve() == resolved):
            return name
    return "t5x_lite_config"


def _where_and_what(error: Exception, *, file: Path) -> str:
    """One line about an exception in a config: the line of the config, and what was wrong."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(file)]
    where = f"{file}:{lines[-1]}" if lines else str(file)
    if isinstance(error, InputError):
        return f"{where}: {error}"
    unexpected = re.match(
        r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", str(error)
    )
    if isinstance(error, TypeError) and unexpected:
        cls, field = unexpected.groups()
        fields = _fields_of(cls)
        remedy = did_you_mean(field, fields) or f"; it has {', '.join(fields)}"
        return f"{where}: {cls} has no field {field}{remedy}"
    return f"{where}: {type(error).__name__}: {' '.join(str(error).split())}"


def _fields_of(class_name: str) -> list[str]:
    """The fields of the imported dataclasses of a name, for a suggestion."""
    classes = (getattr(module, class_name, None) for module in list(sys.modules.values()))
    found = [cls for cls in classes if isinstance(cls, type) and dataclasses.is_dataclass(cls)]
    return [field.name for cls in found for field in dataclasses.fields(cls)]
