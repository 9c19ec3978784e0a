"""Which files of a directory are which split."""

import json
import sys
import types

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.formats import tables as module
from t5x_lite.data.formats.tables import read_rows, table_splits


def write(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text('{"text": "a"}\n')


def names_of(root, **options):
    found = table_splits(str(root), **options)
    return {s: [str(t.relative_to(root)) for t in tables] for s, tables in found.items()}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["train.csv", "dev.tsv", "README"], {"train": ["train.csv"], "validation": ["dev.tsv"]}),
        (
            ["train-00001-of-00002.jsonl", "train-00000-of-00002.jsonl", "test.jsonl.gz"],
            {
                "train": ["train-00000-of-00002.jsonl", "train-00001-of-00002.jsonl"],
                "test": ["test.jsonl.gz"],
            },
        ),
        (["data/train-0.parquet", "data/val-0.parquet"],
         {"train": ["data/train-0.parquet"], "validation": ["data/val-0.parquet"]}),
        (["train/b.csv", "train/a.csv", "valid/0.csv"],
         {"train": ["train/a.csv", "train/b.csv"], "validation": ["valid/0.csv"]}),
        (["training.csv", "other.jsonl"], {}),
    ],
)  # fmt: skip
def test_names(tmp_path, names, expected):
    write(tmp_path, *names)
    assert names_of(tmp_path) == expected


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["train.csv", "train.csv.gz"], r"has both train\.csv and train\.csv\.gz"),
        (["validation.jsonl", "dev.tsv"], r"has both validation\.jsonl and dev\.tsv"),
        (["train.csv", "train-0.csv"], r"has both train\.csv and train-0\.csv"),
    ],
)
def test_two_sets_of_files_for_one_split_are_refused(tmp_path, names, message):
    write(tmp_path, *names)
    with pytest.raises(InputError, match=message):
        table_splits(str(tmp_path))


def test_shards_that_are_missing(tmp_path, caplog):
    """Warn of those that the names promise, and refuse shards of two releases."""
    shards = [f"train-{number:05}-of-00003{more}.parquet" for number, more in ((0, ""), (2, "-ab"))]
    write(tmp_path, *shards)
    assert names_of(tmp_path) == {"train": shards}
    [record] = caplog.records
    assert "1 of 3 shards like train-00002-of-00003-ab.parquet are missing" in record.getMessage()
    write(tmp_path, "train-00001-of-00003.parquet")
    caplog.clear()
    table_splits(str(tmp_path))
    assert not caplog.records
    write(tmp_path, "train-00000-of-00002.parquet")
    with pytest.raises(
        InputError, match=r"has shards of two releases, such as train-0.* and train"
    ):
        table_splits(str(tmp_path))


def test_patterns_and_single_files(tmp_path):
    write(tmp_path, "rows/b.jsonl", "rows/a.jsonl", "rows/notes.txt", "dev.csv")
    patterns = {"train": ("rows/*",), "validation": ("dev.csv",), "test": ()}
    assert names_of(tmp_path, patterns=patterns) == {
        "train": ["rows/a.jsonl", "rows/b.jsonl"],
        "validation": ["dev.csv"],
    }
    assert names_of(tmp_path / "dev.csv") == {"train": ["."]}
    assert table_splits(f"{tmp_path}/rows/*.jsonl")["train"] == (
        tmp_path / "rows" / "a.jsonl",
        tmp_path / "rows" / "b.jsonl",
    )
    with pytest.raises(InputError, match=r"data\.columns\.train: no file .*none\.csv"):
        table_splits(str(tmp_path), patterns={"train": ("none.csv",)})
    assert table_splits("") == {}


def saved(root, name, files, **more):
    write(root, *(f"{name}/{file}" for file in files))
    state = {"_data_files": [{"filename": file} for file in files], **more}
    (root / name / "state.json").write_text(json.dumps(state))


def test_directories_that_datasets_wrote(tmp_path):
    saved(tmp_path, "train", ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"])
    saved(tmp_path, "validation", ["data-00000-of-00001.arrow"])
    assert names_of(tmp_path / "train") == {
        "train": ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    }
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "validation", "extra"]}')
    assert names_of(tmp_path) == {
        "train": ["train/data-00000-of-00002.arrow", "train/data-00001-of-00002.arrow"],
        "validation": ["validation/data-00000-of-00001.arrow"],
    }
    saved(tmp_path, "train", ["a.arrow"], _indices_data_files=[{"filename": "i.arrow"}])
    with pytest.raises(InputError, match=r"the saved data set selects its rows by indices"):
        table_splits(str(tmp_path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "dataset_dict.json: not JSON"),
        ("{}", 'must have "splits"'),
        ('{"splits": ["full"]}', "the splits are full, but one must be train, valid"),
        ("[]", "must be a JSON object"),
    ],
)
def test_damaged_descriptions(tmp_path, content, message):
    (tmp_path / "dataset_dict.json").write_text(content)
    with pytest.raises(InputError, match=message):
        table_splits(str(tmp_path))


def test_the_hub_is_asked_late(monkeypatch):
    pa = pytest.importorskip("pyarrow")
    monkeypatch.setattr(module, "_hub", {})
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r"hf://imdb needs the package datasets"):
        table_splits("hf://imdb")

    class Split:
        def with_format(self, name):
            assert name == "arrow"
            return self

        def iter(self, size):
            return iter([pa.table({"text": ["a", "b"]})])

    def load_dataset(name, config):
        if name != "own/reviews":
            raise ConnectionError("no network")
        assert config == "plain"
        return {"train": Split(), "test": Split()}

    fake = types.ModuleType("datasets")
    fake.load_dataset = load_dataset  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "datasets", fake)
    splits = table_splits("hf://own/reviews:plain")
    assert set(splits) == {"train", "test"}
    rows = list(read_rows(splits["train"][0], columns=("text",)))
    assert rows[1].where == "hf://own/reviews:plain (train): row 2"
    assert rows[1].fields == {"text": "b"}
    with pytest.raises(
        InputError,
        match=r"hf://none: the package datasets cannot load this data set \(ConnectionError",
    ):
        table_splits("hf://none")
