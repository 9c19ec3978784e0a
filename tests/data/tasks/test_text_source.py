import gzip
import json
import lzma
import sys
import types

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data import elements
from t5x_lite.data.formats import tables
from t5x_lite.data.preprocessors import Columns
from t5x_lite.data.tasks.text_source import (
    Shuffle,
    document_source,
    json_objects,
    text_documents,
    text_lines,
    texts_of,
)


def texts(dataset):
    return [example["text"].decode() for example in dataset.as_numpy_iterator()]


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_text_lines_skips_blank_lines_and_strips_the_others(stages, tmp_path):
    file = write(tmp_path / "a.txt", "one\n\n  two \r\n \nthree é")
    assert texts(text_lines([file])) == ["one", "two", "three é"]


def test_text_lines_reads_files_in_turn_by_128_lines(stages, tmp_path):
    a = write(tmp_path / "a.txt", "\n".join(f"a{i}" for i in range(130)))
    b = write(tmp_path / "b.txt", "\n".join(f"b{i}" for i in range(2)))
    found = texts(text_lines([a, b]))
    assert found[:128] == [f"a{i}" for i in range(128)]
    assert found[128:] == ["b0", "b1", "a128", "a129"]


def test_text_lines_keeps_the_lines_that_are_wanted(stages, tmp_path):
    file = write(tmp_path / "a.txt", "0\n1\n2\n3\n4")
    assert texts(text_lines([file], keep=lambda texts: (texts == "1") | (texts == "3"))) == [
        "1",
        "3",
    ]


def test_text_lines_reads_the_text_field_of_json_lines(stages, tmp_path):
    a = write(tmp_path / "a.jsonl", '{"text": "one\\ntwo", "url": "x"}\n\n{"text": "é"}\n')
    b = write(tmp_path / "b.txt", '{"text": "as it stands"}\n')
    assert texts(text_lines([a, b])) == ["one\ntwo", "é", '{"text": "as it stands"}']


def test_text_lines_reads_files_of_gzip(stages, tf, tmp_path):
    a = write(tmp_path / "a.txt.gz", gzip.compress("one\n\ntwo é\n".encode()))
    b = write(tmp_path / "c4-train.00000-of-00001.json.gz", gzip.compress(b'{"text": "three"}\n'))
    c = write(tmp_path / "c.txt", "four")
    assert texts(text_lines([a, str(b), c])) == ["one", "two é", "three", "four"]
    b.write_bytes(b.read_bytes()[:20])
    with pytest.raises(tf.errors.OpError) as caught:
        texts(text_lines([b]))
    assert isinstance(elements.input_error(caught.value), InputError)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"good\n\ncaf\xe9 bad\n", "a.txt:3: not UTF-8"),
        ("a.txt", b"good\n" * 200 + b"\xff\n", "a.txt:201: not UTF-8"),
        (
            "a.jsonl",
            b'{"text": "good"}\n\n{"text": \n',
            "a.jsonl:3: not JSON (Expecting value at column 9)",
        ),
        ("a.jsonl", b"[" * 100_000, "a.jsonl:1: not JSON that can be read (maximum recursion"),
        ("a.jsonl", b'{"txt": "x"}\n', "a.jsonl:1: must have \"text\"; it has ['txt']"),
        ("a.jsonl", b"{}\n", 'a.jsonl:1: must have "text"; it has nothing'),
        ("a.jsonl", b"[1]\n", "a.jsonl:1: must be a JSON object, got list"),
        ("a.jsonl", b'{"text": 7}\n', 'a.jsonl:1: "text" must be a string, got int'),
    ],
)
def test_a_bad_line_is_named(stages, tf, tmp_path, name, content, message):
    file = write(tmp_path / name, content)
    with pytest.raises(tf.errors.OpError) as caught:
        texts(text_lines([file]))
    error = elements.input_error(caught.value)
    assert isinstance(error, InputError)
    assert message in str(error)
    assert "\n" not in str(error)


def test_a_byte_order_mark_is_no_part_of_the_text(stages, tmp_path):
    mark = "\ufeff"
    a = write(tmp_path / "a.txt", f"{mark}one\n{mark}two, whose mark is not at the start\n")
    b = write(tmp_path / "b.jsonl", f'{mark}{{"text": "three"}}\n')
    assert texts(text_lines([a, b])) == [
        "one",
        f"{mark}two, whose mark is not at the start",
        "three",
    ]


