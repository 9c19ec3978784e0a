"""The table of commands: each is found, and its summary is its docstring's first line."""

import shlex

import pytest

from t5x_lite import cli
from t5x_lite.commands import COMMANDS, summaries


@pytest.mark.parametrize("name", COMMANDS)
def test_a_summary_is_the_first_line_of_a_docstring(name):
    [summary] = [group[name] for group in summaries().values() if name in group]
    assert summary == COMMANDS[name].__doc__.partition("\n")[0] != ""


@pytest.mark.parametrize("name", [each for each in COMMANDS if each != "completion"])
def test_a_command_has_an_example_that_it_takes(name):
    lines = COMMANDS[name].example.replace("\\\n", "").splitlines()
    commands = [shlex.split(line)[1:] for line in lines]
    assert name in [cli._command_name(words)[0] for words in commands]
    for words in commands:
        cli._parse_command(words)


def test_a_long_help_has_groups(capsys):
    with pytest.raises(SystemExit):
        cli._parse_command(["serve", "--help"])
    shown = capsys.readouterr().out
    titles = ["options", "checkpoint", "encoding", "batches and lengths", "decoding"]
    titles += ["answers of heads", "limits of the server"]
    assert [line.split(" ─")[0][3:] for line in shown.splitlines() if line[:1] == "╭"] == titles
    decoding = shown[shown.index("╭─ decoding") : shown.index("╭─ answers")]
    assert "│ --num-beams N" in decoding
    assert "\nexample:\n  t5x-lite serve --checkpoint" in shown
    with pytest.raises(SystemExit):
        cli._parse_command(["info", "--help"])
    assert "checkpoint ─" not in capsys.readouterr().out
    with pytest.raises(SystemExit):
        cli._parse_command(["pairs", "--help"])  # only one of its options has a title
    assert capsys.readouterr().out.count("╭") == 1


def test_an_option_is_also_known_by_its_earlier_name():
    line = ["embed", "--checkpoint", "a", "--input", "b", "--output", "c", "--part=2/8"]
    assert cli._parse_command(line)[0].shard == "2/8"
    with pytest.raises(cli.OptionError, match="--shard is given twice"):
        cli._parse_command([*line, "--shard", "2/8"])


def test_a_name_that_is_not_there():
    assert "tain" not in COMMANDS
    with pytest.raises(KeyError):
        COMMANDS["tain"]
