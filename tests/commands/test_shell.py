"""completion: in bash as it runs, of the others the script; its commands are those there are."""

import dataclasses
import shutil
import subprocess
from typing import Annotated, ClassVar, Literal

import pytest
import tyro

from t5x_lite.cli import main
from t5x_lite.commands import COMMANDS as OURS
from t5x_lite.commands.shell import options_of, script, values_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    use: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportHF:
    source: Annotated[str, tyro.conf.Positional]
    dtype: Literal["keep", "float32"] = "keep"
    best: int | Literal["best"] | None = None
    fast: bool = False
    adapters: Part = dataclasses.field(default_factory=Part)
    takes_overrides: ClassVar[bool] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train:
    config: Annotated[str, tyro.conf.Positional]
    takes_overrides: ClassVar[bool] = True


COMMANDS = {"train": Train, "import hf": ImportHF, "import t5x": ImportHF}


def complete(*words):
    """What bash offers for the last word."""
    defined = script("bash", COMMANDS, prog="t5x-lite")
    listed = " ".join(f"'{word}'" for word in ("t5x-lite", *words))
    program = f"{defined}\nCOMP_WORDS=({listed}); COMP_CWORD={len(words)}; _t5x_lite\n"
    program += 'printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("",), ["train", "import", "--help", "--version"]),
        (("tr",), ["train"]),
        (("import", ""), ["hf", "t5x"]),
        (("import", "hf", "--d"), ["--dtype"]),
        (("import", "hf", "--a"), ["--adapters.use"]),
        (("import", "hf", "a", "b", "--dtype", ""), ["keep", "float32"]),
        (("train", "c.py", "--data.inp"), ["--data.inputs-length"]),
        (("train", "c.py", "--compute-dtype", "b"), ["bfloat16"]),
        (("train", "c"), []),
    ],
)
def test_bash_completes(words, offered):
    assert complete(*words) == offered


def test_options_and_their_values():
    assert options_of(ImportHF) == {
        "--dtype": ("keep", "float32"),
        "--best": ("best",),
        "--fast": (),
        "--adapters.use": (),
    }
    assert values_of(bool) == ("True", "False")
    assert values_of(int) == ()


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish")
def test_fish_completes():
    program = script("fish", COMMANDS, prog="t5x-lite")
    program += "\ncomplete -C 't5x-lite import hf --dtype '"
    done = subprocess.run(["fish", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["float32", "keep"]


def test_the_scripts_of_zsh_and_fish():
    zsh = script("zsh", COMMANDS, prog="t5x-lite")
    assert zsh.startswith("autoload -U +X bashcompinit && bashcompinit\n")
    fish = script("fish", COMMANDS, prog="t5x-lite").splitlines()
    assert (
        'complete -c t5x-lite -n "__fish_seen_subcommand_from import ; and '
        "__fish_seen_subcommand_from hf\" -l dtype -x -a 'keep float32'"
    ) in fish


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_printed(capsys, shell):
    assert main(["completion", shell]) == 0
    printed = capsys.readouterr().out
    assert all(name.split()[0] in printed for name in OURS)


def test_another_shell_is_refused(capsys):
    assert main(["completion", "tcsh"]) == 2
    assert "'tcsh'" in capsys.readouterr().err
