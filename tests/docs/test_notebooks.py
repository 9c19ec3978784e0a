"""The cells of the notebooks run, one after the other."""

import json

import pytest

from tests.docs.commands import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def code(path):
    cells = json.loads(path.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_there_are_two():
    assert [path.stem for path in NOTEBOOKS] == ["encoder", "t5"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_no_outputs(path):
    cells = json.loads(path.read_text())["cells"]
    assert all(not cell["outputs"] for cell in cells if cell["cell_type"] == "code")


@pytest.mark.slow
@pytest.mark.exhaustive  # scripts/docs.sh runs it
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_cells_run(path, monkeypatch, capsys, compile_once):
    del compile_once
    monkeypatch.chdir(ROOT)
    names: dict = {"__name__": "__main__"}
    for number, source in enumerate(code(path)):
        exec(compile(source, f"{path.name}[{number}]", "exec"), names)
    assert capsys.readouterr().out
