"""The object that MTEB takes: lists and batches, and the checkpoint's prompts."""

import enum

import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.evaluate.retrieval import encoder
from t5x_lite.inference.text_encoder import TextEncoder
from tests.encoder_checkpoint import write_checkpoint


class Kind(enum.Enum):
    QUERY = "query"


@pytest.fixture(scope="module")
def model(tmp_path_factory, compile_once):
    path = write_checkpoint(tmp_path_factory.mktemp("encoder"), "bert")
    return encoder(str(path), pooling="mean", normalize=True, batch_size=2)


def test_lists_and_batches(model):
    found = model.encode(["a b", "c", "b"])
    assert found.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    batches = [{"text": ["a b", "c"]}, {"text": "b"}]
    other = model.encode(batches, task_metadata=None, prompt_type=Kind.QUERY, hf_split="test")
    np.testing.assert_array_equal(other, found)
    np.testing.assert_array_equal(model.encode(["c"], prompt_name="no such"), found[1:2])
    np.testing.assert_array_equal(model.encode(sentences=["c"], batch_size=1), found[1:2])


class Metadata:
    name = "NFCorpus"


@pytest.mark.parametrize(
    ("options", "used"),
    [
        ({"prompt_type": Kind.QUERY}, "query"),
        ({"prompt_type": "document"}, "passage"),
        ({"prompt_type": Kind.QUERY, "prompt_name": "NFCorpus"}, "query"),  # as MTEB 1 calls it
        ({"prompt_type": Kind.QUERY, "task_metadata": Metadata}, "query"),
        ({"prompt_type": "document", "prompt_name": "other"}, "other"),
        ({"prompt_type": "query", "task_name": "T"}, "T-query"),
        ({"task_name": "U", "prompt_type": "query"}, "U"),
        ({}, None),
    ],
)
def test_prompts(model, monkeypatch, options, used):
    prompts = {"query", "passage", "other", "T-query", "T", "U"}
    seen = []
    known = lambda self, name: name if name in prompts else None  # noqa: E731
    monkeypatch.setattr(TextEncoder, "known_prompt", known)
    monkeypatch.setattr(TextEncoder, "begins_with", lambda self, _, name: seen.append(name) or "")
    model.encode(["a"], **options)
    assert seen == [used]


def test_similarities(model):
    one, other = np.float32([[1, 2], [3, 4]]), np.float32([[5, 6], [7, 8]])
    np.testing.assert_array_equal(np.asarray(model.similarity(one, other)), [[17, 23], [39, 53]])
    np.testing.assert_array_equal(np.asarray(model.similarity(one[0], other[0])), [[17]])
    np.testing.assert_array_equal(np.asarray(model.similarity_pairwise(one, other)), [17, 53])
    with pytest.raises(InputError, match=r"equal shape, but got \(2, 2\) and \(1, 2\)"):
        model.similarity_pairwise(one, other[:1])


def test_a_name_without_an_organization(tmp_path):
    with pytest.raises(InputError, match="organization/model"):
        encoder(str(tmp_path), name="plain")


@pytest.mark.slow
def test_the_installed_mteb(tmp_path, model):
    """MTEB 2 by its own tasks on texts that it ships; its classes of metadata and of protocols."""
    mteb = pytest.importorskip("mteb", minversion="2")
    from mteb.mocks import mock_tasks
    from mteb.models.models_protocols import EncoderProtocol

    assert isinstance(model, EncoderProtocol)
    meta = model.mteb_model_meta
    assert (meta.name, meta.embed_dim, meta.similarity_fn_name) == ("t5x_lite/bert", 12, "cosine")
    for task in ("MockRetrievalTask", "MockSTSTask", "MockBitextMiningTask"):
        tasks = [getattr(mock_tasks, task)()]
        result = mteb.evaluate(model, tasks, cache=mteb.ResultCache(tmp_path))
        scores = result[0].scores["test"][0]
        assert 0 <= abs(scores["main_score"]) <= 1, task
    again = encoder(str(model._encoder.loaded.directory), pooling="cls", name="own/name")
    assert again.mteb_model_meta.name == "own/name"
    assert again.mteb_model_meta.revision != meta.revision


@pytest.mark.parametrize(
    ("sentences", "message"),
    [
        ([3], "a text must be a string, but got int"),
        ([{"image": 1}], "a batch must have the key"),
        ("text", r"encode\(\) requires a list of texts or batches, but got str"),
        ({"text": ["a"]}, r"encode\(\) requires a list of texts or batches, but got dict"),
        (None, r"encode\(\) requires texts or batches of texts as inputs, but got None"),
    ],
)
def test_what_is_no_text(model, sentences, message):
    with pytest.raises(InputError, match=message):
        model.encode(sentences)
