"""Config files: Python files that define an experiment, and configs as JSON.

Every error in the file becomes one line with its line number:

    configs/my_run.py:7: T5Config has no field d_modle; did you mean d_model?

Work directories and checkpoints store their config as JSON.

A dataclass becomes an object with the name of its class as "type"; a tuple becomes an array; NaN
and infinity become an object of type "float":

    >>> print(to_json(Seq2Seq(z_loss=1e-4, label_smoothing=0.0)))
    {
      "type": "t5x_lite.objectives.likelihood:Seq2Seq",
      "z_loss": 0.0001,
      "label_smoothing": 0.0
    }

A field that is missing in the file gets its default, or the value that keeps the behavior from
before the field existed (`core.renames.FORMER_VALUES`), so earlier configs still load. An unknown
field is an error.
"""

import dataclasses
import json
import math
import re
import sys
import traceback
import types
from pathlib import Path
from typing import Any

from t5x_lite.core import project, renames
from t5x_lite.core.errors import InputError
from t5x_lite.core.files import plain_json
from t5x_lite.core.options import did_you_mean, is_config, nearest


def to_json(config: Any) -> str:
    """Convert a config dataclass to JSON text that `from_json` reads.

    Raises:
      InputError: if a value is not a config, tuple, str, bool, int, float or None, or a class
        cannot be imported by another process.
    """
    return json.dumps(encode(config, where=type(config).__name__), indent=2, allow_nan=False) + "\n"


