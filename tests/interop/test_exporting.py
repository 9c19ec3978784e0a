"""Tests of the exported directory's model card; the weights are in test_interchange.py."""

import shutil

import pytest

from scripts import goldens
from t5x_lite.commands.weights import export_hf, import_hf
from t5x_lite.inference.loading import Loaded


@pytest.fixture
def cached(tmp_path, tiny_vocabulary, monkeypatch):
    """A T5 in a cache of the hub, as google/tiny at the tag v1; the hub is not asked."""
    release = tmp_path / "release"
    goldens.write_release(goldens.read("t5"), release, spiece=tiny_vocabulary)
    folder = tmp_path / "hub" / "models--google--tiny"
    (folder / "blobs").mkdir(parents=True)
    snapshot = folder / "snapshots" / "c0ffee"
    snapshot.mkdir(parents=True)
    for path in release.iterdir():
        shutil.copy(path, folder / "blobs" / path.name)
        (snapshot / path.name).symlink_to(f"../../blobs/{path.name}")
    (folder / "refs").mkdir()
    (folder / "refs" / "v1").write_text("c0ffee")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    return "google/tiny"


def test_a_model_of_the_hub_in_and_out_names_its_base(cached, tmp_path):
    made = import_hf(cached, tmp_path / "ours", revision="v1")
    assert made == tmp_path / "ours"
    loaded = Loaded.from_checkpoint(str(made), step=None)
    assert loaded.experiment.model.d_model == 16
    assert export_hf(made, tmp_path / "theirs") == tmp_path / "theirs"
    card = (tmp_path / "theirs" / "README.md").read_text()
    assert '\nbase_model: "google/tiny"\n' in card
    assert 'pipeline_tag: "text2text-generation"' in card
    assert "# ours\n" in card
