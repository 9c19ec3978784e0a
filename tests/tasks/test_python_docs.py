import itertools
from types import SimpleNamespace

import pytest

TEXTS = [f"Return number {i} of the things that there are." for i in range(200)]


@pytest.fixture
def python_docs(monkeypatch):
    """The tasks over a small corpus: parsing what is installed takes seconds."""
    from tasks import python_docs as module

    corpus = SimpleNamespace(
        documents=lambda directory: [SimpleNamespace(text=text) for text in TEXTS],
        labelled=lambda _: [(text, "ast" if i % 2 else "json") for i, text in enumerate(TEXTS)],
    )
    monkeypatch.setattr(module, "python_docs", corpus)
    return module


@pytest.fixture
def arguments(tiny_vocabulary):
    from t5x_lite.data.config import TaskArguments
    from t5x_lite.data.vocabularies.loading import load_vocabulary

    return TaskArguments(
        vocabulary=load_vocabulary(tiny_vocabulary),
        directory="",
        inputs_length=64,
        targets_length=24,
    )


def test_the_splits_are_disjoint_complete_and_90_5_5(python_docs, arguments):
    task = python_docs.span_corruption(arguments)
    splits = {
        split: [
            e["text"].decode()
            for e in task.source.get_dataset(split, shuffle=False).as_numpy_iterator()
        ]
        for split in ("train", "validation", "test")
    }
    assert sorted(itertools.chain(*splits.values())) == sorted(TEXTS)
    assert len(splits["train"]) > 160
    assert min(len(texts) for texts in splits.values()) > 3
    assert splits["train"] != sorted(splits["train"])


def test_the_split_of_a_text_is_its_own(python_docs):
    assert [python_docs.split_of(text) for text in ("a", "b", "c")] == [
        "test",
        "validation",
        "train",
    ]
    counts = [python_docs.split_of(f"text {i}") for i in range(2000)]
    assert 60 < counts.count("validation") < 140
    assert 60 < counts.count("test") < 140


def test_module_asks_for_the_modules_name(python_docs, arguments):
    task = python_docs.module(arguments)
    dataset = task.source.get_dataset("test", shuffle=False)
    for example in dataset.as_numpy_iterator():
        prefix, _, text = example["inputs"].decode().partition(": ")
        assert prefix == "module documentation"
        assert example["targets"].decode() == ("ast" if TEXTS.index(text) % 2 else "json")
    (accuracy,) = task.predict_metric_fns
    assert accuracy(["ast", "json"], ["ast", "ast"]) == {"accuracy": 0.5}
