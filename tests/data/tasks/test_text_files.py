import gzip
import json
from functools import partial
from pathlib import Path

import fsspec
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.formats.documents import Files
from t5x_lite.data.tasks.text_source import texts_of
from t5x_lite.data.tasks.unsupervised import (
    check_columns,
    collection_files,
    language_sizes,
    numbered_shards,
    split_files,
)


def make(directory: Path, *names: str) -> str:
    for name in names:
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text("a line\n")
    return str(directory)


def names(files):
    return [file.name for file in files]


def test_files_named_validation_are_held_out(tmp_path):
    directory = make(tmp_path, "b.txt", "a.jsonl", "validation-1.txt", "notes.md", "train.txt")
    splits = split_files(directory)
    assert names(splits["train"]) == ["a.jsonl", "b.txt", "train.txt"]
    assert names(splits["validation"]) == ["validation-1.txt"]


def test_files_may_be_compressed(tmp_path):
    directory = make(tmp_path, "a.txt.gz", "b.jsonl.zst", "c.gz", "validation.jsonl.gz")
    splits = split_files(directory)
    assert names(splits["train"]) == ["a.txt.gz", "b.jsonl.zst"]
    assert names(splits["validation"]) == ["validation.jsonl.gz"]


def test_directories_train_and_validation(tmp_path):
    directory = make(tmp_path, "train/a.txt", "train/b.txt", "validation/c.txt")
    splits = split_files(directory)
    assert names(splits["train"]) == ["a.txt", "b.txt"]
    assert names(splits["validation"]) == ["c.txt"]


def test_of_twenty_files_every_twentieth_is_held_out(tmp_path):
    directory = make(tmp_path, *(f"{i:02}.txt" for i in range(41)))
    splits = split_files(directory)
    assert names(splits["validation"]) == ["19.txt", "39.txt"]
    assert len(splits["train"]) == 39


def test_fewer_files_are_on_both_sides(tmp_path):
    splits = split_files(make(tmp_path, "a.txt", "b.txt"))
    assert splits["train"] is splits["validation"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ((), "no *.txt, *.jsonl, *.json, *.parquet or *.arrow file to train on"),
        (("validation.txt",), "file to train on"),
    ],
)
def test_a_directory_without_training_text_is_refused(tmp_path, files, message):
    with pytest.raises(InputError) as caught:
        split_files(make(tmp_path, *files))
    assert message in str(caught.value)


@pytest.mark.parametrize("directory", ["", "no/such/directory"])
def test_a_missing_directory_is_refused(directory):
    with pytest.raises(InputError, match=f"data.directory '{directory}' is not a directory"):
        split_files(directory)


def test_shards_of_one_release(caplog):
    def shards(*numbers, total=3):
        return [f"/d/c4-train.{number:05}-of-{total:05}.json.gz" for number in numbers]

    checked = partial(numbered_shards, name="c4-train.*", directory="/d")
    assert checked([]) == []
    assert checked(shards(0, 1, 2)) == shards(0, 1, 2)
    assert caplog.text == ""
    assert checked(shards(0, 2)) == shards(0, 2)
    assert (
        "/d: 1 of 3 shards c4-train.* are missing; reading only the other 2 shards" in caplog.text
    )
    for wrong in (shards(3), [*shards(0), *shards(1, total=4)], [*shards(0), "/d/c4-train.json"]):
        with pytest.raises(InputError, match="must be of one release"):
            checked(wrong)


def test_a_collection_is_one_list_of_passages(tmp_path):
    directory = make(tmp_path, "b.tsv", "a.jsonl", "notes.md")
    splits = collection_files(directory)
    assert names(splits["train"]) == ["a.jsonl", "b.tsv"]
    assert splits["train"] is splits["validation"]
    # A published name is the collection, and what is beside it, such as queries, is not.
    make(tmp_path, "collection.tsv.gz")
    assert names(collection_files(directory)["train"]) == ["collection.tsv.gz"]
    one = collection_files(str(tmp_path / "b.tsv"))
    assert names(one["train"]) == ["b.tsv"]
    (tmp_path / "empty").mkdir()
    for wrong in ("", str(tmp_path / "none"), str(tmp_path / "empty")):
        with pytest.raises(
            InputError, match=r"is not a passage collection: it must be a file of passages"
        ):
            collection_files(wrong)


def test_commands_name_no_options_of_tasks(tmp_path):
    """`vocab`, `embed` and `pairs` have --input, neither data.directory nor data.languages."""
    empty, mc4 = tmp_path / "empty", tmp_path / "mc4"
    files = [f"c4-{name}.tfrecord-00000-of-00001.json" for name in ("af", "af-validation", "sw")]
    empty.mkdir()
    make(mc4, *files)
    (mc4 / files[0]).write_text('{"text": "een"}\n')
    (tmp_path / "unfinished" / ".work").mkdir(parents=True)
    with pytest.raises(InputError, match=r"unfinished is an unfinished output of `t5x-lite c4`"):
        list(texts_of(str(tmp_path / "unfinished")))
    with pytest.raises(InputError, match=rf"file to train on in {empty}$"):
        list(texts_of(str(empty)))
    message = (
        rf"^{mc4} has the languages af, sw; name the shards of one language, such as "
        rf"'{mc4}/c4-af\.\*'$"
    )
    with pytest.raises(InputError, match=message):
        list(texts_of(f"{mc4}"))
    assert list(texts_of(f"{mc4}/c4-af.*")) == ["een"]


def test_places_in_a_bucket():
    """Tables by their parts, C4's shards and patterns, here in fsspec's file system of memory."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    files = fsspec.filesystem("memory")
    for name in ("a", "b"):
        table = pa.table({"text": [f"{name} {i}" for i in range(5)], "n": [*range(5)]})
        with files.open(f"/rows/{name}.parquet", "wb") as file:
            pq.write_table(table, file, row_group_size=2)
    for split in ("af", "af-validation", "de"):
        content = gzip.compress(json.dumps({"text": split}).encode())
        files.pipe(f"/mc4/c4-{split}.tfrecord-00000-of-00001.json.gz", content)
    rows = [f"{name} {i}" for name in "ab" for i in range(5)]
    for place in ("memory://rows", "memory://rows/*.parquet"):
        assert list(texts_of(place)) == rows
    assert list(texts_of("memory://rows/b.parquet")) == rows[5:]
    splits = split_files("memory://rows")
    assert splits["train"] is splits["validation"]
    check_columns(splits, "{text}")
    with pytest.raises(InputError, match=r"rows/a.parquet has no column 'body', but only text"):
        check_columns(splits, "{body}")
    assert Files(splits["train"]).num_parts == 6
    assert language_sizes("memory://mc4").keys() == {"af", "de"}
    [shard] = split_files("memory://mc4", language="af")["validation"]
    assert list(texts_of(shard)) == ["af-validation"]
    with pytest.raises(InputError, match=r"memory://rows/\*\.arrow: no file matches"):
        list(texts_of("memory://rows/*.arrow"))
