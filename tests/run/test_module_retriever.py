"""A retriever that trained a module by contrast: its vectors are those of the merged model."""

import dataclasses
import json

import numpy as np
import pytest

from t5x_lite.adapters.config import Adapters
from t5x_lite.checkpoints.init import Init
from t5x_lite.cli import main
from t5x_lite.config import Checkpoints, Evaluation
from t5x_lite.data import layouts
from t5x_lite.data.config import Data
from t5x_lite.objectives.contrastive import Contrastive
from t5x_lite.optim.config import AdamW
from t5x_lite.optim.schedules import Constant
from t5x_lite.run.loading import Loaded
from t5x_lite.run.training import train
from tests.encoder_checkpoint import write_checkpoint

pytestmark = pytest.mark.slow


@pytest.mark.exhaustive
def test_a_retriever(tmp_path, compile_once):
    """Of two steps, by the command line."""
    base = write_checkpoint(tmp_path, "bert")
    letters = [[*"abc"], [*"def"], [*"ghi"], [*"jkl"]] * 4
    lines = [{"query": x, "pos": [f"{x} {y}"], "neg": [z]} for x, y, z in letters]
    (tmp_path / "data").mkdir()
    for name in ("train", "validation"):
        (tmp_path / "data" / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "in.txt").write_text("a b\nd\n")
    known = Loaded.from_checkpoint(str(base), step=None).experiment
    experiment = dataclasses.replace(
        known,
        objective=Contrastive(pooling="mean"),
        data=Data(
            task="tasks.pairs:jsonl",
            layout=layouts.Groups(negatives=1),
            vocabulary=str(base / "files" / "vocabulary"),
            directory=str(tmp_path / "data"),
            batch_size=4,
            inputs_length=8,
            targets_length=8,
            pack=False,
        ),
        optimizer=AdamW(schedule=Constant(value=0.05)),
        init=Init(checkpoint=str(base)),
        adapters=Adapters(add=("m = lora(r=2)",)),
        steps=2,
        workdir=str(tmp_path / "run"),
        checkpoints=Checkpoints(period=2),
        evaluation=Evaluation(max_batches=1, task_metrics=False),
    )
    train(experiment)
    run, merged = tmp_path / "run", tmp_path / "merged"
    assert main(["merge", str(run), str(merged)]) == 0
    found = []
    for source in (base, run, merged):
        out = str(tmp_path / f"{source.name}.npy")
        line = ["embed", "--checkpoint", str(source), "--input", str(tmp_path / "in.txt")]
        assert main([*line, "--output", out, "--pooling", "mean"]) == 0
        found.append(np.load(out))
    assert np.abs(found[1] - found[0]).max() > 1e-3
    np.testing.assert_allclose(found[2], found[1], rtol=1e-5, atol=1e-5)
