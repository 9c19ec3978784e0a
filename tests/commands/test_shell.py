"""completion: the script is printed, and its commands are those that there are."""

import pytest

from t5x_lite.cli import main
from t5x_lite.commands import COMMANDS


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_printed(capsys, shell):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(name.split()[0] in script for name in COMMANDS)


def test_another_shell_is_refused(capsys):
    assert main(["completion", "tcsh"]) == 2
    assert "'tcsh'" in capsys.readouterr().err
