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

from t5x_lite import project, renames
from t5x_lite.config.json import from_json, modules_of
from t5x_lite.errors import InputError
from t5x_lite.options import did_you_mean


def read_config(path: str | Path) -> Any:
    """Reads the object that a config file defines.

    The config, the task it names and modules that they import in turn are looked for in the current
    directory, in the config's project and beside a Python config, now and later; nothing else is,
    and sys.path stays as it is: see `project`. The project's root is the nearest parent directory
    with a pyproject.toml, a .git or a tasks folder.

    Args:
      path: a Python file that defines `experiment`, or a config.json.

    Raises:
      InputError: no such file, an error in it (with file and line), or no experiment in it.
    """
    file = _existing_file(Path(path))
    around = []
    if Path(path).exists():  # else it is a shipped one, whose modules come last
        beside = file.resolve().parent if file.suffix == ".py" else None
        around = [project.root_above(file), beside]
    project.open_at(*filter(None, [Path.cwd(), *around]))
    config = _from_json_file(file) if file.suffix == ".json" else _from_python_file(file)
    project.name(modules_of(config))
    return config


def _existing_file(file: Path) -> Path:
    """Returns the path of a readable .py or .json file; of a shipped one where there is none here.

    So configs/tiny_pretrain.py is found in any directory, and a file of that name there wins.
    """
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
        raise InputError(f"{file} does not exist{did_you_mean(str(file), siblings)}")
    if file.suffix not in (".py", ".json"):
        raise InputError(f"{file} is not a config: expected a .py file or a saved config.json")
    return file


def _is_config(file: Path) -> bool:
    """Whether a shipped file is one of the configs, and not another file of a checkout."""
    shipped = project.shipped()
    return shipped is not None and (shipped / "configs") in file.parents


def _configs_like(file: Path, shipped: Path | None) -> list[str]:
    """Configs beside one that is not there, and shipped ones, as one would give them."""
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
    """Runs a config file and returns its `experiment`.

    The module gets the name by which it can be imported from its project root, so that a class
    that the config defines can be found again from a saved config.
    """
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
    """The dotted name of a file below the first directory of the project that holds it, if free."""
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
    return f"{where}: {type(error).__name__}: {' '.join(str(error).split())}{renames.hint(error)}"


def _fields_of(class_name: str) -> list[str]:
    """The fields of the imported dataclasses of a name, for a suggestion."""
    classes = (getattr(module, class_name, None) for module in list(sys.modules.values()))
    found = [cls for cls in classes if isinstance(cls, type) and dataclasses.is_dataclass(cls)]
    return [field.name for cls in found for field in dataclasses.fields(cls)]
