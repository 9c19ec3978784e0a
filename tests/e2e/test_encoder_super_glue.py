"""SuperGLUE by a head on a tiny BERT: trained, measured, and answered for the server."""

import dataclasses
import json

import pytest

from t5x_lite import layouts
from t5x_lite.config import Checkpoints, Evaluation, Experiment
from t5x_lite.data.config import Data
from t5x_lite.data.vocabularies.loading import load_vocabulary
from t5x_lite.evaluate.submission import FORMATS, check
from t5x_lite.models.encoder import BertConfig
from t5x_lite.objectives.task_heads import Classify
from t5x_lite.optim.config import AdamW, Constant
from t5x_lite.train.measuring import evaluate
from t5x_lite.train.training import train
from tests import tokenizer_files
from tests.tasks import benchmark_directory

pytest.importorskip("seqio")

NAMES = ("una", "dog", "run")


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    path = tokenizer_files.write_wordpiece(tmp_path_factory.mktemp("vocabulary"))
    return Experiment(
        model=BertConfig(
            vocab_size=load_vocabulary(path).size,
            d_model=32,
            d_ff=64,
            num_heads=2,
            num_layers=1,
            max_positions=64,
            token_types=2,
            dropout_rate=0.0,
        ),
        objective=Classify(num_classes=2),
        data=Data(
            task="tasks.super_glue:record",
            layout=layouts.Labelled(),
            vocabulary=str(path),
            batch_size=16,
            inputs_length=64,
            pack=False,
        ),
        optimizer=AdamW(schedule=Constant(value=3e-3)),
        steps=60,
        checkpoints=Checkpoints(period=60),
        evaluation=Evaluation(period=60),
    )


def record(number, *, known):
    """The dog is always meant; there are one to three names, of which two queries are asked."""
    names = NAMES[: number % 3 + 1] if number % 3 else ("dog",)
    text = " ".join(names)
    starts = [text.index(name) for name in names]
    entities = [{"start": s, "end": s + len(n) - 1} for s, n in zip(starts, names, strict=True)]
    answers = {"answers": [{"text": "dog"}]} if known else {}
    return {
        "idx": number,
        "passage": {"text": text, "entities": entities},
        "qas": [{"query": "the @placeholder", "idx": 2 * number + i, **answers} for i in range(2)],
    }


def wsc(number, *, known):
    """Una is meant, and the dog is not."""
    text = "una saw the dog as she run"
    noun = {"span1_text": "una", "span1_index": 0}
    if number % 2:
        noun = {"span1_text": "the dog", "span1_index": 2}
    target = {**noun, "span2_text": "she", "span2_index": 5}
    label = {"label": not number % 2} if known else {}
    return {"text": text, "target": target, "idx": number, **label}


def write(folder, of):
    folder.mkdir()
    for split, size in (("train", 40), ("val", 12), ("test", 9)):
        rows = [of(number, known=split != "test") for number in range(size)]
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))


@pytest.mark.exhaustive
def test_record_is_learned_and_all_its_queries_are_answered(experiment, tmp_path, compile_once):
    write(tmp_path / "ReCoRD", record)
    trained = dataclasses.replace(
        experiment,
        workdir=str(tmp_path / "run"),
        data=dataclasses.replace(experiment.data, directory=str(tmp_path)),
    )
    train(trained)
    samples = [json.loads(line) for line in (tmp_path / "run" / "samples.jsonl").open()]
    assert samples[2] == {
        "step": 60, "inputs": "una dog the @placeholder", "targets": "dog", "prediction": "dog"
    }  # fmt: skip
    metrics = evaluate(trained, [str(tmp_path / "run")], output=str(tmp_path / "out"))
    assert metrics["validation/exact_match"] == metrics["validation/f1"] == 1.0
    assert metrics["validation/accuracy"] > 0.99  # of the rows
    predictions = [json.loads(line) for line in (tmp_path / "out" / "predictions.jsonl").open()]
    assert [line["prediction"] for line in predictions] == ["dog"] * 24
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["invalid_predictions"] == 0
    file = tmp_path / "out" / "submission" / "superglue" / "ReCoRD.jsonl"
    check(FORMATS["super_glue_record"], file.read_text(), expected=[(i,) for i in range(18)])
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines == [{"idx": number, "label": "dog"} for number in range(18)]
    limited = dataclasses.replace(trained.evaluation, max_examples=3, loss=False)
    few = dataclasses.replace(trained, evaluation=limited)
    assert evaluate(few, [str(tmp_path / "run")])["validation/exact_match"] == 1.0


@pytest.mark.exhaustive
@pytest.mark.slow
def test_wsc_is_learned_from_both_labels(experiment, tmp_path, compile_once):
    write(tmp_path / "WSC", wsc)
    trained = dataclasses.replace(
        experiment,
        workdir=str(tmp_path / "run"),
        steps=30,
        data=dataclasses.replace(
            experiment.data, task="tasks.super_glue:wsc", directory=str(tmp_path)
        ),
    )
    train(trained)
    metrics = evaluate(trained, [str(tmp_path / "run")], output=str(tmp_path / "out"))
    assert metrics["validation/accuracy"] == 1.0
    file = tmp_path / "out" / "submission" / "superglue" / "WSC.jsonl"
    check(FORMATS["super_glue_wsc"], file.read_text(), expected=[(i,) for i in range(9)])
    assert [json.loads(line)["label"] for line in file.open()] == ["True", "False"] * 4 + ["True"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "record",
        *(
            pytest.param(name, marks=pytest.mark.exhaustive)
            for name in ("boolq", "multirc", "rte", "wic", "wsc")
        ),
    ],
)
def test_made_up_files_are_trained_on_and_answered(
    name, experiment, tmp_path, english_lines, compile_once
):
    benchmark_directory.write(tmp_path, english_lines[:20])
    benchmark_directory.write_test_splits(tmp_path, english_lines[:6])
    task = f"super_glue_{name}"
    trained = dataclasses.replace(
        experiment,
        workdir=str(tmp_path / "run"),
        steps=2,
        checkpoints=Checkpoints(period=2),
        evaluation=Evaluation(period=2),
        data=dataclasses.replace(
            experiment.data, task=f"tasks.super_glue:{name}", directory=str(tmp_path)
        ),
    )
    train(trained)
    evaluate(trained, [str(tmp_path / "run")], output=str(tmp_path / "out"))
    file = tmp_path / "out" / "submission" / "superglue" / FORMATS[task].file
    expected = [(i,) for i in range(6)]
    if name == "multirc":
        expected = [(i, i, answer) for i in range(6) for answer in range(2)]
    check(FORMATS[task], file.read_text(), expected=expected)
