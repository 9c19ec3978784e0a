"""The surface of the command line is frozen: commands, options, types and defaults, helps, errors.

A change of a name, a default or an exit code breaks somebody's scripts: it needs a line in
CHANGELOG.md. `python tests/test_cli_surface.py` writes the three golden files again.
"""

import contextlib
import dataclasses
import io
import os
import subprocess
import sys
import tempfile
import typing
from collections.abc import Iterator
from pathlib import Path

from t5x_lite import cli
from t5x_lite.commands import COMMANDS
from t5x_lite.core.options import is_configs, is_positional

GOLDEN = Path(__file__).parent / "golden" / "cli_surface.txt"
HELPS = GOLDEN.with_name("cli_help.txt")
ERRORS = GOLDEN.with_name("cli_errors.txt")
REWRITE = "the command line changed; if that is meant, run python tests/test_cli_surface.py"

MISSING_FILE = {
    "init": "full",
    "train": "absent.py",
    "finetune": "--init absent --table table.csv --inputs {text} --targets {label} --workdir work",
    "glue": "--init absent --directory full --workdir work",
    "sweep": "absent.py --workdir out",
    "evaluate": "absent.py --checkpoint absent",
    "predict": "--checkpoint absent --input table.jsonl --output out",
    "score": "--checkpoint absent --input table.jsonl --output out",
    "embed": "--checkpoint absent --input table.jsonl --output out.npy",
    "serve": "--checkpoint absent --port 0",
    "info": "absent",
    "report": "absent",
    "search": "--vectors absent.npy --queries absent.npy --output out",
    "index build": "--vectors absent.npy --output out",
    "index search": "--index absent --queries absent.npy --output out",
    "index bench": "--indexes absent --vectors absent.npy --queries absent.npy",
    "bm25 build": "--input absent.jsonl --output out",
    "bm25 search": "--index absent --queries table.jsonl --output out",
    "hybrid": "--corpus absent --queries absent --output out",
    "fuse": "--runs absent.trec --output out",
    "rerank": "--checkpoint absent --input absent.trec --beir absent --output out",
    "score-pairs": "--checkpoint absent --input absent.jsonl --output out",
    "pairs": "--input absent.jsonl --output out --rule title_body",
    "synthesize requests": "--articles absent.jsonl --output out",
    "synthesize collect": "--articles absent.jsonl --answers absent.jsonl --output out",
    "mine": "--input absent.jsonl --output out --rankings absent.trec --passages absent.jsonl",
    "refresh": "absent --passages absent.jsonl",
    "evaluate-run": "--runs absent.trec --qrels absent.tsv",
    "evaluate-suite": "beir --directory absent --output out --bm25 english",
    "evaluate-sts": "--input absent.tsv --checkpoint absent",
    "import hf": "./absent out",
    "import t5x": "absent out --vocabulary absent",
    "import adapter": "./absent out --base absent",
    "export hf": "absent out",
    "export adapter": "absent out",
    "export stablehlo": "absent out",
    "push": "absent name/model --dry-run",
    "compose": "a out --delta a=absent",
    "merge": "absent out",
    "fisher": "absent out",
    "heads": "absent out",
    "extend": "absent out --positions 8",
    "vocab": "--input absent.txt --output out --size 100",
    "cache": "absent.py --output out",
    "c4": "--input absent.wet.gz --output out",
    "plan": "absent.py",
    "completion": "absent",
}
"""Command -> arguments that name a file, a directory or a shell that is not there."""

WRONG_OPTION = {
    "train": "config.py --data.pak False",
    "sweep": "config.py --workdir out --data.pak False",
    "evaluate": "config.py --checkpoint absent --data.pak False",
    "cache": "config.py --output out --data.pak False",
    "plan": "config.py --data.pak False",
    "c4": "--input table.csv --output out --cleaning.dedupe lines",
}
"""Command that also takes the fields of a config -> arguments with an unknown field."""


def surface() -> str:
    """Lists every command with its options, and the options that every config has."""
    from t5x_lite.adapters.config import Adapters
    from t5x_lite.c4.config import Cleaning
    from t5x_lite.checkpoints.init import Init
    from t5x_lite.config import Checkpoints, Evaluation, Experiment, FewShot, Hosts
    from t5x_lite.config.evaluation import EarlyStopping, Profile, Retrieval
    from t5x_lite.core.sharding import MeshConfig
    from t5x_lite.core.tracking import Tracking

    lines = []
    for name, command in COMMANDS.items():
        lines += [f"t5x-lite {name}", *_options(command), *_options_of_parts(command)]
        if command.takes_overrides:
            lines.append("  [--FIELD VALUE ...]")
        lines.append("")
    lines += ["fields of every config", *_options(Experiment)]
    parts = {
        "adapters": Adapters,
        "init": Init,
        "checkpoints": Checkpoints,
        "evaluation": Evaluation,
        "evaluation.few_shot": FewShot,
        "evaluation.retrieval": Retrieval,
        "mesh": MeshConfig,
        "hosts": Hosts,
        "profile": Profile,
        "stop_early": EarlyStopping,
        "tracking": Tracking,
    }
    for name, part in parts.items():
        lines += _options(part, prefix=f"{name}.")
    lines += ["", "rules of t5x-lite c4", *_options(Cleaning, prefix="cleaning.")]
    return "\n".join(lines) + "\n"


