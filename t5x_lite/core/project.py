"""The user's own modules: `tasks`, `configs` and what a config names; nothing else is imported.

    project.open_at("work/my_project")                 # a command that takes a config does so
    module = project.import_module("my_tasks.reviews") # data.task of that config

A command may run in an untrusted directory, so no directory of data is ever put on sys.path.
Finders on sys.meta_path search the opened directories instead, and find a module only if

- a config names it (`import_module`), or
- code of the project imports it: the config itself, or a module that was found so before.

`tasks` and `configs` of the project precede installed ones, and the modules shipped with this
package come last, module by module: in a project with a tasks/mine.py, tasks.mine is the project's
and tasks.glue the shipped one. In a wheel they are in t5x_lite/_shipped, in a checkout at its top.
Every other name comes after all installed modules, so that a numpy.py or a json/ in the project is
never imported. The finders ignore all other imports: an optional `import torch` of a library does
not reach the project.
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
    """The open project and checkpoints; it can be pickled, for worker processes.

    Attributes:
      directories: directories that are searched for modules, first to last.
      named: top-level modules that a config names.
      code: top-level modules that are the project's: what they import is looked for, too.
      trusts_checkpoints: True if a checkpoint may name any module, as a config may.
    """

    directories: tuple[str, ...] = ()
    named: frozenset[str] = frozenset()
    code: frozenset[str] = frozenset()
    trusts_checkpoints: bool = False


_opened = Opened()


def opened() -> Opened:
    """Return the state that is open in this process."""
    return _opened


def open_again(there: Opened) -> None:
    """Open what is open in another process, or was open here; all else is closed."""
    _change(**vars(there))
    for finder in (_FIRST, _LAST):
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
    if there.directories or there.named:
        sys.meta_path.insert(0, _FIRST)
        sys.meta_path.append(_LAST)


def open_at(*directories: str | os.PathLike[str]) -> None:
    """Look for modules of the project in these directories first, then in the earlier ones."""
    new = [os.path.abspath(directory) for directory in directories]
    every = tuple(dict.fromkeys([*new, *_opened.directories]))
    open_again(dataclasses.replace(_opened, directories=every))


def shipped() -> Path | None:
    """Return the directory with the `tasks` and `configs` of this package, or None."""
    for directory in (_HERE / _SHIPPED, _HERE.parent):
        if all((directory / name).is_dir() for name in _OWN):
            return directory
    return None


def root_above(file: Path) -> Path | None:
    """Return the nearest parent directory with a pyproject.toml, a .git or a folder tasks."""
    for parent in file.resolve().parents:
        project, git, tasks = (parent / mark for mark in _MARKS)
        if project.is_file() or git.exists() or tasks.is_dir():
            return parent
    return None


@contextlib.contextmanager
def trusting_checkpoints(trust: bool) -> Iterator[None]:
    """Within the block, and if `trust`, a checkpoint may name any class, also of the project here.

    The project is the current directory and the nearest one above it that looks like a project.
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
    """Within the block any class may be named: a config or a command line of the user is read."""
    before = _opened.trusts_checkpoints
    _change(trusts_checkpoints=True)
    try:
        yield
    finally:
        _change(trusts_checkpoints=before)


@contextlib.contextmanager
def safe_path() -> Iterator[None]:
    """Python processes that are started in the block do not look into the current directory.

    They do where a library starts one by `python -c`, as multiprocessing's resource tracker.
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
    """Return True if checkpoints may name classes of a module: this package's or the config's."""
    top = module.partition(".")[0]
    known = {_PACKAGE, *_opened.named, *_opened.code}
    return _opened.trusts_checkpoints or top in known


def name(modules: Iterable[str]) -> None:
    """Note modules that a config names."""
    tops = {module.partition(".")[0] for module in modules}
    _change(named=_opened.named | tops)


def name_code(module: str) -> None:
    """Note a module that is code of the project: what it imports is looked for in the project."""
    _change(code=_opened.code | {module.partition(".")[0]})


def import_module(module: str) -> ModuleType:
    """Import a module that a config names, from the project or from what is installed."""
    name([module])
    open_again(_opened)
    return importlib.import_module(module)


def module_names() -> list[str]:
    """Return names of all modules that could be imported, for suggestions."""
    places = [*_opened.directories, *sys.path, *filter(None, [shipped()])]
    return [module.name for module in pkgutil.iter_modules(map(os.fspath, places))]


def is_taken(module: str, *, besides: str | os.PathLike[str]) -> bool:
    """Return True for a top-level name of a standard or installed module outside this directory."""
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
    """Finder of top-level modules in the opened directories; submodules use their __path__."""

    def __init__(self, *, own: bool):
        self._own = own

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the module, if it is the project's and the one that imports it may have it."""
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
    """Return the project's tasks or configs; folders without __init__.py share a name.

    A folder that holds no code, such as tasks/ with data in it, does not count.
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
    """Return the tasks or configs of the project or environment, then the shipped modules."""
    own = shipped()
    spec = PathFinder.find_spec(fullname) if spec is None else spec
    if own is None or spec is None:
        return spec if own is None else PathFinder.find_spec(fullname, [os.fspath(own)])
    places = spec.submodule_search_locations
    if places is not None and os.fspath(own / fullname) not in places:
        spec.submodule_search_locations = [*places, os.fspath(own / fullname)]
    return spec


_CODE = ("*.py", "*/*.py")
