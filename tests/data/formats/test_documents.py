"""Unlabelled documents without TensorFlow: kinds of files, templates, parts of tables."""

import gzip
import json
from pathlib import Path

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.formats.documents import (
    Files,
    Groups,
    as_template,
    is_named,
    kind_of,
    read_documents,
    read_fields,
)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.txt", "text"),
        ("a.txt.xz", "text"),
        ("notes", "text"),
        ("c4-af.tfrecord-00000-of-00064.json.gz", "json"),
        ("a.ndjson.zst", "json"),
        ("a.parquet", "table"),
        ("a.arrow", "table"),
        ("a.parquet.gz", "text"),
    ],
)
def test_kinds_by_name(name, kind):
    assert kind_of(Path(name)) == kind_of(name) == kind


def test_names_of_data_sets():
    assert is_named("hf://imdb")
    assert is_named("tfds://c4/en")
    assert not is_named("gs://bucket/c4")


def test_lines_blocks_and_objects(tmp_path):
    text = tmp_path / "a.txt"
    text.write_text("one\ntwo\n\n\nthree\n")
    assert [d.text for d in read_documents(text)] == ["one", "two", "", "", "three"]
    blocks = list(read_documents(text, blocks=True))
    assert [d.text for d in blocks] == ["one\ntwo", "three"]
    assert blocks[1].where == f"{text}:5"
    page = {"text": "a\nb", "url": "u"}
    objects = tmp_path / "a.json.gz"
    objects.write_bytes(gzip.compress(json.dumps(page).encode()))
    assert list(read_documents(objects)) == [(f"{objects}:1", "a\nb")]
    assert next(read_fields(objects)).fields == page
    with pytest.raises(
        InputError, match=r'a\.json\.gz:1: must have "body", a string, but has .*--text'
    ):
        list(read_documents(objects, template="body"))


def test_a_template_is_columns_in_braces_or_one_name():
    assert as_template("content") == "{content}"
    assert as_template("{title}: {content}") == "{title}: {content}"
    for wrong in ("", "{{}}"):
        with pytest.raises(InputError, match="names no column"):
            as_template(wrong)


def table_file(directory, kind):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    rows = pa.table({"n": [*range(300)], "text": [f"text {i}" for i in range(300)]})
    file = directory / f"a.{kind}"
    if kind == "parquet":
        pq.write_table(rows, file, row_group_size=140)
    else:
        with pa.ipc.new_file(file, rows.schema) as out:
            for start in range(0, 300, 140):
                out.write_table(rows.slice(start, 140))
    return file


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_parts_of_tables(tmp_path, kind):
    file = table_file(tmp_path, kind)
    groups = Groups(file)
    assert groups.num == 3
    expected = [f"text {i}".encode() for i in range(300)]
    assert list(groups.texts(None)) == expected
    assert [text for group in range(3) for text in groups.texts(group)] == expected
    # By blocks, from the front and by parts; any block again, whatever was read before it.
    files = Files([file])
    blocks = [files.read(0, number) for number in range(4)]
    assert [len(block.texts) if block else None for block in blocks] == [128, 128, 44, None]
    assert [text for block in blocks if block for text in block.texts] == expected
    assert files.num_parts == 3
    for read in (files, Files([file])):
        block = read.read_part(1, 1)
        assert block
        assert block.texts == expected[268:280]
    assert files.read_part(1, 2) is None
    with pytest.raises(InputError, match="has no column 'body', but only n, text; name the col"):
        list(Groups(file, "body").texts(2))
    with pytest.raises(InputError, match=r"row 281: column 'n' must be a string, got int"):
        list(Groups(file, "{n}").texts(2))


def test_a_null_is_named_by_its_row(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a", None]}), file)
    with pytest.raises(
        InputError, match=r"a\.parquet: row 2: column 'text' must be a string, got null"
    ):
        list(read_documents(file))
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), file)
    assert list(read_documents(file)) == []
    assert Files([file]).num_parts == 1
