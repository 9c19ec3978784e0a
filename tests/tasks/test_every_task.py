"""What every task must keep: a saved iterator goes on bit for bit, and equal seeds are equal."""

import ast
import importlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

TASKS = [
    "tasks.glue:sst2",
    "tasks.python_docs:module",
    "tasks.python_docs:span_corruption",
    "tasks.text:span_10_15_u_u",
    "tasks.text:span_2_15_u_u",
    "tasks.text:span_3_15_u_u",
    "tasks.text:span_5_15_u_u",
    "tasks.text:span_corruption",
]
NO_TASKS = {"tasks.glue:read_tsv", "tasks.python_docs:split_of", "tasks.text:split_files"}


def public_functions() -> set[str]:
    """Functions and assignments of calls at the top of a module in tasks/, as "module:name"."""
    found = set()
    for path in sorted((Path(__file__).parents[2] / "tasks").glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            names = [node.name] if isinstance(node, ast.FunctionDef) else []
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                names = [t.id for t in node.targets if isinstance(t, ast.Name) and t.id.islower()]
            found |= {f"tasks.{path.stem}:{name}" for name in names if name[0] != "_"}
    return found


def test_every_task_is_tested_here():
    assert public_functions() - NO_TASKS == set(TASKS)


@pytest.fixture(scope="module")
def vocabulary(tiny_vocabulary):
    from t5x_lite.data.vocabulary import load_vocabulary

    return load_vocabulary(tiny_vocabulary)


@pytest.fixture(scope="module")
def directory(tmp_path_factory, english_lines):
    """Files for tasks.text and for tasks.glue."""
    root = tmp_path_factory.mktemp("every_task")
    (root / "prose.txt").write_text("\n".join(english_lines[:250]))
    (root / "SST-2").mkdir()
    rows = "".join(f"{line[:80]}\t{i % 2}\n" for i, line in enumerate(english_lines[:250]))
    for name in ("train.tsv", "dev.tsv"):
        (root / "SST-2" / name).write_text("sentence\tlabel\n" + rows.replace('"', ""))
    return str(root)


@pytest.fixture
def data(monkeypatch, english_lines, directory, request):
    from t5x_lite.data.config import Data

    module = importlib.import_module("tasks.python_docs")
    corpus = SimpleNamespace(
        documents=lambda directory: [SimpleNamespace(text=line) for line in english_lines[:250]],
        labelled=lambda _: [(line, f"module{i % 5}") for i, line in enumerate(english_lines[:250])],
    )
    monkeypatch.setattr(module, "python_docs", corpus)
    return Data(
        task=request.param,
        vocabulary="",
        directory=directory,
        batch_size=3,
        inputs_length=96,
        targets_length=64,
        shuffle_buffer=16,
    )


@pytest.mark.parametrize("data", TASKS, indirect=True)
def test_a_saved_iterator_goes_on_and_evaluation_works(data, vocabulary):
    from t5x_lite.data import pipeline

    batches = pipeline.train_batches(data, vocabulary, seed=7)
    for _ in range(3):
        next(batches)
    state = batches.state()
    expected = [next(batches) for _ in range(3)]
    again = pipeline.train_batches(data, vocabulary, seed=7)
    again.restore(state)
    for batch in expected:
        for name, value in next(again).items():
            np.testing.assert_array_equal(value, batch[name])
    batch = next(pipeline.eval_batches(data, vocabulary, max_batches=1))
    assert batch["decoder_loss_weights"].sum() > 0
    examples = pipeline.eval_examples(data, vocabulary, max_examples=3)
    _, metrics = pipeline.task_metrics(pipeline.load_task(data, vocabulary))
    for metric in metrics:
        targets = [example.target for example in examples]
        assert metric(targets, targets) == {"accuracy": 1.0}