def test_a_file_that_cannot_be_read_is_the_users_and_a_wrong_shape_is_not(stages, tf, tmp_path):
    file = write(tmp_path / "a.txt", "one")
    dataset = text_lines([file])
    file.unlink()
    with pytest.raises(InputError, match=r"cannot read .*a\.txt: No such file or directory"):
        text_lines([file])
    with pytest.raises(tf.errors.OpError) as caught:
        texts(dataset)
    error = elements.input_error(caught.value)
    assert isinstance(error, InputError)
    assert "a.txt" in str(error)
    ours = tf.errors.InvalidArgumentError(None, None, "shapes do not match")
    assert elements.input_error(ours) is ours


def test_text_documents_are_what_blank_lines_divide(stages, tmp_path):
    a = write(tmp_path / "a.txt", "\ufeff\n one \r\ntwo\n\n\n \t\nthree\n")
    b = write(tmp_path / "b.txt", "")
    c = write(tmp_path / "c.txt", "four\n\nfive")
    assert texts(text_documents([a, b, c])) == ["one\ntwo", "four", "three", "five"]


def test_text_documents_may_be_longer_than_a_block_of_lines(stages, tmp_path):
    documents = ["\n".join(f"{n}.{i}" for i in range(size)) for n, size in enumerate(SIZES)]
    file = write(tmp_path / "a.txt", "\n\n".join(documents))
    assert texts(text_documents([file])) == documents
    chosen = texts(text_documents([file], keep=lambda texts: texts == documents[3]))
    assert chosen == [documents[3]]


SIZES = (127, 1, 128, 300, 126, 2, 127)


def test_text_documents_takes_the_objects_of_json_lines_as_they_are(stages, tmp_path):
    a = write(tmp_path / "a.jsonl", '{"text": "one\\n\\ntwo"}\n')
    b = write(tmp_path / "b.txt", "three\n\nfour")
    assert texts(text_documents([a, b])) == ["three", "four", "one\n\ntwo"]
    assert texts(text_documents([a])) == ["one\n\ntwo"]


def test_text_documents_names_a_line_that_is_not_utf8(stages, tf, tmp_path):
    file = write(tmp_path / "a.txt", b"one\n\ncaf\xe9\n")
    with pytest.raises(tf.errors.OpError) as caught:
        texts(text_documents([file]))
    assert str(elements.input_error(caught.value)) == (f"{file}:3: not UTF-8: convert it to UTF-8")
    with pytest.raises(InputError, match="cannot read"):
        text_documents([tmp_path / "missing.txt"])


def test_json_objects_are_what_is_made_of_them(stages, tf, tmp_path):
    file = write(tmp_path / "a.jsonl", '{"n": 1}\n\n{"n": 20}\n[]\n')
    found = json_objects(
        [file],
        lambda record, where: f"{record['n']} at {where.rpartition('/')[2]}",
        keep=lambda lines: tf.strings.length(lines) > 2,
    )
    assert texts(found) == ["1 at a.jsonl:1", "20 at a.jsonl:3"]
    with pytest.raises(tf.errors.OpError) as caught:
        texts(json_objects([file], lambda record, where: ""))
    assert str(elements.input_error(caught.value)) == f"{file}:4: must be a JSON object, got list"


# Unlabelled documents of every kind: `document_source`, one for all tasks and commands.

DOCUMENTS = [f"Document number {i} is here.\nSecond line of it, {i}." for i in range(300)]


def json_lines(texts, **fields):
    return "\n".join(json.dumps({"text": text, "url": "u", **fields}) for text in texts).encode()


def table(texts, **columns):
    pa = pytest.importorskip("pyarrow")
    return pa.table({"url": ["u"] * len(texts), "text": texts, **columns})


def write_parquet(path, texts, group=64):
    import pyarrow.parquet as pq

    pq.write_table(table(texts), path, row_group_size=group)


def write_arrow(path, texts, group=64):
    found = table(texts)
    import pyarrow as pa

    with pa.ipc.new_file(path, found.schema) as file:
        for start in range(0, len(texts), group):
            file.write_table(found.slice(start, group))


def write_stream(path, texts):
    found = table(texts)
    import pyarrow as pa

    with pa.ipc.new_stream(path, found.schema) as file:
        file.write_table(found, 50)


