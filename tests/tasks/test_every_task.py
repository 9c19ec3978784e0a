"""What every task must keep: a saved iterator goes on bit for bit, and equal seeds are equal.

Tasks are found in the source, by what their functions return; a new module in tasks/ needs files
that its tasks can read (`FILES` or a fixture), and a new task nothing.
"""

import ast
import importlib
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

# Tasks that are not, or not only, for the encoder-decoder's layout.
LAYOUTS = {
    "tasks.text:language_model": ("lm",),
    "tasks.text:prefix_lm": ("seq2seq", "prefix_lm", "concat_lm"),
}


def found_tasks() -> list[str]:
    """As "module:function": public functions that return a seqio.Task, and partials of such."""
    found = []
    for path in sorted((Path(__file__).parents[2] / "tasks").glob("*.py")):
        names, makers = [], set()
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.returns is not None:
                if ast.unparse(node.returns).strip("'\"") == "seqio.Task":
                    makers.add(node.name)
                    names.append(node.name)
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                made_of = {ast.unparse(part) for part in [node.value.func, *node.value.args[:1]]}
                if made_of & makers:
                    names += [t.id for t in node.targets if isinstance(t, ast.Name)]
        found += [f"tasks.{path.stem}:{name}" for name in names if name[0] != "_"]
    return found


TASKS = found_tasks()


def test_tasks_are_found():
    assert {
        "tasks.glue:sst2",
        "tasks.python_docs:module",
        "tasks.text:prefix_lm",
        "tasks.text:span_corruption",
        "tasks.text:span_2_15_u_u",
    } <= set(TASKS)
    assert "tasks.glue:read_tsv" not in TASKS


@pytest.fixture(scope="module")
def vocabulary(tiny_vocabulary):
    from t5x_lite.data.vocabulary import load_vocabulary

    return load_vocabulary(tiny_vocabulary)


def text_files(root, lines):
    (root / "prose.txt").write_text("\n".join(lines))


def glue_files(root, lines):
    (root / "SST-2").mkdir()
    rows = "".join(f"{line[:80]}\t{i % 2}\n" for i, line in enumerate(lines))
    for name in ("train.tsv", "dev.tsv"):
        (root / "SST-2" / name).write_text("sentence\tlabel\n" + rows.replace('"', ""))


FILES = {"tasks.text": text_files, "tasks.glue": glue_files}


@pytest.fixture(scope="module")
def directory(tmp_path_factory, english_lines):
    """What the tasks read."""
    root = tmp_path_factory.mktemp("every_task")
    for write in FILES.values():
        write(root, english_lines[:250])
    return str(root)


@pytest.fixture
def _small_python_docs(monkeypatch, english_lines):
    module = importlib.import_module("tasks.python_docs")
    corpus = SimpleNamespace(
        documents=lambda directory: [SimpleNamespace(text=line) for line in english_lines[:250]],
        labelled=lambda _: [(line, f"module{i % 5}") for i, line in enumerate(english_lines[:250])],
    )
    monkeypatch.setattr(module, "python_docs", corpus)


@pytest.mark.usefixtures("_small_python_docs")
@pytest.mark.parametrize(
    ("task", "layout"),
    [(task, layout) for task in TASKS for layout in LAYOUTS.get(task, ("seq2seq",))],
)
def test_a_saved_iterator_goes_on_and_evaluation_works(task, layout, directory, vocabulary):
    from t5x_lite.data import pipeline
    from t5x_lite.data.config import Data

    data = Data(
        task=task,
        vocabulary="",
        directory=directory,
        layout=layout,
        batch_size=3,
        inputs_length=96,
        targets_length=64,
        shuffle_buffer=16,
    )
    batches = pipeline.train_batches(data, vocabulary, seed=7)
    for _ in range(3):
        next(batches)
    state = batches.state()
    expected = [next(batches) for _ in range(3)]
    again = pipeline.train_batches(data, vocabulary, seed=7)
    again.restore(state)
    for batch in expected:
        following = next(again)
        assert following.keys() == batch.keys()
        for name, value in following.items():
            np.testing.assert_array_equal(value, batch[name])
    batch = next(pipeline.eval_batches(data, vocabulary, max_batches=1))
    assert batch["decoder_loss_weights"].sum() > 0
    _, metrics = pipeline.task_metrics(pipeline.load_task(data, vocabulary))
    if metrics:
        examples = pipeline.eval_examples(data, vocabulary, max_examples=3)
        targets = [example.target for example in examples]
        values = [item for metric in metrics for item in metric(targets, targets).items()]
        assert len({name for name, _ in values}) == len(values) > 0
        assert all(math.isfinite(value) for _, value in values)
