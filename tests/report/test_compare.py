"""Tests of the page that compares runs."""

import json
import re
from pathlib import Path

import pytest

from t5x_lite.errors import InputError
from t5x_lite.report.compare import compare, short_names


def a_run(directory, *, value, losses, accuracies, command=""):
    directory.mkdir(parents=True)
    records = [{"step": 10 * (i + 1), "loss": loss} for i, loss in enumerate(losses)]
    records += [
        {"step": 10 * (i + 1), "validation/accuracy": one} for i, one in enumerate(accuracies)
    ]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    config = {"steps": 30, "workdir": str(directory), "optimizer": {"schedule": {"value": value}}}
    (directory / "config.json").write_text(
        json.dumps(config | {"data": {"task": "tasks.glue:rte"}})
    )
    start = {"command": command, "time": 1, "step": 0, "devices": "1 cpu", "versions": {}}
    (directory / "run.json").write_text(json.dumps({"starts": [start]}))
    return directory


@pytest.fixture
def runs(tmp_path):
    return [
        a_run(tmp_path / "a" / "run", value=0.1, losses=[3.0, 2.0], accuracies=[0.75, 0.5]),
        a_run(
            tmp_path / "b" / "run",
            value=0.2,
            losses=[3.5, 1.5, 1.0],
            accuracies=[0.25, 0.5, 0.5],
            command="t5x-lite train <b>",
        ),
    ]


def cells(page):
    """Row -> the other cells, with a star where they are bold."""
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', page)
    found = [re.findall(r"<td( class=best)?>(.*?)</td>", rest) for _, rest in rows]
    return {
        name: [text + "*" * bool(best) for best, text in each]
        for (name, _), each in zip(rows, found, strict=True)
    }


def test_metrics_settings_and_curves(tmp_path, runs):
    page = compare(runs, tmp_path / "page.html").read_text(encoding="utf-8")
    assert cells(page) == {
        "a/run": ["tasks.glue:rte", "20 of 30", ""],
        "b/run": ["tasks.glue:rte", "30 of 30", ""],
        "validation/accuracy, best": ["0.75 at 10*", "0.5 at 30"],
        "validation/accuracy, last": ["0.5 at 20", "0.5 at 30"],
        "training loss, last": ["2 at 20", "1 at 30*"],
        "--optimizer.schedule.value": ["0.1", "0.2"],
    }
    charts = re.findall(r"<h3>(.*?)</h3>", page)
    assert charts == ["Accuracy (validation)", "Loss", "b/run"]  # and the command of the second
    assert "step 30: b/run 1" in page
    assert "t5x-lite train &lt;b&gt;" in page
    assert "<script" not in page
    assert page.count('<g class="c1">') == 3  # the loss also on a logarithmic axis


def test_equal_runs_differ_in_nothing(tmp_path):
    equal = [
        a_run(tmp_path / name, value=0.1, losses=[1.0], accuracies=[0.5]) for name in ("a", "b")
    ]
    page = compare(equal, tmp_path / "page.html").read_text(encoding="utf-8")
    assert 'Settings that differ</h2><p class="note">None.</p>' in page
    assert "class=best" not in page


def test_the_page_is_next_to_the_first_run_and_not_in_the_current_directory(
    tmp_path, runs, monkeypatch
):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    page = Path(runs[0]).resolve().parent / "compare.html"
    assert compare(runs) == page
    assert page.is_file()
    assert not list(elsewhere.iterdir())


def test_a_run_that_is_no_run_or_comes_twice(tmp_path, runs):
    with pytest.raises(InputError, match="given twice"):
        compare([runs[0], f"{runs[0]}/../run"])
    with pytest.raises(InputError, match="none is not a directory"):
        compare([runs[0], tmp_path / "none"])


def test_names_are_as_long_as_they_must_be():
    assert short_names([Path("/x/a"), Path("/x/b")]) == ["a", "b"]
    assert short_names([Path("/x/a/run"), Path("/x/b/run"), Path("/y/c")]) == [
        "a/run", "b/run", "y/c"
    ]  # fmt: skip