def _zst(content):
    return pytest.importorskip("zstandard").compress(content)


def write_c4(directory, texts):
    for number in range(2):
        name = f"c4-train.{number:05}-of-00002.json.gz"
        write(directory / name, gzip.compress(json_lines(texts[number::2], timestamp="t")))
    write(directory / "c4-validation.00000-of-00001.json.gz", gzip.compress(json_lines(["held"])))
    write(directory / "manifest.json", "{}")
    write(directory / "stats.json", "[]")


KINDS = {
    "txt.gz": lambda d, t: write(d / "a.txt.gz", gzip.compress("\n".join(t).encode())),
    "txt.xz": lambda d, t: write(d / "a.txt.xz", lzma.compress("\n".join(t).encode())),
    "jsonl": lambda d, t: write(d / "a.jsonl", json_lines(t)),
    "jsonl.zst": lambda d, t: write(d / "a.jsonl.zst", _zst(json_lines(t))),
    "json": lambda d, t: write(d / "a.json", json_lines(t)),
    "json.xz": lambda d, t: write(d / "a.json.xz", lzma.compress(json_lines(t))),
    "c4": write_c4,
    "parquet": lambda d, t: write_parquet(d / "a.parquet", t),
    "parquet below data": lambda d, t: (
        (d / "data").mkdir(),
        write_parquet(d / "data/train-00000-of-00001.parquet", t),
        write_parquet(d / "data/test-00000-of-00001.parquet", ["never"]),
    ),
    "arrow": lambda d, t: write_arrow(d / "a.arrow", t),
    "arrow stream": lambda d, t: write_stream(d / "a.arrow", t),
}


@pytest.mark.parametrize("kind", KINDS)
def test_documents_of_every_kind(stages, tf, tmp_path, kind):
    lines = [text.replace("\n", " ") for text in DOCUMENTS]
    documents = lines if kind.startswith("txt") else DOCUMENTS
    KINDS[kind](tmp_path, documents)
    source = document_source(str(tmp_path))
    train, held_out = (texts(source.get_dataset(s, shuffle=False)) for s in ("train", "validation"))
    if kind == "c4":
        assert held_out == ["held"]
        held_out = []
    else:
        assert len(held_out) < 15
    assert sorted(train + held_out) == sorted(documents)
    # Shuffled, the same documents in another order, which the seed and the epoch alone decide.
    passes = [
        texts(source._shuffled("train", source._files_of("train"), shuffle=Shuffle(0, epoch)))
        for epoch in (tf.constant(0, tf.int64), tf.constant(0, tf.int64), tf.constant(1, tf.int64))
    ]
    assert sorted(passes[0]) == sorted(train)
    assert passes[0] == passes[1]
    if kind in ("parquet", "parquet below data", "arrow"):  # the others are one part
        assert passes[0] != passes[2]
    assert sorted(texts_of(str(tmp_path))) == sorted(train + held_out)


def test_a_file_a_pattern_and_named_files(stages, tmp_path):
    write_parquet_files(tmp_path)
    both = sorted(["a 0", "a 1", "b 0", "b 1"])
    for place in (str(tmp_path / "*.parquet"), str(tmp_path / "a.parquet")):
        source = document_source(place)
        found = [
            text
            for split in source.splits
            for text in texts(source.get_dataset(split, shuffle=False))
        ]
        assert sorted(found) == (both if "*" in place else both[:2])
    columns = Columns(train=("a.parquet",), validation=("b.*",))
    source = document_source(str(tmp_path), columns=columns)
    assert texts(source.get_dataset("validation", shuffle=False)) == ["b 0", "b 1"]


def write_parquet_files(directory):
    for name in "ab":
        write_parquet(directory / f"{name}.parquet", [f"{name} {i}" for i in range(2)])


def test_a_template_names_other_columns(stages, tmp_path):
    write_parquet(tmp_path / "a.parquet", ["one", "two"])
    (tmp_path / "json").mkdir()
    write(tmp_path / "json" / "a.jsonl", '{"title": "T", "body": "words"}\n')
    columns = Columns(inputs="{url}: {text}")
    source = document_source(str(tmp_path), columns=columns)
    assert texts(source.get_dataset("train", shuffle=False)) == ["u: one", "u: two"]
    source = document_source(str(tmp_path / "json"), columns=Columns(inputs="{title}. {body}"))
    assert texts(source.get_dataset("train", shuffle=False)) == ["T. words"]
    assert list(texts_of(str(tmp_path / "json"), template="{body}")) == ["words"]


