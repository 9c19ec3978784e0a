"""Import of the user's own modules: `tasks`, `configs` and modules that a config names.

    project.open_at("work/my_project")                 # a command that takes a config does so
    module = project.import_module("my_tasks.reviews") # data.task of that config

A command may run in an untrusted directory, so no data directory is put on sys.path. Instead,
finders on sys.meta_path search the opened directories. They find a module only if a config names it
(`import_module`), or if project code imports it: the config itself, or a module found before.

`tasks` and `configs` of the project come before installed ones. The modules shipped with this
package come last, module by module: in a project with tasks/mine.py, tasks.mine is the project's
and tasks.glue the shipped one. A wheel has the shipped modules in t5x_lite/_shipped, a checkout at
its top.

For all other names, installed modules come first, so a numpy.py or a json/ in the project is never
imported. A library's optional `import torch` does not reach the project either.
"""

import contextlib
import dataclasses
import importlib
import itertools
import os
import pkgutil
import sys
from collections.abc import Iterable, Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

_PACKAGE = __name__.partition(".")[0]
_OWN = ("tasks", "configs")
_SAFE_PATH = "PYTHONSAFEPATH"
_MARKS = ("pyproject.toml", ".git", "tasks")
_HERE = Path(__file__).resolve().parents[1]
_SHIPPED = "_shipped"


@dataclasses.dataclass(frozen=True)
class Opened:
    """Settings for importing Python modules from a user's project.

    Attributes:
      directories: directories to search for modules, in order.
      named: top-level modules that a config names.
      code: top-level project modules that may import other project modules.
      trusts_checkpoints: True if a checkpoint may import classes of any module.
    """

    directories: tuple[str, ...] = ()
    named: frozenset[str] = frozenset()
    code: frozenset[str] = frozenset()
    trusts_checkpoints: bool = False


_opened = Opened()


def opened() -> Opened:
    """Return this process's settings for importing modules from a user's project."""
    return _opened


def open_again(there: Opened) -> None:
    """Replace this process's settings for importing modules from a user's project."""
    _change(**vars(there))
    for finder in (_FIRST, _LAST):
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
    if there.directories or there.named:
        sys.meta_path.insert(0, _FIRST)
        sys.meta_path.append(_LAST)


def open_at(*directories: str | os.PathLike[str]) -> None:
    """Add directories to search first for Python modules of a user's project."""
    new = [os.path.abspath(directory) for directory in directories]
    every = tuple(dict.fromkeys([*new, *_opened.directories]))
    open_again(dataclasses.replace(_opened, directories=every))


def shipped() -> Path | None:
    """Return the directory with this package's `tasks` and `configs`, or None."""
    for directory in (_HERE / _SHIPPED, _HERE.parent):
        if all((directory / name).is_dir() for name in _OWN):
            return directory
    return None


def root_above(file: Path) -> Path | None:
    """Return the nearest parent directory with a pyproject.toml, a .git or a tasks directory."""
    for parent in file.resolve().parents:
        project, git, tasks = (parent / mark for mark in _MARKS)
        if project.is_file() or git.exists() or tasks.is_dir():
            return parent
    return None


@contextlib.contextmanager
def trusting_checkpoints(trust: bool) -> Iterator[None]:
    """Let checkpoints import classes of any module in the `with` block, if `trust` is True.

    Modules are searched in the current directory and in the root of its project.
    """
    if not trust:
        yield
        return
    before, here = _opened, Path.cwd()
    open_at(*filter(None, [here, root_above(here / "any")]))
    _change(trusts_checkpoints=True)
    try:
        yield
    finally:
        open_again(before)


@contextlib.contextmanager
def trusting_names() -> Iterator[None]:
    """Let configs and command lines import classes of any module within the `with` block."""
    before = _opened.trusts_checkpoints
    _change(trusts_checkpoints=True)
    try:
        yield
    finally:
        _change(trusts_checkpoints=before)


