"""Errors of the user's input, install commands for optional parts, and the command line.

Importing this module is cheap (no JAX).

The install command of an optional part depends on the installation:

    install_command("c4")      # in the checkout: pip install -e ".[c4]" -c constraints.txt
                               # of an installed wheel: pip install "t5x-lite[c4]"

An installed wheel already satisfies `t5x-lite`, so pip adds only the packages of the extra, and
never a package of that name from elsewhere. In a checkout it is the command of the README, with
paths if the current directory is another one.

The command line of this process, as its user typed it; records and reports name it.

with invoked_as(["train", "configs/tiny_pretrain.py", "--steps", "20"]):
    command()       # "t5x-lite train configs/tiny_pretrain.py --steps 20"
command()           # elsewhere the script: "my_script.py --fast"
"""

import contextlib
import contextvars
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

_OS_ERROR_CODE = re.compile(r"os_error_code='(\d+)'")
"""Form of the system's error code in TensorStore's errors."""


_LONG_WORD = re.compile(r"\S{400,}")
_LONGEST = 4000
"""Maximum characters of a message."""


def shortened(text: str, most: int = 60) -> str:
    """Return an external text as errors repeat it: up to 60 characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def shown(value: object, most: int = 60) -> str:
    """Return the repr of an external value as errors repeat it: up to 60 characters."""
    if isinstance(value, str) and len(value) > most:
        return repr(f"{value[: most - 3]}...")
    try:
        return shortened(repr(value), most)
    except (RecursionError, ValueError):  # nested too deeply; a number of more than 4300 digits
        return f"a {type(value).__name__}"


class InputError(ValueError):
    """Wrong input of the user: a config, a path, a data file, a vocabulary.

    The message is one line: what was wrong, where (file:line), and what to do. The command line
    prints it and exits with code 2. A word or a message far too long is cut, since it repeats what
    a file or an option holds.
    """

    def __init__(self, message: object = ""):
        text = _LONG_WORD.sub(lambda word: shortened(word[0]), str(message))
        super().__init__(shortened(text, _LONGEST))


class Interrupted(Exception):
    """Training was asked to stop by a signal, and stopped after saving.

    Attributes:
      signum: the signal's number; the command line exits with 128 + signum.
      step: the step that was saved; 0 where no step was taken, and nothing is saved.
    """

    def __init__(self, signum: int, step: int):
        when = f"after saving step {step}" if step else "before the first step; nothing is saved"
        super().__init__(f"stopped by signal {signum} {when}")
        self.signum = signum
        self.step = step


def system_reason(error: BaseException) -> str | None:
    """Return the system's message if an error began there: "No space left on device"."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno is not None:
            return cause.strerror
        code = _OS_ERROR_CODE.search(str(cause))
        if code is not None:
            return os.strerror(int(code.group(1)))
        cause = cause.__cause__ or cause.__context__
    return None


def line_of_file(error: BaseException) -> str | None:
    """Return one line about an error of the system's that names a file; None of any other error."""
    if not isinstance(error, OSError) or error.filename is None or not error.strerror:
        return None
    return f"{os.fsdecode(error.filename)}: {error.strerror}"


_ROOT = Path(__file__).resolve().parents[2]


def install_command(*extras: str, root: Path = _ROOT) -> str:
    """Return the command that installs extras, such as "data" and "beam", where this package is."""
    wanted, constraints = f"[{','.join(extras)}]", root / "constraints.txt"
    if not ((root / "pyproject.toml").is_file() and constraints.is_file()):
        return f'pip install "t5x-lite{wanted}"'
    if root == Path.cwd():
        return f'pip install -e ".{wanted}" -c constraints.txt'
    return f'pip install -e "{root}{wanted}" -c {shlex.quote(str(constraints))}'


_PROG = "t5x-lite"

_arguments: contextvars.ContextVar[tuple[str, ...] | None] = contextvars.ContextVar(
    "arguments", default=None
)


@contextlib.contextmanager
def invoked_as(arguments: Sequence[str]) -> Iterator[None]:
    """Remembers the arguments of a command of this package while it runs."""
    token = _arguments.set(tuple(arguments))
    try:
        yield
    finally:
        _arguments.reset(token)


def command() -> str:
    """Return the command of this package that runs, or else how the process was started."""
    arguments = _arguments.get()
    return " ".join(map(quoted, sys.argv if arguments is None else (_PROG, *arguments)))


def quoted(word: str) -> str:
    """Quote a word for a shell, in double quotes if it contains only single ones."""
    if "'" in word and not set(word) & set('"$`\\!'):
        return f'"{word}"'
    return shlex.quote(word)
