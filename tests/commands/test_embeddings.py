"""embed: vectors in the order of the file, in constant memory, and what is wrong."""

import io
import json
import logging
import os
import sys
import types

import numpy as np
import pytest

import t5x_lite
from t5x_lite.commands import answers
from t5x_lite.core.errors import InputError
from t5x_lite.data.formats.vectors import quantized
from t5x_lite.inference.checkpoint import Checkpoint
from t5x_lite.inference.text_encoder import Embedder
from tests.encoder_checkpoint import write_checkpoint

TEXTS = ["a b c", "", "c", "a a a a a a a a a a", "b c"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, compile_once):
    return write_checkpoint(tmp_path_factory.mktemp("encoder"), "bert")


@pytest.fixture
def embed(checkpoint, tmp_path):
    (tmp_path / "in.txt").write_text("\n".join(TEXTS) + "\n")

    def run(**options):
        options = {
            "input": str(tmp_path / "in.txt"),
            "output": str(tmp_path / "out.npy"),
            "batch_size": 2,
        } | options
        answers.embed(options.pop("checkpoint", str(checkpoint)), **options)
        return np.load(options["output"])

    return run


def expected(checkpoint, texts, **how):
    encoder = Checkpoint.load([str(checkpoint)]).encoder(**how)
    return encoder.embedder(batch_size=8).run(encoder.params, encoder.rows(texts).rows)


@pytest.mark.slow
def test_vectors_are_in_the_order_of_the_file(embed, checkpoint, tmp_path, monkeypatch, caplog):
    with caplog.at_level(logging.INFO):
        found = embed()
    output = tmp_path / "out.npy"
    assert caplog.messages[-1] == (
        f"{output}: wrote 5 vectors of 12 dimensions (pooling mean, scaled to length 1)"
    )
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected(checkpoint, TEXTS), atol=1e-5)
    monkeypatch.setattr(answers, "CHUNK_BATCHES", 1)
    np.testing.assert_allclose(embed(), found, atol=1e-6)


@pytest.mark.slow
def test_shortened_vectors_and_their_signs(embed, checkpoint):
    whole = embed(normalize=False)
    short = whole[:, :8] / np.linalg.norm(whole[:, :8], axis=1, keepdims=True)
    np.testing.assert_allclose(embed(dimensions=8), short, atol=1e-6)
    by_head = t5x_lite.load(checkpoint).encode(TEXTS, pooling="mean", normalize=True, dimensions=8)
    np.testing.assert_allclose(by_head, short, atol=1e-6)
    half = embed(dimensions=8, precision="float16")
    assert half.dtype == np.float16
    np.testing.assert_array_equal(
        embed(dimensions=8, precision="binary"), np.packbits(short > 0, axis=1)
    )
    with pytest.raises(
        InputError, match="dimensions must be at most 12, the size of a vector, got 13"
    ):
        embed(dimensions=13)
    with pytest.raises(InputError, match="a multiple of 8 dimensions"):
        embed(precision="binary")
    with pytest.raises(InputError, match="is for dense vectors, but --heads has no dense"):
        embed(precision="binary", heads=("lexical",))


@pytest.mark.slow
def test_int8_vectors_and_their_ranges(embed, tmp_path, monkeypatch):
    whole = embed()
    ranges = np.stack([whole.min(axis=0), whole.max(axis=0)])
    np.testing.assert_array_equal(embed(precision="int8"), quantized(whole, ranges))
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy.ranges"), ranges)
    shared = {"precision": "int8", "ranges": str(tmp_path / "out.npy")}
    (tmp_path / "two.txt").write_text("\n".join(TEXTS[2:4]) + "\n")
    output = str(tmp_path / "two.npy")
    found = embed(**shared, input=str(tmp_path / "two.txt"), output=output)
    np.testing.assert_array_equal(found, quantized(whole[2:4], ranges))
    np.testing.assert_array_equal(np.load(f"{output}.ranges"), ranges)
    monkeypatch.setattr(answers, "CHUNK_BATCHES", 1)
    parts = [embed(**shared, shard=f"{i}/2", output=f"{tmp_path}/{i}.npy") for i in (1, 2)]
    np.testing.assert_array_equal(np.concatenate(parts), quantized(whole, ranges))