@contextlib.contextmanager
def safe_path() -> Iterator[None]:
    """Keep Python processes started in the `with` block from importing from the current directory.

    `python -c` would search that directory, for example in multiprocessing's resource tracker.
    """
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = before


def trusts(module: str) -> bool:
    """Return True if a checkpoint's config may import classes from this module."""
    top = module.partition(".")[0]
    known = {_PACKAGE, *_opened.named, *_opened.code}
    return _opened.trusts_checkpoints or top in known


def name(modules: Iterable[str]) -> None:
    """Allow imports of the project modules that a config names."""
    tops = {module.partition(".")[0] for module in modules}
    _change(named=_opened.named | tops)


def name_code(module: str) -> None:
    """Allow a module of the project to import other project modules."""
    _change(code=_opened.code | {module.partition(".")[0]})


def import_module(module: str) -> ModuleType:
    """Import a module that a config names, from the project or the environment."""
    name([module])
    open_again(_opened)
    return importlib.import_module(module)


def module_names() -> list[str]:
    """Return the names of all importable modules, for suggestions in errors."""
    places = [*_opened.directories, *sys.path, *filter(None, [shipped()])]
    return [module.name for module in pkgutil.iter_modules(map(os.fspath, places))]


def is_taken(module: str, *, besides: str | os.PathLike[str]) -> bool:
    """Return True if a module of this name is installed outside the directory `besides`."""
    if module in sys.stdlib_module_names:
        return True
    spec = None if module in _OWN else PathFinder.find_spec(module)
    if spec is None:
        return False
    places = spec.submodule_search_locations or [spec.origin or ""]
    return all(Path(place).resolve().parent != Path(besides).resolve() for place in places)


def _change(**changes: Any) -> None:
    global _opened
    _opened = dataclasses.replace(_opened, **changes)


class _Finder:
    """Import finder of top-level modules in the project directories."""

    def __init__(self, *, own: bool):
        self._own = own

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        del target
        if path is not None or (fullname in _OWN) != self._own:
            return None
        if fullname not in _opened.named and _importer() not in _opened.code:
            return None
        spec = PathFinder.find_spec(fullname, list(_opened.directories))
        if self._own:
            spec = _with_shipped(_with_installed(spec), fullname)
        if spec is not None:
            name_code(fullname)
        return spec


_FIRST, _LAST = _Finder(own=True), _Finder(own=False)


def _importer() -> str:
    names = _names_of_frames()
    for name in itertools.dropwhile(lambda name: name not in _MACHINERY, names):
        if name not in _MACHINERY:
            return name
    return ""


def _names_of_frames() -> Iterator[str]:
    frame = sys._getframe()
    while frame is not None:
        yield str(frame.f_globals.get("__name__", "")).partition(".")[0]
        frame = frame.f_back


_MACHINERY = ("importlib", "_frozen_importlib")


def _with_installed(spec: ModuleSpec | None) -> ModuleSpec | None:
    """Extend the project's tasks or configs package by installed packages of the same name.

    Return None for a directory without code, such as tasks/ with only data.
    """
    if spec is None or spec.loader is not None:
        return spec
    found = list(spec.submodule_search_locations or [])
    if not any(path for where in found for glob in _CODE for path in Path(where).glob(glob)):
        return None
    others = [os.path.join(entry, spec.name) for entry in sys.path]
    spec.submodule_search_locations = [*dict.fromkeys([*found, *filter(os.path.isdir, others)])]
    return spec


def _with_shipped(spec: ModuleSpec | None, fullname: str) -> ModuleSpec | None:
    """Extend the tasks or configs package by the modules shipped with this package."""
    own = shipped()
    spec = PathFinder.find_spec(fullname) if spec is None else spec
    if own is None or spec is None:
        return spec if own is None else PathFinder.find_spec(fullname, [os.fspath(own)])
    places = spec.submodule_search_locations
    if places is not None and os.fspath(own / fullname) not in places:
        spec.submodule_search_locations = [*places, os.fspath(own / fullname)]
    return spec


_CODE = ("*.py", "*/*.py")
