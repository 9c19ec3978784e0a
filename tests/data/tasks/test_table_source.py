"""The same rows give the same batches, in whatever files they are."""

import gzip
import json

import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.config import Data
from t5x_lite.data.preprocessors import Columns

COLUMNS = {"inputs": "review: {text}", "targets": "{stars}"}
NUM_ROWS = 600


def table():
    return [{"text": f"film number {i}, \"good\"" + " very" * (i % 7), "stars": i % 5, "x": i / 4}
            for i in range(NUM_ROWS)]  # fmt: skip


def write_jsonl(root, rows, name="train.jsonl.gz"):
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (root / name).write_bytes(
        gzip.compress(text.encode()) if name.endswith("gz") else text.encode()
    )


def write_csv(root, rows):
    quoted = [[row["text"].replace('"', '""'), row["stars"]] for row in rows]
    lines = [f'"{text}",{stars}\n' for text, stars in quoted]
    (root / "train.csv").write_text("text,stars\n" + "".join(lines))


def write_parquet(root, rows):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    pyarrow.parquet.write_table(
        pa.Table.from_pylist(rows), root / "train.parquet", row_group_size=99
    )


def write_arrow(root, rows):
    pa = pytest.importorskip("pyarrow")
    folder = root / "train"
    folder.mkdir()
    names = []
    for number, start in enumerate((0, 250)):
        part = pa.Table.from_pylist(rows[start : start + 250] if start == 0 else rows[start:])
        names.append(f"data-{number:05d}-of-00002.arrow")
        with (
            (folder / names[-1]).open("wb") as sink,
            pa.ipc.new_stream(sink, part.schema) as writer,
        ):
            writer.write_table(part)
    state = {"_data_files": [{"filename": name} for name in names]}
    (folder / "state.json").write_text(json.dumps(state))
    (root / "dataset_dict.json").write_text('{"splits": ["train"]}')


def write_directory(root, rows):
    (root / "train").mkdir()
    for start in range(0, NUM_ROWS, 100):
        write_jsonl(root / "train", rows[start : start + 100], name=f"part-{start:05d}.jsonl")


WRITERS = [write_jsonl, write_csv, write_parquet, write_arrow, write_directory]


def batches(tmp_path, write, tiny_vocabulary, *, number, restore_at=None, **columns):
    from t5x_lite.data import batches as data_batches
    from t5x_lite.data.vocabularies.loading import load_vocabulary

    root = tmp_path / write.__name__
    if not root.exists():
        root.mkdir()
        write(root, table())
    data = Data(
        task="tasks.files:text_to_text",
        vocabulary="",
        directory=str(root),
        columns=Columns(**COLUMNS, **columns),
        inputs_length=32,
        targets_length=8,
        batch_size=16,
        shuffle_buffer=50,
    )
    vocabulary = load_vocabulary(tiny_vocabulary)
    made = data_batches.train_batches(data, vocabulary, seed=0)
    found = [next(made)["encoder_input_tokens"] for _ in range(number)]
    if restore_at is not None:
        again = data_batches.train_batches(data, vocabulary, seed=0)
        for _ in range(restore_at):
            next(again)
        state, again = again.state(), data_batches.train_batches(data, vocabulary, seed=0)
        again.restore(state)
        rest = [next(again)["encoder_input_tokens"] for _ in range(number - restore_at)]
        np.testing.assert_array_equal(rest, found[restore_at:])
    return np.stack(found)


@pytest.mark.exhaustive
@pytest.mark.parametrize("stream", [False, True])
def test_the_same_rows_give_the_same_batches(tmp_path, tiny_vocabulary, stream):
    wanted, *others = (
        batches(tmp_path, write, tiny_vocabulary, number=8, stream=stream) for write in WRITERS
    )
    assert len(np.unique(wanted, axis=0)) == len(wanted)
    for found in others:
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.slow
def test_a_stream_goes_on_where_it_was(tmp_path, tiny_vocabulary):
    """Also in the second epoch, behind the 600 rows of the first."""
    options = {"number": 40, "restore_at": 30, "stream": True}
    batches(tmp_path, write_csv, tiny_vocabulary, **options)


def test_a_stream_holds_out_the_same_rows_as_memory(tmp_path):
    from t5x_lite.data.tasks.table_source import table_source

    write_csv(tmp_path, table())
    shown = {}
    for stream in (False, True):
        columns = Columns(**COLUMNS, hold_out=10, stream=stream)
        source = table_source(columns, columns.splits(str(tmp_path)), kinds={"id": str})
        for split in ("train", "validation"):
            rows = source.get_dataset(split, shuffle=False).as_numpy_iterator()
            shown[stream, split] = [row["id"] for row in rows]
    assert shown[False, "train"] == shown[True, "train"]
    assert shown[False, "validation"] == shown[True, "validation"]
    assert len(shown[True, "train"]) + len(shown[True, "validation"]) == NUM_ROWS
    assert 0 < len(shown[True, "validation"]) < NUM_ROWS / 5


@pytest.mark.exhaustive
def test_a_bad_row_of_a_stream_is_named(tmp_path, tiny_vocabulary):
    rows = table()
    rows[400] = {"text": "no stars"}
    root = tmp_path / "write_jsonl"
    root.mkdir()
    write_jsonl(root, rows)
    with pytest.raises(
        InputError, match=r"train\.jsonl\.gz:401: column 'stars' is missing; the columns are text"
    ):
        batches(tmp_path, write_jsonl, tiny_vocabulary, number=60, stream=True)


def test_what_is_held_in_memory(tmp_path, monkeypatch):
    from t5x_lite.data.formats.tables import HubSplit
    from t5x_lite.data.tasks import table_source, text_source

    (tmp_path / "a.csv").write_bytes(b"x" * 80)
    (tmp_path / "a.parquet").write_bytes(b"x" * 80)
    monkeypatch.setattr(text_source, "IN_MEMORY_BYTES", 100)
    assert table_source.fits_in_memory([tmp_path / "a.csv"])
    assert not table_source.fits_in_memory([tmp_path / "a.csv"] * 2)
    assert not table_source.fits_in_memory([tmp_path / "a.parquet"])
    assert not table_source.fits_in_memory([HubSplit("a", None, "train")])
