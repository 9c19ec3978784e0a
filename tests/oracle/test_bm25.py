"""BM25's scores beside those of bm25s with Lucene's formula."""

import json
import random

import numpy as np
import pytest

from t5x_lite.retrieval.bm25 import BM25, InvertedIndex, build

bm25s = pytest.importorskip("bm25s")
pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("k1", "b"), [(0.9, 0.4), (1.5, 0.75)])
def test_scores_of_all_documents(tmp_path, seed, k1, b):
    rng = random.Random(seed)
    vocabulary = [f"w{i}" for i in range(200)]
    weights = [1 / (i + 1) for i in range(200)]
    texts = [" ".join(rng.choices(vocabulary, weights, k=rng.randint(1, 80))) for _ in range(300)]
    other = bm25s.BM25(method="lucene", k1=k1, b=b, dtype="float64")
    other.index([text.split() for text in texts], show_progress=False)
    named = [(str(i), text) for i, text in enumerate(texts)]
    named.insert(150, ("empty", " "))  # which counts neither in N nor in the mean length
    build(str(tmp_path / "index"), named, analyzer="whitespace", identity=json.loads("{}"))
    ours = BM25(InvertedIndex.open(tmp_path / "index"), k1=k1, b=b)
    for _ in range(20):
        query = rng.choices(vocabulary, k=rng.randint(1, 6))
        expected = other.get_scores(query)
        found = np.zeros(len(texts))
        for name, score in ours.search(" ".join(query), depth=300):
            found[int(name)] = score
        np.testing.assert_allclose(found, expected, atol=1e-5)
