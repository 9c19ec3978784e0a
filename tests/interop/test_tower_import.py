"""A retriever of two directories, exported and imported again."""

import dataclasses
import shutil

import numpy as np
import pytest

from t5x_lite.checkpoints.reading import lazy_params
from t5x_lite.commands.weights import export_hf, import_hf
from t5x_lite.core.errors import InputError
from t5x_lite.inference.loading import Loaded
from t5x_lite.interop.hf_import import directories_of, read_towers
from t5x_lite.layouts import Groups
from t5x_lite.models.vector_heads import Dense
from t5x_lite.objectives.contrastive import Contrastive
from tests.encoder_checkpoint import write_ranker
from tests.interop.test_pooler import weight, write_pooler

APART = Contrastive(
    towers="two", projection=5, tied_projection=False, normalize=False, pooling="cls"
)


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """A checkpoint of two encoders with two projections, and its export."""
    place = tmp_path_factory.mktemp("two")
    checkpoint = write_ranker(place, objective=APART, layout=Groups(), targets_length=12)
    export_hf(checkpoint, place / "theirs", sentence_transformers=True)
    return checkpoint, place / "theirs"


def values(directory):
    return {path: array.read() for path, array in lazy_params(directory).items()}


def copy_of(source, target, *, weights=True):
    """A copy; without `weights` passages have the encoder of queries."""
    shutil.copytree(source, target)
    if not weights:
        shutil.copy(*(target / f"{role}_model/model.safetensors" for role in ("query", "passage")))
    return target


def test_two_encoders_and_two_projections_come_back(two, tmp_path):
    checkpoint, theirs = two
    ours = import_hf(theirs, tmp_path / "ours")
    expected, found = values(checkpoint), values(ours)
    assert set(found) == set(expected)
    for path, value in expected.items():
        np.testing.assert_array_equal(found[path], value, err_msg=path)
    experiment = Loaded.from_checkpoint(str(ours), step=None).experiment
    assert experiment.objective.towers == "two"
    head = Dense(pooling="cls", normalize=False, projection=5, tied=False)
    assert [dataclasses.replace(one, max_length=None) for one in experiment.heads] == [head]
    data = experiment.data
    assert (data.layout, data.task) == (Groups(), "tasks.pairs:jsonl")
    assert (data.inputs_length, data.targets_length) == (16, 16)  # which is what the model reads


def test_equal_encoders_are_one(two, tmp_path):
    source = copy_of(two[1], tmp_path / "source", weights=False)
    ours = import_hf(source, tmp_path / "ours")
    found = values(ours)
    assert not [path for path in found if path.startswith("towers/")]
    passage = values(two[0])["heads/dense/passage/kernel"]
    np.testing.assert_array_equal(found["heads/dense/passage/kernel"], passage)
    assert Loaded.from_checkpoint(str(ours), step=None).experiment.objective.towers == "one"


def test_a_pooler_beside_the_two(two, tmp_path, caplog):
    source = copy_of(two[1], tmp_path / "source")
    write_pooler(source, "linear_q", "linear_p", tied=False, size=12)
    with pytest.raises(InputError, match="both define how text vectors are computed"):
        read_towers(source, directories_of(source))
    for role in ("query", "passage"):
        (source / f"{role}_model/modules.json").unlink()
    ours = import_hf(source, tmp_path / "ours")
    kernel = values(ours)["heads/dense/passage/kernel"]
    np.testing.assert_array_equal(kernel, weight("linear_p", 12).T)
    (source / "pooler.pt").unlink()
    (source / "pooler_config.json").unlink()
    towers = read_towers(source, directories_of(source))
    assert towers.head == Dense(pooling="cls", normalize=False)
    assert "no file defines how text vectors are computed" in caplog.text


def test_what_is_refused(two, tmp_path):
    source = copy_of(two[1], tmp_path / "source")
    assert directories_of(source / "query_model") == {}
    vocabulary = source / "passage_model/vocab.txt"
    vocabulary.write_text(vocabulary.read_text().replace("\no\n", "\nzz\n"))
    with pytest.raises(InputError, match="different vocabularies"):
        import_hf(source, tmp_path / "ours")
    shutil.copy(source / "query_model/vocab.txt", vocabulary)
    with pytest.raises(InputError, match="need a source with one model"):
        import_hf(source, tmp_path / "ours", skip_from=1)
    (source / "passage_model/modules.json").unlink()
    with pytest.raises(
        InputError, match=r"only one of the two encoder directories has a modules.json"
    ):
        import_hf(source, tmp_path / "ours")
    shutil.rmtree(source / "passage_model")
    with pytest.raises(InputError, match="the directory passage_model with the passage encoder"):
        import_hf(source, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()
