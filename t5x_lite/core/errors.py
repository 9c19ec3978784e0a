"""Errors of user input, install commands for optional dependencies, and the current command line.

Importing this module is cheap (no JAX).

The install command of an extra depends on the installation:

    install_command("c4")      # in the checkout: pip install -e ".[c4]" -c constraints.txt
                               # of an installed wheel: pip install "t5x-lite[c4]"

An installed wheel already satisfies `t5x-lite`, so pip adds only the packages of the extra. In a
checkout, the command equals the README's, with absolute paths outside the checkout.

`command` returns the command line that the user typed, for records and reports:

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
"""Pattern of the operating system's error code in TensorStore's errors."""


_LONG_WORD = re.compile(r"\S{400,}")
_LONGEST = 4000
"""Maximum characters of an error message."""


def shortened(text: str, most: int = 60) -> str:
    """Return a text truncated to `most` characters, for an error message."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def shown(value: object, most: int = 60) -> str:
    """Return the repr of a value truncated to `most` characters, for an error message."""
    if isinstance(value, str) and len(value) > most:
        return repr(f"{value[: most - 3]}...")
    try:
        return shortened(repr(value), most)
    except (RecursionError, ValueError):  # nested too deeply; a number of more than 4300 digits
        return f"a {type(value).__name__}"


class InputError(ValueError):
    """Error in the user's input, such as a config, a path, a data file or a vocabulary.

    The message is one line: the problem, its location (file:line), and the remedy. The command line
    prints it and exits with code 2. Very long words and messages are truncated, because they may
    repeat the content of a file.
    """

    def __init__(self, message: object = ""):
        text = _LONG_WORD.sub(lambda word: shortened(word[0]), str(message))
        super().__init__(shortened(text, _LONGEST))


class Interrupted(Exception):
    """Exception for a training run that a signal stopped after it saved a checkpoint.

    Attributes:
      signum: number of the signal; the command line exits with 128 + signum.
      step: saved step; 0 if the run stopped before its first step, without a checkpoint.
    """

    def __init__(self, signum: int, step: int):
        when = f"after saving step {step}" if step else "before the first step; nothing is saved"
        super().__init__(f"stopped by signal {signum} {when}")
        self.signum = signum
        self.step = step


def system_reason(error: BaseException) -> str | None:
    """Return the operating system's message for an error, such as "Is a directory", or None."""
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
    """Return "FILE: reason" for an operating system error about a file; None for other errors."""
    if not isinstance(error, OSError) or error.filename is None or not error.strerror:
        return None
    return f"{os.fsdecode(error.filename)}: {error.strerror}"


_ROOT = Path(__file__).resolve().parents[2]


def install_command(*extras: str, root: Path = _ROOT) -> str:
    """Return the pip command that installs extras of this package, such as "data" and "beam"."""
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
    """Set the command line that `command` returns within the `with` block."""
    token = _arguments.set(tuple(arguments))
    try:
        yield
    finally:
        _arguments.reset(token)


def command() -> str:
    """Return the command line of this t5x-lite command or process."""
    arguments = _arguments.get()
    return " ".join(map(quoted, sys.argv if arguments is None else (_PROG, *arguments)))


def quoted(word: str) -> str:
    """Quote a word for a shell, in double quotes if it contains single quotes."""
    if "'" in word and not set(word) & set('"$`\\!'):
        return f'"{word}"'
    return shlex.quote(word)