def _options_of_parts(command: typing.Any) -> list[str]:
    parts = {name: hint for name, hint in typing.get_type_hints(command).items()
             if dataclasses.is_dataclass(hint)}  # fmt: skip
    return [line for name, hint in parts.items() for line in _options(hint, prefix=f"{name}.")]


def _options(config: typing.Any, *, prefix: str = "") -> list[str]:
    marked = typing.get_type_hints(config, include_extras=True)
    hints = typing.get_type_hints(config)
    lines = []
    for field in dataclasses.fields(config):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint) or is_configs(hint):
            continue
        name = f"--{prefix}{field.name.replace('_', '-')}"
        if is_positional(marked[field.name]):
            name = field.name.upper()
        shown = hint.__name__ if isinstance(hint, type) and hint.__name__ != "tuple" else str(hint)
        default = "required" if field.default is dataclasses.MISSING else repr(field.default)
        lines.append(f"  {name}: {shown.replace('typing.', '')} = {default}")
    return lines


def called(args: list[str]) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command in this process."""
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            code = cli.main(args)
        except SystemExit as stop:
            code = stop.code or 0
    return int(code), out.getvalue(), error.getvalue()


def helps() -> str:
    """The help of all commands, as a terminal of 100 columns shows it; imports nothing heavy."""
    os.environ |= {"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"}
    lines = []
    for name in ("", *COMMANDS):
        code, out, error = called([*name.split(), "--help"])
        assert not error, error
        lines += [f"$ t5x-lite {name} --help".replace("  ", " "), f"exit code {code}"]
        lines += [line.rstrip() for line in out.splitlines()] + [""]
    heavy = {"flax", "jax", "numpy", "tensorflow"} & set(sys.modules)
    assert __name__ != "__main__" or not heavy, f"--help imported {heavy}"
    return "\n".join(lines) + "\n"


def printed_helps() -> str:
    """`helps` of a new process, which has imported nothing before."""
    done = subprocess.run(
        [sys.executable, __file__, "helps"],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def errors() -> str:
    """Exit code and error of each command for an unknown option, no option and a missing file."""
    lines = []
    with inside_of_files():
        for name in COMMANDS:
            for rest in (WRONG_OPTION.get(name, "--no-such-option"), "", MISSING_FILE[name]):
                code, out, error = called([*name.split(), *rest.split()])
                shown = error.replace(os.getcwd(), "DIR")
                lines += [f"$ t5x-lite {name} {rest}".rstrip(), f"exit code {code}", out + shown]
            assert not os.path.exists("out"), f"{name} left half an output"
    return "\n".join(lines)


@contextlib.contextmanager
def inside_of_files() -> Iterator[None]:
    """A current directory with the small files that `MISSING_FILE` names beside absent ones."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        Path("full").mkdir()
        Path("full", "file").touch()
        Path("config.py").write_text("from configs.tiny_pretrain import experiment\n")
        Path("table.csv").write_text("text,label\na,b\n")
        Path("table.jsonl").write_text('{"inputs": "a", "targets": "b", "text": "c"}\n')
        try:
            yield
        finally:
            os.chdir(before)


def words(text: str) -> list[str]:
    """The words of a help without boxes and line breaks, which depend on tyro's version."""
    found = text.translate(dict.fromkeys(map(ord, "│╭─╮╰╯"), " ")).split()
    return [word for word in found if word.strip("-")]


def test_surface_is_frozen():
    assert surface() == GOLDEN.read_text(encoding="utf-8"), REWRITE


def test_helps_are_frozen_and_import_nothing_heavy():
    assert words(printed_helps()) == words(HELPS.read_text(encoding="utf-8")), REWRITE


def test_errors_are_frozen():
    assert MISSING_FILE.keys() == COMMANDS.keys(), "MISSING_FILE has one line for each command"
    assert errors() == ERRORS.read_text(encoding="utf-8"), REWRITE


if __name__ == "__main__":
    if sys.argv[1:] == ["helps"]:
        print(helps(), end="")
    else:
        GOLDEN.write_text(surface(), encoding="utf-8")
        HELPS.write_text(printed_helps(), encoding="utf-8")
        ERRORS.write_text(errors(), encoding="utf-8")
