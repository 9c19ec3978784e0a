"""Queries and passages of `mine`."""

import json

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.retrieval.refresh_search import digest, read_inputs


def write(path, *records):
    path.write_text("\n".join(map(json.dumps, records)))
    return str(path)


def test_passages_without_ids_stand_in_the_pool_once(tmp_path):
    path = write(
        tmp_path / "p.jsonl",
        {"query": "a", "pos": ["x", "y"], "neg": ["z"]},
        {"query": "A!", "pos": ["z"], "neg": ["x"]},
    )
    inputs = read_inputs(path)
    assert [inputs.pool.text(number) for number in range(len(inputs.pool))] == ["x", "y", "z"]
    assert [one.positives for one in inputs.asked] == [[0, 1], [2]]
    assert [one.id for one in inputs.asked] == ["0", "1"]
    assert inputs.answers_by_query() == {"a": frozenset({0, 1, 2})}
    assert inputs.digests_by_query() == {"a": frozenset(map(digest, "xyz"))}


def test_passages_of_other_files(tmp_path):
    pool = write(tmp_path / "c.jsonl", {"_id": "7", "title": "t", "text": "x"})
    path = write(tmp_path / "p.jsonl", {"query": "a", "pos": ["t x", "u"], "pos_ids": [7, 8]})
    inputs = read_inputs(path, passages=[pool])
    assert inputs.asked[0].positives == [0, None]
    assert inputs.digests_by_query()["a"] == {digest("t x"), digest("x"), digest("u")}


def test_wrong_lines(tmp_path):
    with pytest.raises(InputError, match=r'p.jsonl:1: "id" must be a string or an integer'):
        read_inputs(write(tmp_path / "p.jsonl", {"query": "a", "pos": ["x"], "id": [1]}))
    with pytest.raises(InputError, match=r'p.jsonl:1: "pos" must have a passage'):
        read_inputs(write(tmp_path / "p.jsonl", {"query": "a", "pos": []}))
    with pytest.raises(InputError, match="no query"):
        read_inputs(write(tmp_path / "p.jsonl"))
