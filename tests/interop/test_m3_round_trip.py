"""A BGE-M3 through export and import, and its warm-up through a run that goes on."""

import dataclasses
import json
import logging

import numpy as np
import pytest

from t5x_lite import layouts
from t5x_lite.checkpoints.reading import lazy_params
from t5x_lite.commands.weights import export_hf, import_hf
from t5x_lite.config import Checkpoints, Evaluation, Experiment
from t5x_lite.data.config import Data
from t5x_lite.data.vocabularies.loading import load_vocabulary
from t5x_lite.inference.loading import Loaded
from t5x_lite.models.encoder import BertConfig
from t5x_lite.models.vector_heads import Dense, Lexical, MultiVector
from t5x_lite.objectives.m3 import m3
from t5x_lite.optim.config import AdamW, Constant
from t5x_lite.train import training
from tests import tokenizer_files
from tests.encoder_checkpoint import write_ranker


@pytest.mark.slow
def test_all_three_heads_come_back(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    objective = m3(specials=(0, 1, 2, 3), vector_size=4)
    options = {"layout": layouts.Groups(), "targets_length": 12}
    checkpoint = write_ranker(tmp_path, objective=objective, **options)
    export_hf(checkpoint, tmp_path / "theirs", sentence_transformers=True)
    names = {path.name for path in (tmp_path / "theirs").iterdir()}
    assert {"colbert_linear.pt", "sparse_linear.pt", "1_Pooling"} <= names
    tokenizer = json.loads((tmp_path / "theirs" / "tokenizer_config.json").read_text())
    assert (tokenizer["bos_token"], tokenizer["eos_token"]) == ("[CLS]", "[SEP]")
    line = 'BGEM3FlagModel("DIRECTORY_OR_NAME", colbert_dim=4)'
    assert line in (tmp_path / "theirs" / "README.md").read_text()
    assert line in caplog.text
    ours = import_hf(tmp_path / "theirs", tmp_path / "ours")
    expected, found = ({p: a.read() for p, a in lazy_params(d).items()} for d in (checkpoint, ours))
    assert set(found) == set(expected)
    for path, value in expected.items():
        np.testing.assert_array_equal(found[path], value, err_msg=path)
    experiment = Loaded.from_checkpoint(str(ours), step=None).experiment
    assert experiment.objective == dataclasses.replace(
        objective, pooling="cls", normalize=True, distill_from=experiment.objective.distill_from
    )
    assert {Lexical(specials=(0, 1, 2, 3)), MultiVector(size=4)} <= set(experiment.heads)
    [dense] = [head for head in experiment.heads if isinstance(head, Dense)]
    lengths = (experiment.data.inputs_length, experiment.data.targets_length)
    assert lengths == (dense.max_length, dense.max_length), "queries and passages as in `embed`"


@pytest.fixture
def experiment(tmp_path):
    """Four steps on four pairs, of which the last two learn from the sum of the scores."""
    place = tmp_path / "vocabulary"
    place.mkdir()
    vocabulary = load_vocabulary(tokenizer_files.write_wordpiece(place))
    pairs = [{"query": f"{a} b", "pos": [f"{a} c"], "neg": ["d e"]} for a in "abcd"]
    for split in ("train", "validation"):
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    model = BertConfig(
        vocab_size=120, d_model=8, d_ff=16, num_heads=2, num_layers=1, max_positions=16
    )
    return Experiment(
        model=model,
        objective=m3(distill_from=2, vector_size=4, specials=(0, 1, 2, 3), temperature=0.5),
        data=Data(
            task="tasks.pairs:jsonl",
            vocabulary=str(vocabulary.model_path),
            directory=str(tmp_path),
            layout=layouts.Groups(negatives=1),
            batch_size=2,
            inputs_length=8,
            targets_length=8,
            pack=False,
        ),
        optimizer=AdamW(schedule=Constant(value=0.01)),
        steps=4,
        log_period=1,
        checkpoints=Checkpoints(period=1),
        evaluation=Evaluation(period=4, task_metrics=False),
    )


@pytest.mark.slow
def test_the_warm_up_counts_steps_of_all_runs(experiment, tmp_path, compile_once):
    def run(name, steps):
        changed = dataclasses.replace(experiment, steps=steps, workdir=str(tmp_path / name))
        training.train(changed)
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines]
        return {r["step"]: r["loss"] for r in records if "loss" in r}

    whole = run("whole", 4)
    for steps in (1, 3, 4):  # before the sum is learned from, just behind, and to the end
        parts = run("parts", steps)
    assert parts == whole
    never = dataclasses.replace(experiment.objective, distill_from=None)
    experiment = dataclasses.replace(experiment, objective=never)
    other = run("never", 4)
    assert (other[1], other[2]) == (whole[1], whole[2])
    assert other[3] != whole[3]
