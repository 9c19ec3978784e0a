"""What `pairs` reads: aligned files, tables, what c4 writes, patterns; documents without a pair."""

import gzip
import json

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.retrieval.pair_documents import PairReader


def pairs_of(*inputs, **options):
    reader = PairReader([str(path) for path in inputs], **options)
    return [(raw.query, raw.passage) for _, raws in reader for raw in raws]


def test_a_moses_pair_that_is_compressed(tmp_path):
    for name, text in (("X.de-en.de.gz", "eins zwei\n"), ("X.de-en.en.gz", "one two\r\n")):
        (tmp_path / name).write_bytes(gzip.compress(text.encode()))
    inputs = [tmp_path / "X.de-en.de.gz", tmp_path / "X.de-en.en.gz"]
    found = pairs_of(*inputs, rule="parallel", languages=["de", "en"])
    assert found == [("eins zwei", "one two"), ("one two", "eins zwei")]


def test_documents_of_tables_and_of_c4(tmp_path):
    """Parquet, what `t5x-lite c4` writes, and a pattern; a template names the column."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    titles = [f"Title number {i}" for i in range(5)]
    bodies = [f"some words of body {i} here" for i in range(5)]
    table = pa.table({"title": titles, "text": bodies, "n": [*range(5)]})
    pq.write_table(table, tmp_path / "a.parquet")
    pq.write_table(table.rename_columns(["title", "story", "n"]), tmp_path / "b.parquet")
    c4 = tmp_path / "c4"
    c4.mkdir()
    records = [{"title": t, "text": b} for t, b in zip(titles, bodies, strict=True)]
    content = gzip.compress("\n".join(map(json.dumps, records)).encode())
    (c4 / "c4-train.00000-of-00001.json.gz").write_bytes(content)
    found = [
        pairs_of(place, rule="title_body", **more)
        for place, more in (
            (tmp_path / "a.parquet", {}),
            (tmp_path / "a.*", {}),
            (c4, {}),
            (tmp_path / "b.parquet", {"template": "{story}"}),
        )
    ]
    assert found == [[*zip(titles, bodies, strict=True)]] * 4


def test_documents_without_a_pair_are_counted(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"title": "T", "text": "a b"}\n{"page": "c"}')
    reader = PairReader([str(path)], rule="title_body", languages=["en"])
    documents = [document for document, _ in reader]
    assert [document.where for document in documents] == [f"{path}:1", f"{path}:2"]
    assert documents[0].record == {"lang": "en", "title": "T", "text": "a b"}
    assert (reader.num, reader.empty, reader.damaged()) == (2, 1, 0)
    assert reader.fields().startswith("; the first document has the fields lang, title, text; set")
    assert [one[:2] for one in reader.files] == [[str(path), path.stat().st_size]]


def test_a_rule_that_is_none():
    with pytest.raises(InputError, match="unknown --rule 'x'; give one of title_body"):
        PairReader(["a.txt"], rule="x")
