"""Guides whose blocks run: the commands and the code that a page shows, on small files."""

import json

import pytest

from t5x_lite.cli import main
from tests.docs.commands import ROOT, blocks, command_lines
from tests.encoder_checkpoint import write_checkpoint

SHORT = {"finetune": ["--steps", "4", "--data.batch-size", "4", "--evaluation.period", "2"]}
"""Options that make the runs of a page short."""


def guide(name):
    return blocks(ROOT / "docs" / "guides" / f"{name}.md")


def run(block):
    for args in command_lines(block):
        assert main([*args, *SHORT.get(args[0], [])]) == 0, args


@pytest.mark.slow
def test_unbalanced_classes(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "work").mkdir()
    write_checkpoint(tmp_path / "work", "bert")
    rows = [f"{'abcdefgh'[i % 8]} {'ijk'[i % 3]},{'no' if i % 4 else 'yes'}" for i in range(80)]
    (tmp_path / "reviews.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    caplog.set_level("INFO", logger="t5x_lite")
    run(guide("classes")[0])
    config = json.loads((tmp_path / "work/reviews/config.json").read_text())
    no, yes = config["objective"]["class_weights"]
    assert 0.6 < no < 0.7 < 1.8 < yes < 2.3
    metrics = json.loads((tmp_path / "work/results/metrics.json").read_text())
    lines = (tmp_path / "work/results/classes.jsonl").read_text().splitlines()
    (classes,) = map(json.loads, lines)
    assert list(classes["classes"]) == ["no", "yes"]
    macro = classes["averages"]["macro average"]["f1"]
    assert metrics["validation/macro_f1"] == pytest.approx(macro)
    assert "<h2>Classes</h2>" in (tmp_path / "work/reviews/report.html").read_text()
    weights = ["--objective.class-weights", "1", "2", "3"]
    args = command_lines(guide("classes")[0])[0]
    kept = args[: args.index("--workdir")]
    assert main([*kept, "--workdir", "work/other", *weights]) == 2
