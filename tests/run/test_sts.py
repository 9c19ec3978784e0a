"""evaluate-sts: coefficients of hand-made pairs, and what is no file of pairs."""

import json

import numpy as np
import pytest

from t5x_lite.errors import InputError
from t5x_lite.inference.queries import QueryEncoder
from t5x_lite.run.sts import Pair, Triplet, evaluate_sts, read_pairs
from t5x_lite.run.text_encoder import TextEncoder
from tests.encoder_checkpoint import write_checkpoint

HEAD = "index\tsentence1\tsentence2\tscore\n"


def written(path, text):
    path.write_text(text)
    return str(path)


def test_pairs_of_both_forms(tmp_path):
    expected = [Pair("a b", "c", 2.5), Pair("d", "d", 5.0)]
    table = written(tmp_path / "dev.tsv", HEAD + "0\ta b\tc\t2.500\n1\td\td\t5\n")
    rows = [{"sentence1": a, "sentence2": b, "score": s} for a, b, s in expected]
    objects = written(tmp_path / "dev.jsonl", "\n".join(map(json.dumps, rows)))
    assert read_pairs(table) == read_pairs(objects) == expected


def test_triplets_of_both_forms(tmp_path):
    expected = [Triplet("a, b", "c", 'the "d"'), Triplet("e", "f", "g")]
    head = "Sentence1,Sentence2,Sentence3,Title1\n"
    table = written(tmp_path / "test.csv", head + '"a, b",c,"the ""d""",t\ne,f,g,t\n')
    objects = written(
        tmp_path / "test.jsonl", "\n".join(json.dumps(one._asdict()) for one in expected)
    )
    assert read_pairs(table) == read_pairs(objects) == expected


@pytest.mark.slow
def test_accuracy_of_triplets(tmp_path, compile_once):
    checkpoint = str(write_checkpoint(tmp_path, "bert"))
    # A sentence is nearest to itself: two of the three are right.
    rows = [("a b c", "a b c", "n o"), ("d e", "d e", "f"), ("g", "h i j", "g")]
    head = "Sentence1,Sentence2,Sentence3\n"
    path = written(tmp_path / "test.csv", head + "\n".join(map(",".join, rows)))
    encoder = QueryEncoder(checkpoint, pooling="mean", batch_size=2)
    result = evaluate_sts([path], encoder=encoder)
    assert result[path] == {"triplets": 3, "accuracy": pytest.approx(2 / 3)}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "Sentence1,Sentence2\na,b\n", "Sentence3"),
        ("a.csv", "Sentence1,Sentence2,Sentence3\n", "no pair"),
        ("a.csv", "Sentence1,Sentence2,Sentence3\na,,b\n", "Sentence2 must be a sentence, got"),
        ("a.jsonl", '{"anchor": "a", "positive": "b"}', r'a\.jsonl:1: must have "negative"'),
    ],
)
def test_triplets_that_are_wrong(tmp_path, name, text, message):
    with pytest.raises(InputError, match=message):
        read_pairs(written(tmp_path / name, text))


@pytest.mark.slow
def test_coefficients(tmp_path, compile_once):
    checkpoint = str(write_checkpoint(tmp_path, "bert"))
    pairs = [("a b c", "a b c"), ("a b", "n o"), ("d e", "d f"), ("g", "h i j")]
    loaded = TextEncoder.load(checkpoint, pooling="mean", normalize=True)
    rows = loaded.rows([text for pair in pairs for text in pair]).rows
    vectors = loaded.embedder(batch_size=2).run(loaded.params, rows)
    cosines = np.sum(vectors[::2] * vectors[1::2], axis=1)
    lines = [f"0\t{a}\t{b}\t{c * 3 + 1}" for (a, b), c in zip(pairs, cosines, strict=True)]
    path = written(tmp_path / "dev.tsv", HEAD + "\n".join(lines))
    encoder = QueryEncoder(checkpoint, pooling="mean", batch_size=2)
    result = evaluate_sts([path], encoder=encoder, output=str(tmp_path / "out.json"))
    assert result[path] == {
        "pairs": 4,
        "spearman": pytest.approx(1.0),
        "pearson": pytest.approx(1.0, abs=1e-4),
    }
    assert json.loads((tmp_path / "out.json").read_text()) == result


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sentence1\tsentence2\n", r"dev.tsv:1: must name the columns .*: no score"),
        (HEAD, "no pair"),
        (HEAD + "0\ta\tb\n", r"dev.tsv:2: has 3 columns, and line 1 4"),
        (HEAD + "0\ta\tb\tx\n", r"dev.tsv:2: the score must be a number, got 'x'"),
        (HEAD + "0\ta\tb\tnan\n", r"dev.tsv:2: the score must be a number"),
    ],
)
def test_what_is_wrong(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        read_pairs(written(tmp_path / "dev.tsv", text))
