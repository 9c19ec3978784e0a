"""Guides whose blocks run: the commands and the code that a page shows, on small files."""

import dataclasses
import json
import sys
import types

import pytest

from t5x_lite.cli import main
from t5x_lite.config import Checkpoints, Evaluation
from t5x_lite.core.tracking import Tracking
from t5x_lite.train import measuring
from t5x_lite.train.training import train
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


def test_a_callback_ends_a_run(
    tmp_path, monkeypatch, tiny_experiment, compile_once, caplog, capsys
):
    """The example of the guide: a run that is killed and resumed ends where another one does."""
    caplog.set_level("INFO", logger="t5x_lite")
    code = next(b.text for b in guide("tracking") if "class Plateau" in b.text)
    module = types.ModuleType("my_callbacks")
    exec(code, module.__dict__)
    monkeypatch.setitem(sys.modules, "my_callbacks", module)
    losses = {1: 3.0, 2: 2.0, 3: 2.5, 4: 2.25, 5: 1.0}
    monkeypatch.setattr(
        measuring.Measurement,
        "__call__",
        lambda self, step, params: {"validation/loss": losses[step]},
    )
    experiment = dataclasses.replace(
        tiny_experiment,
        workdir=str(tmp_path / "run"),
        tracking=Tracking(to=("my_callbacks:Plateau",)),
        evaluation=Evaluation(period=1, max_batches=1),
        checkpoints=Checkpoints(period=10, keep=5),
    )
    first = train(dataclasses.replace(experiment, steps=3))
    assert first.step == 3
    trained = train(dataclasses.replace(experiment, steps=5))
    assert (trained.step, trained.metrics) == (4, {"validation/loss": 2.25})
    message = "stopped early at step 4: my_callbacks:Plateau: no better loss since 2.0000"
    assert message in caplog.messages
    saved = [line.split() for line in capsys.readouterr().out.splitlines()]
    steps = tmp_path / "run" / "checkpoints"
    assert saved == [["3", str(steps / "3")], ["4", str(steps / "4")]]
    assert not list(steps.glob("*.incomplete"))
    caplog.clear()
    assert train(dataclasses.replace(experiment, steps=5)).step == 4
    assert message in caplog.messages


def test_the_options_of_lora():
    page = ROOT / "docs" / "reference" / "adapter_methods.md"
    [code] = [block.text for block in blocks(page) if "rank_at" in block.text]
    exec(code, {})
