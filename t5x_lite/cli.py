"""The command line: `t5x-lite COMMAND ...`. No logic: every command calls one function of run.py.

A command is a frozen dataclass whose fields are its options; JAX and TensorFlow are imported only
after one is chosen. Exit codes: 0 success; 1 the run failed; 2 wrong usage or bad input; 130 and
143 after saving on SIGINT and SIGTERM. An error is one line on standard error, standard output
holds data only, and `--debug` anywhere adds the traceback.
"""

import contextlib
import dataclasses
import io
import logging
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Union

import tyro

import t5x_lite
from t5x_lite.options import OptionError, did_you_mean, option_names, parse

PROG = "t5x-lite"

Config = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CONFIG")]
Workdir = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="WORKDIR")]
Directory = Annotated[str, tyro.conf.arg(metavar="DIR")]
Directories = Annotated[tuple[str, ...], tyro.conf.arg(metavar="DIR [DIR ...]")]
OptionalDirectory = Annotated[str | None, tyro.conf.arg(metavar="DIR")]
File = Annotated[str, tyro.conf.arg(metavar="FILE")]
Files = Annotated[tuple[str, ...], tyro.conf.arg(metavar="FILE [FILE ...]")]
OptionalFile = Annotated[str | None, tyro.conf.arg(metavar="FILE")]
Count = Annotated[int, tyro.conf.arg(metavar="N")]
OptionalStep = Annotated[int | None, tyro.conf.arg(metavar="N")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train:
    """Pretrain or fine-tune; goes on where the work directory's newest checkpoint ends.

    --FIELD VALUE after CONFIG changes a field of the config, such as --objective.z-loss 0;
    t5x-lite train CONFIG --help lists them.

    Attributes:
      config: a Python file that defines `experiment`, or the config.json of a work directory.
    """

    config: Config
    takes_overrides: ClassVar[bool] = True

    def run(self, overrides: Sequence[str]) -> None:
        """Calls run.training.train with the config's overrides."""
        from t5x_lite import config

        experiment = config.load(self.config, overrides, prog=f"{PROG} train {self.config}")
        from t5x_lite.run.training import train

        train(experiment)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Measure a checkpoint on a config's task: held-out loss and the task's metrics.

    --FIELD VALUE changes a field of the config, as for train.

    Attributes:
      config: a Python file that defines `experiment`, or the config.json of a work directory.
      checkpoint: one work directory or step directory (ensembles are not there yet).
      step: the step to take from a work directory; the newest if not given.
      output: where metrics.json and the predictions go; nowhere if not given.
    """

    config: Config
    checkpoint: Directories
    step: OptionalStep = None
    output: OptionalDirectory = None
    takes_overrides: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.checkpoint:
            raise OptionError("--checkpoint needs at least one directory")
        _at_least(0, {"--step": self.step})

    def run(self, overrides: Sequence[str]) -> None:
        """Calls run.measuring.evaluate with the config's overrides."""
        from t5x_lite import config

        experiment = config.load(
            self.config,
            overrides,
            prog=f"{PROG} train {self.config}",
            other_options=option_names(Evaluate),
        )
        from t5x_lite.run.measuring import evaluate

        evaluate(experiment, self.checkpoint, step=self.step, output=self.output)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Predict:
    """Answer inputs: JSON lines {"inputs"} to {"inputs", "prediction"}, by greedy decoding.

    Attributes:
      checkpoint: a work directory or a step directory.
      input: a file of JSON lines; - is standard input.
      output: the file to write; - is standard output.
      step: the step to take from a work directory; the newest if not given.
      batch_size: inputs decoded at once.
      max_decode_length: tokens of a prediction at most.
    """

    checkpoint: Directory
    input: File
    output: File
    step: OptionalStep = None
    batch_size: Count = 32
    max_decode_length: Count = 64
    takes_overrides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _at_least(0, {"--step": self.step})
        _at_least(
            1,
            {"--batch-size": self.batch_size, "--max-decode-length": self.max_decode_length},
        )

    def run(self, _: Sequence[str]) -> None:
        """Calls run.answering.predict."""
        from t5x_lite.run.answering import predict

        predict(
            self.checkpoint,
            step=self.step,
            input=self.input,
            output=self.output,
            batch_size=self.batch_size,
            max_decode_length=self.max_decode_length,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score:
    """Log-likelihood of targets: JSON lines {"inputs", "targets"} get "log_likelihood".

    The log-likelihood is a sum over the targets' tokens and their end; "num_tokens" counts them.

    Attributes:
      checkpoint: a work directory or a step directory.
      input: a file of JSON lines; - is standard input.
      output: the file to write; - is standard output.
      step: the step to take from a work directory; the newest if not given.
      batch_size: examples scored at once.
    """

    checkpoint: Directory
    input: File
    output: File
    step: OptionalStep = None
    batch_size: Count = 32
    takes_overrides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _at_least(0, {"--step": self.step})
        _at_least(1, {"--batch-size": self.batch_size})

    def run(self, _: Sequence[str]) -> None:
        """Calls run.answering.score."""
        from t5x_lite.run.answering import score

        score(
            self.checkpoint,
            step=self.step,
            input=self.input,
            output=self.output,
            batch_size=self.batch_size,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Vocab:
    """Train a SentencePiece vocabulary on text, one document or sentence a line.

    Attributes:
      input: text files in UTF-8; - is standard input.
      output: the directory that receives sentencepiece.model.
      size: pieces of the vocabulary, without the sentinels.
    """

    input: Files
    output: Directory
    size: Count
    takes_overrides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.input:
            raise OptionError("--input needs at least one file")
        _at_least(1, {"--size": self.size})

    def run(self, _: Sequence[str]) -> None:
        """Calls run.texts.vocab."""
        from t5x_lite.run.texts import vocab

        vocab(self.input, output=self.output, size=self.size)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """Write one HTML page about a work directory: curves, throughput, metrics, samples.

    Attributes:
      workdir: the work directory.
      output: the page to write; report.html in the work directory if not given.
    """

    workdir: Workdir
    output: OptionalFile = None
    takes_overrides: ClassVar[bool] = False

    def run(self, _: Sequence[str]) -> None:
        """Calls run.texts.report."""
        from t5x_lite.run.texts import report

        report(self.workdir, output=self.output)


COMMANDS: dict[str, Any] = {
    "train": Train,
    "evaluate": Evaluate,
    "predict": Predict,
    "score": Score,
    "vocab": Vocab,
    "report": Report,
}


def _at_least(minimum: int, values: dict[str, int | None]) -> None:
    """Raises OptionError for a value below the minimum."""
    for name, value in values.items():
        if value is not None and value < minimum:
            raise OptionError(f"{name} must be at least {minimum}, got {value}")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
      argv: the arguments after the program's name; the process's own by default.

    Returns:
      The exit code.

    Raises:
      SystemExit: with code 0 after --help and --version.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in args
    args = [arg for arg in args if arg != "--debug"]
    try:
        command, overrides = _parse_command(args)
        _first_on_path(os.getcwd())
        with _messages():
            command.run(overrides)
        sys.stdout.flush()
    except SystemExit:  # --help and --version
        raise
    except BaseException as error:
        if debug:
            traceback.print_exception(error)
        return _report_error(error)
    return 0


@contextlib.contextmanager
def _messages() -> Iterator[None]:
    """Shows the package's messages as plain lines on standard error.

    Without it nothing below a warning is shown: absl, which Orbax imports, configures the root
    logger.
    """
    logger = logging.getLogger("t5x_lite")
    handler = logging.StreamHandler(sys.stderr)
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
    """Returns the chosen command and the config overrides that follow it."""
    if not args:
        raise OptionError(f"which command? one of {', '.join(COMMANDS)}; see {PROG} --help")
    name, *rest = args
    if name == "--version":
        print(f"{PROG} {t5x_lite.__version__}")
        raise SystemExit(0)
    if name in ("-h", "--help"):
        _print_help()
    if name not in COMMANDS:
        suggestion = did_you_mean(name, COMMANDS) or f"; one of {', '.join(COMMANDS)}"
        raise OptionError(f"unknown command {name}{suggestion}")
    command, prog = COMMANDS[name], f"{PROG} {name}"
    if not command.takes_overrides:
        return parse(command, rest, prog=prog)
    asks_help = "--help" in rest or "-h" in rest
    config_first = bool(rest) and not rest[0].startswith("-")
    if rest and not config_first and not asks_help:
        raise OptionError(f"CONFIG comes first: {prog} CONFIG [--FIELD VALUE ...]")
    if command is Train and config_first:
        return Train(config=rest[0]), rest[1:]
    return parse(command, rest, prog=prog, other_options=None)


def _print_help() -> None:
    """Prints the commands and leaves by SystemExit(0)."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # tyro's bullets, on a terminal without Unicode
    commands: Any = Union[  # noqa: UP007  of a tuple
        tuple(
            Annotated[
                command,
                tyro.conf.subcommand(name, description=command.__doc__.partition("\n")[0]),
            ]
            for name, command in COMMANDS.items()
        )
    ]
    tyro.cli(
        commands,
        prog=PROG,
        args=["--help"],
        description=(
            "Pretrain, fine-tune, evaluate and use text-to-text models of the T5 family.\n\n"
            "t5x-lite COMMAND --help describes a command. --debug anywhere shows the traceback\n"
            "of an error, --version alone the version. Exit codes: 0 success, 1 the run failed,\n"
            "2 wrong usage or bad input, 130 and 143 after saving on SIGINT and SIGTERM."
        ),
    )


def _first_on_path(directory: str) -> None:
    """Makes the user's own modules importable: a console script does not do that by itself."""
    sys.path[:] = [directory, *(entry for entry in sys.path if entry not in ("", directory))]


def _report_error(error: BaseException) -> int:
    """Writes one line about an error to standard error and returns the exit code."""
    if isinstance(error, BrokenPipeError):  # the reader of our output has gone, as head does
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    if isinstance(error, KeyboardInterrupt):
        print("error: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    if isinstance(error, OptionError):
        print(f"error: {error}", file=sys.stderr)
        return 2
    from t5x_lite.errors import InputError, Interrupted

    lines = str(error).strip().splitlines() or [""]
    if isinstance(error, Interrupted):
        print(lines[0], file=sys.stderr)
        return 128 + error.signum
    if isinstance(error, InputError):
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    what = f"{type(error).__name__}: {lines[0]}".rstrip(": ")
    print(f"error: {what} (--debug shows the traceback)", file=sys.stderr)
    return 1
