"""The table of commands: each is found, and its summary is its docstring's first line."""

import pytest

from t5x_lite.commands import COMMANDS, summaries


@pytest.mark.parametrize("name", COMMANDS)
def test_a_summary_is_the_first_line_of_a_docstring(name):
    assert summaries()[name] == COMMANDS[name].__doc__.partition("\n")[0] != ""


def test_a_name_that_is_not_there():
    assert "tain" not in COMMANDS
    with pytest.raises(KeyError):
        COMMANDS["tain"]
