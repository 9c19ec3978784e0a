"""The cells of the notebooks run, one after the other."""

import json

import pytest

from scripts.docs.notebooks import run_cells
from tests.docs.commands import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def code(path):
    cells = json.loads(path.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_there_are_two():
    assert [path.stem for path in NOTEBOOKS] == ["encoder", "t5"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_it_prints(path):
    cells = [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]
    prints = [cell for cell in cells if "print(" in "".join(cell["source"])]
    assert prints
    assert all(cell["outputs"] for cell in prints)
    shown = json.dumps([cell["outputs"] for cell in cells])
    assert "Error" not in shown
    assert "t5x_lite-" not in shown  # the temporary directory is written WORK


@pytest.mark.slow
@pytest.mark.exhaustive  # scripts/docs.sh runs it
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_cells_run(path, monkeypatch, compile_once):
    del compile_once
    monkeypatch.chdir(ROOT)
    cells = [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]
    outputs = run_cells(code(path), name=path.name)
    assert [bool(text) for text in outputs] == [bool(cell["outputs"]) for cell in cells]