def test_ranges_that_do_not_fit(embed):
    for options, message in (
        ({"ranges": "a.npy"}, "--ranges needs --precision int8, got --precision float32"),
        ({"precision": "int8", "shard": "2/2"}, "--shard 2/2 needs --ranges"),
        ({"precision": "int8", "ranges": "none.npy"}, r"none\.npy: No such file"),
    ):
        with pytest.raises(InputError, match=message):
            embed(**options)


@pytest.mark.slow
def test_json_lines_pooling_and_a_prefix(embed, checkpoint, tmp_path):
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    records = [{"_id": "x", "title": "a", "text": "b"}, {"text": "c"}]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, records)))
    how = {"pooling": "cls", "normalize": False}
    options = {"input": str(tmp_path / "in.jsonl"), "prefix": "d ", **how}
    found = embed(**options)
    np.testing.assert_allclose(found, expected(checkpoint, ["d a b", "d c"], **how), atol=1e-5)
    with pytest.raises(ValueError, match="pickled"):  # it is no array
        embed(**options, output=str(tmp_path / "out.parquet"))
    table = parquet.read_table(tmp_path / "out.parquet").to_pydict()
    assert table == {"id": ["x", "1"], "vector": found.tolist()}


def test_standard_input(embed, monkeypatch):
    content = io.BytesIO("\n".join(TEXTS).encode())
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=content))
    assert embed(input="-").shape == (5, 12)


def test_activations_in_bfloat16(embed):
    """Near those in float32, and not equal to them; what is pooled is float32."""
    exact, rounded = embed(), embed(compute_dtype="bfloat16")
    assert rounded.dtype == np.float32
    assert not np.array_equal(exact, rounded)
    assert np.sum(exact * rounded, axis=1).min() > 0.999


def test_a_killed_command_goes_on(embed, checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(answers, "CHUNK_BATCHES", 1)
    whole, seen, run = embed(), [], Embedder.run

    def dying(self, params, rows, **options):
        seen.append(len(rows))
        if len(seen) == 2:
            raise KeyboardInterrupt
        return run(self, params, rows, **options)

    monkeypatch.setattr(Embedder, "run", dying)
    with pytest.raises(KeyboardInterrupt):
        embed()
    assert (tmp_path / "out.npy").exists()  # the old one
    with pytest.raises(
        InputError, match=r"out.npy.partial contains rows of another command \(other prefix\)"
    ):
        embed(prefix="query: ")
    assert embed().tobytes() == whole.tobytes()
    assert seen == [2, 2, 2, 1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.npy"]


def test_parts_are_together_what_one_command_writes(embed, tmp_path, monkeypatch):
    monkeypatch.setattr(answers, "CHUNK_BATCHES", 1)
    whole = embed()
    parts = [embed(output=str(tmp_path / f"{i}.npy"), shard=f"{i}/2") for i in (1, 2)]
    assert [len(part) for part in parts] == [2, 3]
    assert np.concatenate(parts).tobytes() == whole.tobytes()
    with pytest.raises(
        InputError, match="requires 4 blocks of 2 texts, but 5 texts make only 3 blocks"
    ):
        embed(part="1/4")  # the name before 0.2.0
    for options in ({"input": "-"}, {"heads": ("dense", "lexical")}):
        with pytest.raises(InputError, match="--shard is supported only with an input file"):
            embed(shard="1/2", **options)
    with pytest.raises(InputError, match="--shard is '9/8', but must be I/N"):
        embed(shard="9/8")


@pytest.mark.slow
def test_long_texts_are_cut_or_refused(embed, tmp_path, caplog):
    found = embed(inputs_length=4)
    source = tmp_path / "in.txt"
    assert "the checkpoint does not define the pooling of hidden states" in caplog.messages[0]
    assert caplog.messages[1:3] == [
        f"{source}:1: truncating this text and all further long texts to 4 tokens "
        "(--inputs-length)",
        "truncated 2 texts that were longer than --inputs-length",
    ]
    np.testing.assert_array_equal(found[2], embed()[2])
    (tmp_path / "out.npy").unlink()
    with pytest.raises(InputError, match=r"in\.txt:1: the text is longer than 4 tokens; shorten"):
        embed(inputs_length=4, long_inputs="refuse")
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"in\.txt contains no text"),
        (b"a\n" * 5 + b"\xff\n", r"in\.txt:6: not .*UTF-8"),
    ],
)
def test_a_wrong_input_leaves_what_was_there(embed, tmp_path, monkeypatch, content, message):
    monkeypatch.setattr(answers, "CHUNK_BATCHES", 1)
    (tmp_path / "in.txt").write_bytes(content)
    (tmp_path / "out.npy").write_text("old")
    with pytest.raises(InputError, match=message):
        embed()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.npy"]
    assert (tmp_path / "out.npy").read_text() == "old"


