"""From texts to runs by three heads: embed, hybrid."""

import json

import numpy as np
import pytest

from t5x_lite.commands.answers import embed
from t5x_lite.commands.ranking import hybrid
from t5x_lite.config.evaluation import NAMES
from t5x_lite.core.errors import InputError
from t5x_lite.core.options import OptionError
from t5x_lite.data.formats.rankings import read_run
from t5x_lite.data.formats.vectors import M3Texts, dequantized, quantized
from t5x_lite.layouts import Groups
from t5x_lite.objectives.m3 import m3
from tests.encoder_checkpoint import write_ranker

DOCUMENTS = ["a b c", "d e f", "a d g h i", "j k l m n o a b", "b"]
HEADS = ("dense", "lexical", "multi_vector")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, compile_once):
    objective = m3(specials=(0, 1, 2, 3), vector_size=4)
    return str(
        write_ranker(
            tmp_path_factory.mktemp("m3"), objective=objective, layout=Groups(), targets_length=12
        )
    )


@pytest.fixture(scope="module")
def embedded(checkpoint, tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    for name, texts in (("corpus", DOCUMENTS), ("queries", ["a b", "d1", "h i"])):
        lines = [json.dumps({"_id": f"{name[0]}{i}", "text": t}) for i, t in enumerate(texts)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
        options = {"input": str(folder / f"{name}.jsonl"), "output": str(folder / name)}
        embed(checkpoint, **options, heads=HEADS, batch_size=4, vector_numbers="float32")
    return folder


def test_runs_by_each_head_and_by_all(embedded, tmp_path):
    made = hybrid(
        str(embedded / "corpus"),
        queries=str(embedded / "queries"),
        output=str(tmp_path / "runs"),
        depth=4,
        rerank=3,
    )
    assert sorted(path.stem for path in made.iterdir()) == sorted(NAMES)
    runs = {name: list(read_run(str(made / f"{name}.trec"))) for name in NAMES}
    for rankings in runs.values():
        assert [ranking.query for ranking in rankings] == ["q0", "q1", "q2"]
        assert all(len(ranking.documents) == 4 for ranking in rankings)
    corpus, queries = M3Texts(embedded / "corpus"), M3Texts(embedded / "queries")
    scores = corpus.dense @ queries.dense[0]
    first = runs["dense"][0].documents[0]
    assert first.document == f"c{int(np.argmax(scores))}"
    assert first.score == pytest.approx(float(np.max(scores)), rel=1e-6)


def test_dense_vectors_in_int8(embedded, checkpoint, tmp_path):
    """Queries take the ranges of the corpus, and dense scores are those of the rounded vectors."""
    options = {"heads": HEADS, "batch_size": 4, "vector_numbers": "float32", "precision": "int8"}
    corpus, ranges = tmp_path / "corpus", str(tmp_path / "corpus" / "dense.npy")
    embed(checkpoint, input=str(embedded / "corpus.jsonl"), output=str(corpus), **options)
    queries = {"input": str(embedded / "queries.jsonl"), "output": str(tmp_path / "queries")}
    embed(checkpoint, **queries, **options, ranges=ranges)
    full = [np.load(embedded / name / "dense.npy") for name in ("corpus", "queries")]
    limits = np.load(f"{ranges}.ranges")
    np.testing.assert_array_equal(limits, [full[0].min(axis=0), full[0].max(axis=0)])
    names = ("dense.npy", "dense.npy.ranges", "ids.txt", "lexical.jsonl", "multi_vector.npy")
    assert sorted(p.name for p in corpus.iterdir()) == [*names, "multi_vector_ends.npy"]
    for one, name in zip(full, ("corpus", "queries"), strict=True):
        codes = np.load(tmp_path / name / "dense.npy")
        np.testing.assert_array_equal(codes, quantized(one, limits))
        np.testing.assert_array_equal(M3Texts(tmp_path / name).dense, dequantized(codes, limits))
    made = hybrid(str(corpus), queries=str(tmp_path / "queries"), output=str(tmp_path / "runs"))
    dense = list(read_run(str(made / "dense.trec")))
    scores = M3Texts(corpus).dense @ M3Texts(tmp_path / "queries").dense[0]
    assert dense[0].documents[0].score == pytest.approx(float(scores.max()), rel=1e-5)


def test_the_same_ids_and_what_is_missing(embedded, checkpoint, tmp_path):
    options = {"queries": str(embedded / "corpus"), "ways": ("dense",)}
    made = hybrid(str(embedded / "corpus"), output=str(tmp_path / "r"), same_ids="drop", **options)
    for ranking in read_run(str(made / "dense.trec")):
        assert ranking.query not in [one.document for one in ranking.documents]
    with pytest.raises(InputError, match="exists and is not empty"):
        hybrid(str(embedded / "corpus"), output=str(tmp_path / "r"), **options)
    with pytest.raises(InputError, match=r"has no ids\.txt"):
        hybrid(str(tmp_path), output=str(tmp_path / "s"), **options)
    inputs = str(embedded / "corpus.jsonl")
    with pytest.raises(
        InputError,
        match=r"has no head 'mlm' \(its heads: dense, lexical, multi_vector",
    ):
        embed(checkpoint, input=inputs, output=str(tmp_path / "t"), heads=("dense", "mlm"))
    with pytest.raises(InputError, match="--bag-top and --role passage cannot be combined"):
        embed(checkpoint, input=inputs, output=str(tmp_path / "t"), heads=HEADS, bag_top=3)
    assert not (tmp_path / "t").exists()


@pytest.mark.slow
def test_long_texts_with_several_cls(embedded, checkpoint, tmp_path):
    inputs = str(embedded / "corpus.jsonl")
    embed(checkpoint, input=inputs, output=str(tmp_path / "p.npy"), batch_size=4)
    embed(checkpoint, input=inputs, output=str(tmp_path / "m.npy"), batch_size=4, mcls=3)
    plain, several = np.load(tmp_path / "p.npy"), np.load(tmp_path / "m.npy")
    changed = np.max(np.abs(plain - several), axis=1)
    assert (changed[[2, 3]] > 1e-3).all()
    assert (changed[[0, 1, 4]] < 1e-6).all()


def test_ways_that_cannot_be(tmp_path):
    for ways, message in (
        ((), "--ways requires at least one"),
        (("sparse",), "ways must be among"),
    ):
        with pytest.raises((InputError, OptionError), match=message):
            hybrid("c", queries="q", output=str(tmp_path / "r"), ways=ways)
