"""The program `t5x-lite COMMAND ...`; `t5x_lite.commands` implements the commands.

JAX and TensorFlow are imported only after the command is known. The exit codes are 0 for success, 1
for a failed run, 2 for wrong usage or invalid input, and 129, 130 and 143 after SIGHUP, SIGINT and
SIGTERM. On a signal, `train` saves a checkpoint before it exits, and other commands remove
unfinished files. An error is printed as one line on standard error; `--debug` adds the traceback.
Standard output contains only data.
"""

import codecs
import contextlib
import io
import logging
import os
import shutil
import signal
import sys
import textwrap
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import t5x_lite
from t5x_lite.commands import COMMANDS, PROG, summaries
from t5x_lite.core import signals
from t5x_lite.core.accelerators import keep_freed_memory, quiet_without_tpu
from t5x_lite.core.errors import InputError, Interrupted, invoked_as, line_of_file
from t5x_lite.core.options import OptionError, did_you_mean, parse
from t5x_lite.core.project import safe_path
from t5x_lite.core.workers import never_silent, told

_HELP = f"""usage: {PROG} COMMAND [OPTIONS]

Pretrain, fine-tune, evaluate, use and serve text-to-text models of the T5 family and encoders.

{PROG} COMMAND --help describes a command. --debug anywhere shows the traceback of an error,
--version alone the version. Exit codes: 0 success, 1 the run failed, 2 wrong usage or bad input,
129, 130 and 143 on SIGHUP, SIGINT and SIGTERM (train: after saving)."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
      argv: arguments after the program's name. None uses the arguments of this process, and a
        signal such as SIGTERM then ends the process (`t5x_lite.core.signals`).

    Returns:
      The exit code of the command.

    Raises:
      SystemExit: with code 0 after --help and --version.
    """
    if argv is None:
        _enter_utf8_mode()
    args = sys.argv[1:] if argv is None else argv
    if next((arg for arg in args if not arg.startswith("-")), "") in _TRAINING:
        keep_freed_memory()  # the first thread watches for signals
    if argv is not None:
        with signals.raising():
            return _run(argv)
    with signals.watching() as watch:
        return _run(args, watch)


def _enter_utf8_mode() -> None:
    """Restart this process in Python's UTF-8 mode if Python's file system encoding is ASCII.

    Otherwise TensorStore, TensorFlow and faiss reject file names with non-ASCII characters.
    """
    if codecs.lookup(sys.getfilesystemencoding()).name != "ascii":
        return
    if os.environ.get("PYTHONUTF8") == "1":  # an option of Python, such as -E, forbids the mode
        return
    os.environ["PYTHONUTF8"] = "1"
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _run(args: Sequence[str], watch: signals.Watch | None = None) -> int:
    """Run one command, report an error, and return the exit code.

    If `watch` is given, a signal ends the process.
    """
    debug = "--debug" in args
    args = [arg for arg in args if arg != "--debug"]
    try:
        command, overrides = _parse_command(args)
        _refuse_output_as_input(command)
        with (
            _messages(),
            _never_silent(args),
            safe_path(),
            quiet_without_tpu(),
            invoked_as(args),
        ):
            command.run(overrides)
        sys.stdout.flush()
        if watch is not None:
            watch.finish()
    except SystemExit:  # --help and --version
        raise
    except BaseException as caught:
        error = caught if watch is None else _as_signal(caught, watch)
        interrupted = isinstance(error, KeyboardInterrupt | Interrupted)
        if watch is not None and interrupted:
            watch.claim()
        if debug:
            traceback.print_exception(caught)
        code = _report_error(error)
        if watch is not None:
            watch.leave(code) if interrupted else watch.leave_after_error(code)
        return code
    return 0


def _never_silent(args: Sequence[str]) -> contextlib.AbstractContextManager[None]:
    """Log the elapsed time of a slow command at regular intervals."""
    name, _ = _command_name(args)
    return contextlib.nullcontext() if name in _WAITING else never_silent(name)


_WAITING = ("serve", "refresh")
"""Commands that wait for work and log their work themselves."""

_TRAINING = ("train", "finetune", "glue", "sweep")
"""Commands that repeat one step and keep its freed memory."""


def _as_signal(error: BaseException, watch: signals.Watch) -> BaseException:
    """Return the exception of an earlier signal, or the error if there was no signal."""
    if not watch.signum or isinstance(error, Interrupted):
        return error
    return signals.interruption(watch.signum)


class _TellingHandler(logging.StreamHandler):
    """Log handler that also records the time of the last message."""

    def emit(self, record: logging.LogRecord) -> None:
        told()
        super().emit(record)


