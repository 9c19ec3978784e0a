"""The command line of this process, as its user typed it; records and reports name it.

with invoked_as(["train", "configs/tiny_pretrain.py", "--steps", "20"]):
    command()       # "t5x-lite train configs/tiny_pretrain.py --steps 20"
command()           # elsewhere the script: "my_script.py --fast"
"""

import contextlib
import contextvars
import shlex
import sys
from collections.abc import Iterator, Sequence

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
    """The command of this package that runs, or else how the process was started."""
    arguments = _arguments.get()
    return " ".join(map(quoted, sys.argv if arguments is None else (_PROG, *arguments)))


def quoted(word: str) -> str:
    """A word as a shell takes it: in double quotes where it has single ones and nothing else."""
    if "'" in word and not set(word) & set('"$`\\!'):
        return f'"{word}"'
    return shlex.quote(word)
