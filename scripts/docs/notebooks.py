"""Runs the notebooks and writes what their cells print into them.

    python scripts/docs/notebooks.py            # from the root of a checkout, with the extra data

The output of a cell is its standard output and the value of its last line, as Jupyter shows them.
"""

import ast
import contextlib
import io
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def run_cells(sources: list[str], *, name: str) -> list[str]:
    """Run the code cells of a notebook in one namespace and return the text of each output."""
    names: dict[str, Any] = {"__name__": "__main__"}
    outputs = []
    for number, source in enumerate(sources):
        tree = ast.parse(source)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        where = f"{name}[{number}]"
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(tree, where, "exec"), names)
            value = last and eval(compile(ast.Expression(last.value), where, "eval"), names)
        shown = "" if value is None else f"{value!r}\n"
        outputs.append(without_places(printed.getvalue() + shown))
    return outputs


def without_places(text: str) -> str:
    """Write WORK for the notebook's temporary directory, whose name is another at each run."""
    return re.sub(rf"{re.escape(tempfile.gettempdir())}/t5x_lite-[^/'\s]+", "WORK", text)


def write_outputs(path: Path) -> None:
    """Run a notebook and store the output of each code cell in it."""
    notebook = json.loads(path.read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    outputs = run_cells(["".join(cell["source"]) for cell in cells], name=path.name)
    for cell, text in zip(cells, outputs, strict=True):
        lines = text.splitlines(keepends=True)
        stream = {"name": "stdout", "output_type": "stream", "text": lines}
        cell["outputs"] = [stream] if lines else []
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    for notebook_path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        write_outputs(notebook_path)