def cut_gzip(directory):
    write(directory / "a.json.gz", gzip.compress(json_lines(DOCUMENTS))[:-100])


def two_schemas(directory):
    import pyarrow.parquet as pq

    write_parquet(directory / "a.parquet", ["one"])
    pq.write_table(table(["x"]).rename_columns(["url", "content"]), directory / "b.parquet")


def numbers(directory):
    import pyarrow.parquet as pq

    pa = pytest.importorskip("pyarrow")
    pq.write_table(pa.table({"text": [1, 2]}), directory / "a.parquet")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (cut_gzip, r"a\.json\.gz: the file is truncated"),
        (two_schemas, r"b\.parquet has no column 'text', but only url, content; name the"),
        (numbers, r"a\.parquet: row 1: column 'text' must be a string, got int"),
        (
            lambda d: write(d / "a.parquet", b""),
            r"a\.parquet: damaged, or not in Parquet format despite its suffix",
        ),
        (
            lambda d: write(d / "a.arrow", b"not"),
            r"a\.arrow: damaged, or not in Arrow format despite its suffix",
        ),
        (lambda d: write(d / "a.json", "[\n{}\n]"), r"a\.json:1: not JSON"),
        (lambda d: write(d / "a.json", '{"body": "x"}'), r"a\.json:1: must have \"text\""),
    ],
)
def test_documents_that_cannot_be_read(stages, tmp_path, make, message):
    make(tmp_path)
    with pytest.raises(InputError, match=message):
        list(elements.as_numpy(document_source(str(tmp_path)).get_dataset("train", shuffle=False)))
    with pytest.raises(InputError, match=r"a\.|b\."):
        list(texts_of(str(tmp_path)))


@pytest.mark.parametrize("place", ["hf://own/pages", "hf://own/pages:train", "tfds://no_such_data"])
def test_data_sets_that_are_not_there(stages, monkeypatch, place):
    monkeypatch.setattr(tables, "_hub", {})
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        InputError, match=r"datasets, which is not installed|TFDS has no no_such_da"
    ):
        document_source(place)


class Hub:
    """A data set as the package `datasets` gives it, in memory."""

    def __init__(self, rows):
        self.rows, self.column_names = rows, rows.column_names

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, at):
        return self.rows[at]

    def select_columns(self, names):
        return Hub(self.rows.select(names))

    def with_format(self, name):
        assert name == "arrow"
        return self


@pytest.fixture
def hub(monkeypatch):
    """hf://own/pages with the configuration en and its splits train and extra."""
    many = [f"page {i}" for i in range(2500)]
    splits = {"train": Hub(table(many)), "extra": Hub(table(["one more"]))}

    def load_dataset(name, config):
        if (name, config) != ("own/pages", "en"):
            raise ConnectionError("no network")
        return splits

    fake = types.ModuleType("datasets")
    fake.load_dataset = load_dataset  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setattr(tables, "_hub", {})
    monkeypatch.setitem(sys.modules, "datasets", fake)
    return many


def test_documents_of_the_hub(stages, tf, hub):
    for place in ("hf://own/pages/en", "hf://own/pages:en", "hf://own/pages:en:train"):
        source = document_source(place)
        train = texts(source.get_dataset("train", shuffle=False))
        held_out = texts(source.get_dataset("validation", shuffle=False))
        assert sorted(train + held_out) == sorted(hub)
    files = source._files_of("train")
    shuffled = source._shuffled("train", files, shuffle=Shuffle(0, tf.constant(0, tf.int64)))
    found = texts(shuffled)
    assert found != train
    assert sorted(found) == sorted(train)
    assert list(texts_of("hf://own/pages/en:extra")) == ["one more"]
    with pytest.raises(InputError, match=r"has no split 'dev'; the splits are train, extra"):
        document_source("hf://own/pages/en:dev")
    with pytest.raises(InputError, match=r"\(train\) has no column 'body', but only url, text"):
        document_source("hf://own/pages/en", columns=Columns(inputs="{body}"))
    with pytest.raises(
        InputError,
        match=r"the package datasets cannot load this data set \(ConnectionError: no network",
    ):
        document_source("hf://own/pages")
