"""A Fisher diagonal of a checkpoint, and two deltas merged by it."""

import json

import numpy as np
import pytest

from t5x_lite.commands.deltas import compose, fisher
from t5x_lite.core.errors import InputError
from t5x_lite.data.vocabularies.loading import load_vocabulary
from t5x_lite.inference.delta_files import load
from tests.adapters.delta_directories import write_base, write_run
from tests.adapters.hosts import HOSTS


class Source:
    """Batches of one row, in place of a task's."""

    def __init__(self, batch):
        self.batch = batch

    def train_batches(self, data, vocabulary, *, seed):
        assert (data.batch_size, data.pack, seed) == (1, False, 0)
        for row in range(8):
            yield {name: np.asarray(x)[row : row + 1] for name, x in self.batch.items()}


@pytest.fixture(autouse=True)
def _data(monkeypatch):
    monkeypatch.setattr(
        "t5x_lite.data.batches.train_batches", Source(HOSTS["bert"][2]).train_batches
    )
    monkeypatch.setattr(
        "t5x_lite.inference.loading.load_vocabulary", lambda *a, **k: load_vocabulary("bytes")
    )


@pytest.mark.exhaustive
def test_two_runs_are_merged_by_their_diagonals(tmp_path, monkeypatch):
    base = write_base(tmp_path / "bert", "bert")
    for name, seed in (("a", 1), ("b", 2)):
        write_run(tmp_path / name, "bert", base, "m = lora(r=2)", seed=seed)
        fisher(str(tmp_path / name), str(tmp_path / f"f{name}"), examples=2)
    said = json.loads((tmp_path / "fa" / "files" / "fisher.json").read_text())
    assert said == {"checkpoint": str(tmp_path / "a"), "examples": 2, "labels": "empirical"}
    compose(
        "fisher(a, b)",
        str(tmp_path / "ab"),
        delta=[f"a={tmp_path / 'a'}", f"b={_headless(tmp_path / 'b', tmp_path / 'bb')}"],
        fisher=[f"a={tmp_path / 'fa'}", f"b={tmp_path / 'fb'}"],
    )
    merged, parts = load(tmp_path / "ab").parts, [load(tmp_path / name).parts for name in "ab"]
    assert merged.keys() == parts[0].keys()
    for path, part in merged.items():
        low, high = (f(*(p[path].dense() for p in parts)) for f in (np.minimum, np.maximum))
        assert np.all((part.dense() >= low - 1e-5) & (part.dense() <= high + 1e-5))
    fisher(str(tmp_path / "a"), str(tmp_path / "expected"), examples=1, labels="expected")


def _headless(run, made):
    compose("without_heads(a)", str(made), delta=[f"a={run}"])
    return made


def test_expected_labels_need_a_classifier(tmp_path):
    base = write_base(tmp_path / "t5", "t5")
    with pytest.raises(
        InputError, match="--labels expected requires a checkpoint with a classifier"
    ):
        fisher(str(base[0]), str(tmp_path / "no"), labels="expected")
    assert not (tmp_path / "no").exists()
