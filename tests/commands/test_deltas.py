"""compose, merge, fisher, heads and extend: what is wrong on the line is one line."""

import pytest

from t5x_lite.cli import main


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("merge src dst --allow-other-base", "--allow-other-base needs --base DIR"),
        ("merge src dst --step -1", "--step must be at least 0, got -1"),
        ("merge src dst --dtyp float32", "unknown option --dtyp; did you mean --dtype?"),
        ("compose a dst", "missing --delta"),
        ("heads src dst --keep 1.5", "--keep must be in (0, 1], got 1.5"),
        ("fisher src dst --examples 0", "--examples must be at least 1, got 0"),
        ("extend nowhere dst --positions 8", "checkpoint nowhere: no such directory"),
        ("merge nowhere dst", "checkpoint nowhere: no such directory"),
        ("compose a+ dst --delta a=nowhere", "expression 'a+', column 3: invalid syntax"),
    ],
)
def test_errors(line, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(line.split()) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "dst").exists()
