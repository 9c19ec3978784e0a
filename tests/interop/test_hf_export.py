"""Tests of the model card: a head that YAML reads, and what it says."""

import dataclasses
import json

import pytest

from t5x_lite.core.tracking import Start
from t5x_lite.interop.hf_export import Origin, model_card, origin_of, source_file
from t5x_lite.interop.hub import Found

yaml = pytest.importorskip("yaml")

ORIGIN = Origin(
    name="sst2",
    step=300,
    start=Start(command="t5x-lite train c.py", devices="1 cpu", versions={"jax": "0.10"}),
    metrics={"validation/accuracy": 0.8125},
    hub_base="google/flan-t5-small",
    base="google/flan-t5-small",
)


def head_of(card):
    _, head, _ = card.split("---\n", 2)
    return yaml.safe_load(head)


def test_a_run_s_card(tiny_experiment):
    card = model_card(ORIGIN, tiny_experiment, architecture="T5ForConditionalGeneration")
    head = head_of(card)
    assert "license" not in head
    assert "# license: add one" in card
    assert head["pipeline_tag"] == "text2text-generation"
    assert head["base_model"] == "google/flan-t5-small"
    (entry,) = head["model-index"]
    (result,) = entry["results"]
    assert result["metrics"] == [
        {"type": "accuracy", "name": "validation/accuracy", "value": 0.8125}
    ]
    assert result["dataset"]["name"] == tiny_experiment.data.task
    for words in (
        "# sst2",
        "| Base model | `google/flan-t5-small` |",
        "## Metrics at step 300",
        "| validation/accuracy | 0.8125 |",
        "t5x-lite train c.py",
        "On 1 cpu; jax 0.10.",
        "T5ForConditionalGeneration.from_pretrained",
    ):
        assert words in card


def test_a_card_without_a_record(tiny_experiment):
    alone = Origin(name="t5", step=0, start=None, metrics={}, hub_base="", base="")
    card = model_card(alone, tiny_experiment, architecture="BertModel", sentences=True)
    head = head_of(card)
    assert head == {
        "library_name": "sentence-transformers",
        "pipeline_tag": "sentence-similarity",
        "tags": ["t5x_lite"],
    }
    assert "SentenceTransformer(" in card
    assert "## Training" not in card


def test_what_a_step_and_its_work_directory_say(tmp_path, tiny_experiment):
    step = tmp_path / "run" / "checkpoints" / "300"
    step.mkdir(parents=True)
    starts = [{"command": "first", "step": 0}, {"command": "second", "step": 400}]
    (tmp_path / "run" / "run.json").write_text(json.dumps({"starts": starts}))
    base = tmp_path / "flan"
    (base / "params").mkdir(parents=True)
    source = source_file(Found(directory=base, repository="google/flan", revision="abc"))
    for name, content in source.items():
        (base / "files" / name).parent.mkdir(parents=True)
        (base / "files" / name).write_bytes(content)
    init = dataclasses.replace(tiny_experiment.init, checkpoint=str(base))
    experiment = dataclasses.replace(tiny_experiment, init=init)
    metrics = {"validation/accuracy": 0.5, "test/accuracy": 0.6, "odd": "x"}
    files = {"metrics.json": json.dumps(metrics).encode()}
    assert origin_of(step, files, experiment) == Origin(
        name="run",
        step=300,
        start=Start(command="first"),
        metrics={"validation/accuracy": 0.5},
        hub_base="google/flan",
        base="google/flan",
    )
    imported = origin_of(base, source, tiny_experiment)
    assert (imported.name, imported.step, imported.base) == ("flan", 0, "google/flan")
    gone = dataclasses.replace(init, checkpoint=str(tmp_path / "gone"))
    experiment = dataclasses.replace(tiny_experiment, init=gone)
    assert origin_of(step, {"metrics.json": b"{"}, experiment).base == str(tmp_path / "gone")
    assert source_file(Found(directory=base)) == {}
