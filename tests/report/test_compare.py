"""Tests of the page that compares runs."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from t5x_lite.commands.runs import report
from t5x_lite.core.errors import InputError
from t5x_lite.report.compare import compare, compare_seeds, short_names


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


def seeded(directory, *, seed, accuracies, value=0.1, steps=30, **config):
    """A run with a seed, whose evaluations are of the steps 10, 20, ..."""
    a_run(directory, value=value, losses=[2.0] * len(accuracies), accuracies=accuracies)
    path = directory / "config.json"
    saved = json.loads(path.read_text())
    path.write_text(json.dumps(saved | {"seed": seed, "steps": steps} | config))
    return directory


@pytest.fixture
def seeds(tmp_path):
    """Three seeds of 0.1, whose best accuracies are 0.8, 0.9 and 1.0, and two of 0.2."""
    ends = {"a0": 0.8, "a1": 0.9, "a2": 1.0}
    found = [
        seeded(tmp_path / name, seed=number, accuracies=[0.5, end, end - 0.1])
        for number, (name, end) in enumerate(ends.items())
    ]
    found += [
        seeded(tmp_path / f"b{seed}", seed=seed, accuracies=[0.2, 0.7, 0.72], value=0.2)
        for seed in (1, 0)
    ]
    return [*found, seeded(tmp_path / "c0", seed=0, accuracies=[0.2, 0.6, 0.5], value=0.3)]


def test_seeds_are_grouped(tmp_path, seeds):
    path, groups = compare_seeds(seeds, tmp_path / "page.html")
    assert [one["group"] for one in groups] == [
        f"optimizer.schedule.value {value}" for value in (0.1, 0.2, 0.3)
    ]
    assert [one["seeds"] for one in groups] == [[0, 1, 2], [0, 1], [0]]
    first, second, third = (one["metrics"]["validation/accuracy"] for one in groups)
    # The sample deviation of 0.8, 0.9 and 1.0 is 0.1, that of the group with the most runs.
    assert first["best"] == {
        "mean": pytest.approx(0.9),
        "sd": pytest.approx(0.1),
        "n": 3,
        "bold": True,
    }
    assert first["last"]["mean"] == pytest.approx(0.8)
    assert second["best"] == {"mean": 0.72, "sd": 0.0, "n": 2, "bold": True}
    assert third["best"] == {"mean": 0.6, "sd": None, "n": 1, "bold": False}
    page = path.read_text(encoding="utf-8")
    found = cells(page)
    assert found["optimizer.schedule.value 0.1 (n = 3)"] == ["0.9 \u00b1 0.1*"]
    assert found["optimizer.schedule.value 0.3 (n = 1)"] == ["0.6"]
    assert found["--optimizer.schedule.value"] == ["0.1", "0.2", "0.3"]
    assert page.count('class="band c0"') == 2  # the accuracy, and the loss, which is constant
    assert page.count('class="band c2"') == 0
    assert "<script" not in page


def test_one_group_and_what_is_printed(seeds, capsys):
    report([str(one) for one in seeds[:3]], group="seed")
    printed = json.loads(capsys.readouterr().out)
    assert printed["page"].endswith("compare.html")
    [group] = printed["groups"]
    assert (group["group"], group["n"]) == ("tasks.glue:rte", 3)
    assert group["metrics"]["validation/accuracy"]["last"] == {
        "mean": pytest.approx(0.8), "sd": pytest.approx(0.1), "n": 3, "bold": False,
    }  # fmt: skip


def test_what_is_no_group(tmp_path, seeds):
    short = seeded(tmp_path / "short", seed=7, accuracies=[0.5])
    with pytest.raises(
        InputError, match=r"short \(seed 7\) is at step 10, but .* is at step 30; finish"
    ):
        compare_seeds([*seeds[:2], short])
    longer = seeded(tmp_path / "longer", seed=8, accuracies=[0.5] * 6, steps=60)
    message = r"a0 \(seed 0\) has 30 steps, but .*longer \(seed 8\) has 60 steps; train all seeds"
    with pytest.raises(InputError, match=message):
        compare_seeds([seeds[0], longer])
    again = seeded(tmp_path / "again", seed=0, accuracies=[0.5, 0.6, 0.7])
    with pytest.raises(
        InputError, match=r"a0 and .*again have the same settings and the same seed 0"
    ):
        compare_seeds([seeds[0], again])
    (again / "config.json").unlink()
    with pytest.raises(
        InputError, match=r"again has no config\.json, so the seed of the run is unknown"
    ):
        compare_seeds([seeds[0], again])
    with pytest.raises(
        InputError, match=r"--group seed needs several runs, but .*a0 is the only one"
    ):
        report(str(seeds[0]), group="seed")


def test_runs_that_stop_early_may_end_at_different_steps(tmp_path):
    early: Any = {"stop_early": {"metric": "validation/loss"}}
    runs = [
        seeded(tmp_path / f"{seed}", seed=seed, accuracies=[0.5] * (seed + 2), **early)
        for seed in (0, 1)
    ]
    _, [group] = compare_seeds(runs)
    assert group["metrics"]["validation/accuracy"]["last"]["n"] == 2