def from_json(text: str, *, source: str, any_module: bool = False) -> Any:
    """Build the config dataclass from JSON text that `to_json` wrote.

    Importing the modules of config classes runs code. So the JSON of a checkpoint may only name
    classes of t5x_lite and of modules for which `core.project.trusts` returns True.

    Args:
      text: the JSON text.
      source: path of the text, for errors.
      any_module: True to allow classes of all modules, as for the config of a command.

    Raises:
      InputError: if the JSON is malformed, a class is not trusted or cannot be imported, or a field
        is unknown, missing or rejected by its class.
    """
    try:
        node = plain_json(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{source}:{error.lineno}: not JSON: {error.msg}") from error
    except (RecursionError, ValueError) as error:  # brackets without end, a number of 5000 digits
        raise InputError(f"{source}: not JSON that can be read ({error})") from error
    if not isinstance(node, dict):
        raise InputError(f'{source}: not a config: expected {{"type": "module:Class", ...}}')
    try:
        if not any_module:
            _refuse_untrusted(node, where=source)
        return _decode(node, where=source)
    except RecursionError as error:
        raise InputError(f"{source}: not a config: the JSON is nested too deeply") from error


def modules_of(config: Any) -> set[str]:
    """Return the names of the Python modules that define the classes in a config, at any depth."""
    if isinstance(config, tuple):
        return set().union(*map(modules_of, config))
    if not is_config(config):
        return set()
    parts = [modules_of(getattr(config, field.name)) for field in dataclasses.fields(config)]
    return {type(config).__module__}.union(*parts)


def encode(value: Any, *, where: str) -> Any:
    """Convert a config or one of its values to a value for `json.dumps`.

    Args:
      value: a dataclass, tuple, str, bool, int, float or None.
      where: dotted name of the value, for errors.
    """
    if is_config(value):
        fields = [field.name for field in dataclasses.fields(value) if field.init]
        if "type" in fields:
            raise ValueError(f"{type(value)}: a config field may not be called 'type'")
        values = {name: encode(getattr(value, name), where=f"{where}.{name}") for name in fields}
        return {"type": _type_name(type(value), where=where), **values}
    if type(value) is tuple:
        return [encode(item, where=f"{where}[{i}]") for i, item in enumerate(value)]
    if type(value) is float and not math.isfinite(value):
        return {"type": "float", "value": repr(value)}
    if value is None or type(value) in (str, bool, int, float):
        return value
    raise InputError(
        f"config value {where} is a {type(value).__name__}, which cannot be saved; use a "
        "dataclass, tuple, str, bool, int, float or None"
    )


def _type_name(cls: type, *, where: str) -> str:
    """Return the name "module:Class" of a class."""
    module = sys.modules.get(cls.__module__)
    if cls.__module__ == "__main__" or not hasattr(module, cls.__qualname__):
        raise InputError(
            f"{where}: another process could not import the class {cls.__qualname__} from "
            f"{cls.__module__}; define the class at the top level of a module of your project"
        )
    return f"{cls.__module__}:{cls.__qualname__}"


def _decode(node: Any, *, where: str) -> Any:
    if isinstance(node, list):
        return tuple(_decode(item, where=f"{where}[{i}]") for i, item in enumerate(node))
    if not isinstance(node, dict):
        return node
    given = renames.current_fields(node)
    name = given.pop("type", None)
    if name == "float":
        try:
            return float(given["value"])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{where}: expected a float, got {node}") from error
    cls = _find_class(name, where=where)
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    unknown = [key for key in given if key not in fields]
    if unknown:
        suggestion = did_you_mean(unknown[0], fields)
        raise InputError(f"{where}: {cls.__name__} has no field {unknown[0]}{suggestion}")
    values = {key: value for key, value in renames.FORMER_VALUES.items() if key in fields}
    values |= {key: _decode(item, where=f"{where}: {key}") for key, item in given.items()}
    for key, value in values.items():
        whole = fields[key].type in (int, int | None)
        if whole and isinstance(value, float) and not value.is_integer():
            raise InputError(f"{where}: {cls.__name__}: {key} must be a whole number, got {value}")
    try:
        return cls(**values)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:  # wrong type
        raise InputError(f"{where}: {cls.__name__}: {error}") from error


def _refuse_untrusted(node: Any, *, where: str) -> None:
    """Raise InputError if the JSON of a checkpoint names a class of an untrusted module."""
    name = node.get("type") if isinstance(node, dict) else None
    if isinstance(name, str) and name != "float" and not project.trusts(name.partition(":")[0]):
        raise InputError(
            f"{where}: the config uses the class {name}, which is not part of t5x_lite, so "
            "loading the checkpoint would run code of another module; if you trust the "
            "checkpoint, pass --trust-project (in Python: trust_project=True)"
        )
    inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    for item in inner:
        _refuse_untrusted(item, where=where)


def _find_class(name: Any, *, where: str) -> Any:
    if not isinstance(name, str) or name.count(":") != 1:
        raise InputError(f'{where}: "type" must be "module:Class", got {name!r}')
    module_name, _, class_name = name.partition(":")
    module_name = renames.current(module_name)
    try:
        module = project.import_module(module_name)
    except Exception as error:  # whatever the user's module does when it is imported
        raise InputError(
            f"{where}: cannot import {module_name} ({error}); run the command in the "
            "project that contains the module"
        ) from error
    classes = {key: value for key, value in vars(module).items() if isinstance(value, type)}
    cls = classes.get(class_name)
    if cls is None or not dataclasses.is_dataclass(cls):
        configs = [key for key, value in classes.items() if dataclasses.is_dataclass(value)]
        raise InputError(
            f"{where}: {module_name} has no config {class_name}{did_you_mean(class_name, configs)}"
        )
    return cls


def read_config(path: str | Path) -> Any:
    """Read the object that a config file defines.

    A config file can import modules from the current directory, from its project's root and from
    its own directory. The project's root is the nearest parent directory with a pyproject.toml, a
    .git or a tasks folder. sys.path does not change.

    Args:
      path: a Python file that defines `experiment`, or a config.json.

    Raises:
      InputError: if the file is missing, has an error, or defines no experiment.
    """
    file = _existing_file(Path(path))
    around = []
    if Path(path).exists():  # if not, it is a shipped one, and its modules come last
        beside = file.resolve().parent if file.suffix == ".py" else None
        around = [project.root_above(file), beside]
    project.open_at(*filter(None, [Path.cwd(), *around]))
    with project.trusting_names():
        config = _from_json_file(file) if file.suffix == ".json" else _from_python_file(file)
    project.name(modules_of(config))
    return config


def _existing_file(file: Path) -> Path:
    """Return the path of a config file: a local file, or else a config shipped with t5x_lite."""
    shipped = project.shipped()
    if shipped is not None and not file.is_absolute() and not file.exists():
        file = next((f for f in [shipped / file] if f.is_file() and _is_config(f)), file)
    if file.is_dir():
        inside = [file / "config.json", *sorted(file.glob("*.py"))]
        such = next((f", such as {config}" for config in inside if config.is_file()), "")
        raise InputError(
            f"{file} is a directory; give a config{such or ', a .py file or a saved config.json'}"
        )
    if not file.exists():
        siblings = _configs_like(file, shipped)
        near = nearest(file.name, {Path(config).name for config in siblings})
        same_name = [config for config in siblings if Path(config).name == near]
        others = "; docs/recipes.md lists the configs" if file.suffix == ".py" else ""
        remedy = did_you_mean(str(file), same_name) or others
        raise InputError(f"{file} does not exist{remedy}")
    if file.suffix not in (".py", ".json"):
        raise InputError(f"{file} is not a config: expected a .py file or a saved config.json")
    return file


def _is_config(file: Path) -> bool:
    shipped = project.shipped()
    return shipped is not None and (shipped / "configs") in file.parents


def _configs_like(file: Path, shipped: Path | None) -> list[str]:
    """Return existing config files with similar names."""
    here = [str(other) for other in sorted(file.parent.glob("*.py"))]
    if shipped is None or file.is_absolute():
        return here
    others = sorted((shipped / "configs").rglob("*.py"))
    return [*here, *(str(other.relative_to(shipped)) for other in others)]


def _from_json_file(file: Path) -> Any:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} cannot be read: {error}") from error
    return from_json(text, source=str(file), any_module=True)


def _from_python_file(file: Path) -> Any:
    """Run a Python config file and return its `experiment`."""
    module = types.ModuleType(_module_name(file))
    module.__file__ = str(file)
    sys.modules[module.__name__] = module
    project.name_code(module.__name__)
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
    """Return the dotted module name of a config file in its project."""
    resolved = file.resolve()
    for directory in filter(None, [*project.opened().directories, project.shipped()]):
        if not resolved.is_relative_to(directory):
            continue
        name = ".".join(resolved.relative_to(directory).with_suffix("").parts)
        taken = getattr(sys.modules.get(name), "__file__", None)
        if project.is_taken(name.partition(".")[0], besides=directory):
            continue
        if name not in sys.modules or (taken and Path(taken).resolve() == resolved):
            return name
    return "t5x_lite_config"


def _where_and_what(error: Exception, *, file: Path) -> str:
    """Return the message of an exception in a config file, with the line number."""
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
    return f"{where}: {type(error).__name__}: {' '.join(str(error).split())}{renames.hint(error)}"


def _fields_of(class_name: str) -> list[str]:
    classes = (getattr(module, class_name, None) for module in list(sys.modules.values()))
    found = [cls for cls in classes if isinstance(cls, type) and dataclasses.is_dataclass(cls)]
    return [field.name for cls in found for field in dataclasses.fields(cls)]