def test_files_that_cannot_be(embed, tmp_path):
    os.link(tmp_path / "in.txt", tmp_path / "link.npy")
    for options, message in (
        ({"output": str(tmp_path / "out.csv")}, r"must end in \.npy or \.parquet"),
        (
            {"output": str(tmp_path / "none" / "o.npy")},
            r"cannot be written, because .*none is not a directory",
        ),
        ({"output": str(tmp_path / "link.npy")}, r"--input and --output are the same file"),
        ({"input": str(tmp_path / "none.txt")}, r"none\.txt: cannot be read \(No such file"),
        ({"checkpoint": str(tmp_path / "none")}, r"none: no such directory"),
    ):
        with pytest.raises(InputError, match=message):
            embed(**options)


def test_vectors_that_are_not_finite_are_refused(embed, monkeypatch, tmp_path):
    vectors = np.array([[0], [np.nan]] * 3, np.float32)[:5]
    monkeypatch.setattr(Embedder, "run", lambda *_, **__: vectors)
    with pytest.raises(
        InputError,
        match=r"in\.txt:2: the vector of this text is NaN or infinite; check the checkpoint's",
    ):
        embed()
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]


def test_places_of_documents(tmp_path):
    """A table, a directory of C4 and a pattern; ids are numbers over all files."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    def read(place, template="{text}", **options):
        options = {"format": "auto", "longest": 1 << 20, "template": template} | options
        return [(r.id, r.text) for r in answers._read_place(str(place), **options)]

    for name in "ab":
        texts = [f"{name} {i}" for i in range(2)]
        pq.write_table(pa.table({"text": texts, "url": ["u", "v"]}), tmp_path / f"{name}.parquet")
    expected = [("0", "a 0"), ("1", "a 1"), ("2", "b 0"), ("3", "b 1")]
    assert read(tmp_path / "a.parquet") == expected[:2]
    assert read(tmp_path) == read(tmp_path / "*.parquet") == expected
    assert read(tmp_path / "a.parquet", "{url}. {text}") == [("0", "u. a 0"), ("1", "v. a 1")]
    named = pa.table({"docid": ["x"], "title": ["T"], "text": ["words"], "n": [1]})
    pq.write_table(named, tmp_path / "named.parquet")
    assert read(tmp_path / "named.parquet") == [("x", "T words")]
    with pytest.raises(InputError, match=r"no column 'body', but only docid, title, text, n"):
        read(tmp_path / "named.parquet", "{body}")
    with pytest.raises(InputError, match=r"none\.parquet: No such file"):
        read(tmp_path / "none.parquet")
