"""Pairs of MIRACL's directories."""

import gzip
import json

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.formats.retrieval_sets import miracl_splits, read_miracl_pairs


def write(root, language, *, split="train", topics, qrels, passages):
    folder = root / f"miracl-v1.0-{language}"
    for kind, content in (("topics", topics), ("qrels", qrels)):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        name = f"{kind}.miracl-v1.0-{language}-{split}.tsv"
        (folder / kind / name).write_text(content, encoding="utf-8")
    corpus = root / f"miracl-corpus-v1.0-{language}"
    corpus.mkdir(exist_ok=True)
    for number, (docid, title, text) in enumerate(passages):
        line = json.dumps({"docid": docid, "title": title, "text": text})
        (corpus / f"docs-{number}.jsonl.gz").write_bytes(gzip.compress(line.encode()))


PASSAGES = [("7#0", "Emma", "By Austen."), ("7#1", "Emma", "In 1815."), ("9#0", "", "Else.")]


def test_what_was_judged_not_to_answer_is_negative(tmp_path):
    write(
        tmp_path,
        "sw",
        topics="1\tnani aliandika\n2\tlini\n3\thakuna\n",
        qrels="1\tQ0\t7#0\t1\n1 Q0 9#0 0\n2\tQ0\t7#1\t1\n3\tQ0\t9#0\t0\n",
        passages=PASSAGES,
    )
    # The ids of one language are not those of another.
    write(
        tmp_path,
        "de",
        topics="1\twer\n",
        qrels="1\tQ0\t7#0\t1\n",
        passages=[("7#0", "Emma", "Von Austen.")],
    )
    write(tmp_path, "th", split="dev", topics="1\ta\n", qrels="1\tQ0\tx\t1\n", passages=[])
    assert miracl_splits(str(tmp_path)) == ("train",)
    found = read_miracl_pairs(str(tmp_path), "train")
    assert [(one.query, list(one.positives), list(one.negatives)) for one in found] == [
        ("wer", ["Emma Von Austen."], []),
        ("nani aliandika", ["Emma By Austen."], ["Else."]),
        ("lini", ["Emma In 1815."], []),
    ]


def test_a_passage_that_is_not_there(tmp_path):
    write(tmp_path, "sw", topics="1\ta\n", qrels="1\tQ0\tx\t1\n", passages=PASSAGES)
    with pytest.raises(
        InputError, match=r"sw-train\.tsv: the passage collection lacks 1 judged passages, .*'x'"
    ):
        read_miracl_pairs(str(tmp_path), "train")


def test_a_directory_without_them(tmp_path):
    write(tmp_path, "th", split="dev", topics="1\ta\n", qrels="1\tQ0\tx\t1\n", passages=PASSAGES)
    for directory in ("", str(tmp_path), str(tmp_path / "none")):
        with pytest.raises(InputError, match="has no language of MIRACL to train on"):
            miracl_splits(directory)
