"""From files of SQuAD 2.0 to its script's files: answers behind the first window, and none."""

import dataclasses
import json
import random

import pytest

from t5x_lite import layouts
from t5x_lite.commands.weights import export_hf, import_hf
from t5x_lite.config import Checkpoints, Evaluation, Experiment
from t5x_lite.data.config import Data
from t5x_lite.models.encoder import BertConfig
from t5x_lite.objectives.task_heads import Spans
from t5x_lite.optim.config import AdamW, Constant
from t5x_lite.train.measuring import evaluate
from t5x_lite.train.training import train
from tests import tokenizer_files

pytest.importorskip("seqio")
pytestmark = pytest.mark.slow

LETTERS = "abcdefghijkmnopqrstuvwxyz"


def paragraphs(rng, num):
    """Contexts of 24 tokens; the answer to "the dog" is "una", and every third has none."""
    found = []
    for number in range(num):
        words = [rng.choice(LETTERS) for _ in range(24)]
        place = rng.randrange(12, 24)
        if number % 3:
            words[place] = "una"
        answer = {"text": "una", "answer_start": 2 * place}
        question = {
            "id": f"q{number}",
            "question": "the dog",
            "is_impossible": number % 3 == 0,
            "answers": [answer] if number % 3 else [],
        }
        found.append({"context": " ".join(words), "qas": [question]})
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A trained model, whose rows have 11 tokens of a context."""
    root, rng = tmp_path_factory.mktemp("squad"), random.Random(0)
    for name, num in (("train", 60), ("dev", 9)):
        content = {"version": "v2.0", "data": [{"title": "", "paragraphs": paragraphs(rng, num)}]}
        (root / f"{name}-v2.0.json").write_text(json.dumps(content))
    experiment = Experiment(
        model=BertConfig(
            vocab_size=128,
            d_model=32,
            d_ff=64,
            num_heads=2,
            num_layers=1,
            max_positions=16,
            token_types=2,
            unroll=True,
        ),
        objective=Spans(longest=4),
        data=Data(
            task="tasks.squad:squad_v2",
            vocabulary=str(tokenizer_files.write_wordpiece(root)),
            directory=str(root),
            layout=layouts.Windows(doc_stride=4),
            batch_size=16,
            inputs_length=16,
            pack=False,
            extra_ids=0,
        ),
        optimizer=AdamW(schedule=Constant(value=1e-2)),
        steps=40,
        workdir=str(root / "run"),
        checkpoints=Checkpoints(period=40, best="validation/best_f1"),
        evaluation=Evaluation(period=40),
    )
    train(experiment)
    return experiment, root


def test_answers_are_found_in_any_window_and_missing_ones_are_empty(run, tmp_path):
    experiment, root = run
    found = evaluate(experiment, [str(root / "run")], output=str(tmp_path))
    for name in ("exact", "f1", "HasAns_exact", "NoAns_exact", "best_exact", "best_f1", "score"):
        assert found[f"validation/{name}"] == 1.0, name
    folder = tmp_path / "submission" / "squad_v2.0"
    texts = json.loads((folder / "predictions.json").read_text())
    odds = json.loads((folder / "null_odds.json").read_text())
    assert texts == {f"q{number}": "una" if number % 3 else "" for number in range(9)}
    assert {name: value > 0 for name, value in odds.items()} == {
        name: not text for name, text in texts.items()
    }
    assert found["validation/best_f1_thresh"] == max(
        value for name, value in odds.items() if texts[name]
    )
    lines = (tmp_path / "predictions.jsonl").read_text().splitlines()
    assert [json.loads(line)["prediction"] for line in lines] == list(texts.values())


def test_the_threshold_is_chosen_when_it_is_measured(run, tmp_path):
    experiment, root = run
    settings = {"loss": False, "max_examples": 3}
    for threshold, exact in ((1e9, 2 / 3), (-1e9, 1 / 3)):
        evaluation = Evaluation(null_threshold=threshold, **settings)
        found = evaluate(
            dataclasses.replace(experiment, evaluation=evaluation),
            [str(root / "run")],
            output=str(tmp_path),
        )
        assert found["validation/exact"] == pytest.approx(exact)
    assert not (tmp_path / "submission").exists()  # not of the whole split


def test_an_imported_head_answers_in_windows_and_in_a_row_that_is_cut(run, tmp_path):
    experiment, root = run
    export_hf(root / "run", tmp_path / "theirs")
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert config["architectures"] == ["BertForQuestionAnswering"]
    import_hf(tmp_path / "theirs", tmp_path / "ours")
    # No answer begins in the first 11 tokens of a context.
    cut = dataclasses.replace(experiment.data, layout=layouts.Labelled())
    for data, found in ((experiment.data, 1.0), (cut, 0.0)):
        measured = dataclasses.replace(experiment, data=data)
        metrics = evaluate(measured, [str(tmp_path / "ours")])
        assert metrics["validation/HasAns_exact"] == found
        assert metrics["validation/NoAns_exact"] == 1.0