@contextlib.contextmanager
def _messages() -> Iterator[None]:
    """Print the package's log messages as plain lines on standard error.

    Without this, only warnings and errors would be printed, because absl, which Orbax imports,
    configures the root logger.
    """
    logger = logging.getLogger("t5x_lite")
    handler = _TellingHandler(sys.stderr)
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]


def _parse_command(args: Sequence[str]) -> tuple[Any, list[str]]:
    """Return the command with its parsed options, and the config overrides that follow them."""
    if not args:
        raise OptionError(f"missing command; give one of {', '.join(COMMANDS)}; see {PROG} --help")
    if args[0] == "--version":
        print(f"{PROG} {t5x_lite.__version__}")
        raise SystemExit(0)
    if args[0] in ("-h", "--help"):
        _print_help()
    name, rest = _command_name(args)
    command, prog = COMMANDS[name], f"{PROG} {name}"
    if not command.takes_overrides:
        return parse(command, rest, prog=prog, arrange=command.help)
    end = rest.index("--") if "--" in rest else len(rest)
    rest, last = rest[:end], rest[end:]  # arguments after -- are not parsed here
    if "config" not in command.__dataclass_fields__:
        parsed, others = parse(command, rest, prog=prog, other_options=None, arrange=command.help)
        return parsed, [*others, *last]
    asks_help = "--help" in rest or "-h" in rest
    config_first = bool(rest) and not rest[0].startswith("-")
    instead = any(arg.partition("=")[0] == _INSTEAD_OF_CONFIG.get(name) for arg in rest)
    if rest and not (config_first or asks_help or instead):
        raise OptionError(
            f"`t5x-lite {name}` requires CONFIG as the first argument: {prog} CONFIG [--FIELD "
            "VALUE ...]"
        )
    if name == "train" and config_first and asks_help:
        return command(config=rest[0]), [*rest[1:], *last]
    parsed, others = parse(command, rest, prog=prog, other_options=None, arrange=command.help)
    return parsed, [*others, *last]


_INSTEAD_OF_CONFIG = {"cache": "--convert"}
"""Command -> option that replaces the argument CONFIG of the command."""


def _refuse_output_as_input(command: Any) -> None:
    """Raise OptionError if --output is a file that the command reads."""
    if getattr(command, "output", None):
        from t5x_lite.commands.command import refuse_output_as_input

        refuse_output_as_input(command)


def _command_name(args: Sequence[str]) -> tuple[str, list[str]]:
    """Split the arguments into the command's name (one or two words) and its arguments."""
    for words in (2, 1):
        name = " ".join(args[:words])
        if name in COMMANDS:
            return name, list(args[words:])
    first, second = args[0], [name for name in COMMANDS if name.split()[0] == args[0]]
    if second and {"-h", "--help"} & set(args):
        _print_help()
    if second:
        raise OptionError(
            f"the command {first} is incomplete; give {' or '.join(second)}; see {PROG} "
            f"{second[0]} --help"
        )
    suggestion = did_you_mean(first, COMMANDS) or f"; the commands are {', '.join(COMMANDS)}"
    raise OptionError(f"unknown command {first}{suggestion}")


def _print_help() -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without Unicode
    width = max(map(len, COMMANDS))
    columns = shutil.get_terminal_size().columns
    indent = " " * (width + 4)
    print(_HELP)
    for title, commands in summaries().items():
        print(f"\n{title}:")
        for name, summary in commands.items():
            start = f"  {name:{width}}  "
            print(textwrap.fill(start + summary, columns, subsequent_indent=indent))
    raise SystemExit(0)


def _report_error(error: BaseException) -> int:
    if isinstance(error, BrokenPipeError):  # the reader of our output has closed it, as head does
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    if isinstance(error, KeyboardInterrupt):
        signum = error.signum if isinstance(error, signals.Terminated) else signal.SIGINT
        print(signals.line_of(signum), file=sys.stderr)
        return 128 + signum
    if isinstance(error, OptionError):
        print(f"error: {error}", file=sys.stderr)
        return 2
    lines = str(error).strip().splitlines() or [""]
    if isinstance(error, Interrupted):
        print(lines[0], file=sys.stderr)
        return 128 + error.signum
    if isinstance(error, InputError):
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    if (line := line_of_file(error)) is not None:
        print(f"error: {line}", file=sys.stderr)
        return 2
    what = f"{type(error).__name__}: {lines[0]}".rstrip(": ")
    print(f"error: {what} (--debug shows the traceback)", file=sys.stderr)
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
