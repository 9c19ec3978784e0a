"""int8 vectors beside those of sentence-transformers, and a search of both."""

import numpy as np
import pytest

from t5x_lite.data.formats.vectors import (
    VectorShards,
    dequantized,
    quantized,
    ranges_of,
    vector_writer,
)
from t5x_lite.retrieval.exact import search_shards

quantization = pytest.importorskip("sentence_transformers.util.quantization")
pytestmark = pytest.mark.oracle


@pytest.fixture
def vectors():
    rng = np.random.default_rng(0)
    found = rng.standard_normal((500, 24)).astype(np.float32) * np.geomspace(1e-3, 30, 24)
    found[:, 5] = 0.25
    return found.astype(np.float32)


def test_codes_and_ranges(tmp_path, vectors):
    with vector_writer(str(tmp_path / "a.npy"), precision="int8") as file:
        file.write([str(i) for i in range(200)], vectors[:200])
    expected = quantization.quantize_embeddings(vectors[:200], "int8")
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), expected)
    ranges = ranges_of(str(tmp_path / "a.npy"))
    for options in ({"ranges": ranges}, {"calibration_embeddings": vectors[:200]}):
        expected = quantization.quantize_embeddings(vectors[200:], "int8", **options)
        np.testing.assert_array_equal(quantized(vectors[200:], ranges), expected)
    assert (expected == 127).any()
    assert (expected == -128).any()
    theirs = quantization._dequantize_embeddings(expected, "int8", ranges)
    np.testing.assert_allclose(dequantized(expected, ranges), theirs, rtol=1e-5, atol=1e-5)


def test_a_search_with_rescoring(tmp_path, vectors):
    """Their search ranks all documents again by float queries, which ours does at once."""
    pytest.importorskip("faiss")
    corpus, queries = vectors[20:], vectors[:20] + np.float32(0.01)
    with vector_writer(str(tmp_path / "a.npy"), precision="int8") as file:
        file.write([str(i) for i in range(len(corpus))], corpus)
    shards = VectorShards.open([str(tmp_path / "a.npy")])
    found = search_shards(shards, queries, depth=10)
    theirs, _ = quantization.semantic_search_faiss(
        queries,
        corpus_embeddings=quantization.quantize_embeddings(corpus, "uint8"),
        corpus_precision="uint8",
        ranges=shards.ranges,
        rescore_multiplier=48,
    )
    rows = [[hit["corpus_id"] for hit in hits] for hits in theirs]
    scores = [[hit["score"] for hit in hits] for hits in theirs]
    np.testing.assert_allclose(found.scores, scores, rtol=1e-5)
    np.testing.assert_array_equal(found.rows, rows)
