import dataclasses

import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.formats.benchmark_files import read_jsonl
from t5x_lite.data.tasks.benchmarks import (
    Benchmark,
    in_memory,
    map_records,
    official_folder,
    parallel_lines,
    parallel_records,
    task,
)

SPELL = Benchmark(
    name="spell",
    tfds="glue/rte",
    folder="Spell",
    files={"train": "train.jsonl", "test": "test.jsonl"},
    read=lambda file, split: (row.fields for row in read_jsonl(file, fields=("word",))),
    examples=lambda record, split: [
        {"inputs": record["word"], "targets": letter, "idx": i, "answers": list(record["word"])}
        for i, letter in enumerate(record["word"])
    ],
    extras={"idx": int, "answers": list},
)


@pytest.fixture
def arguments(tmp_path, tiny_vocabulary, monkeypatch):
    from t5x_lite.data.config import TaskArguments
    from t5x_lite.data.vocabularies.loading import load_vocabulary

    monkeypatch.delenv("TFDS_DATA_DIR", raising=False)
    (tmp_path / "Spell").mkdir()
    (tmp_path / "Spell" / "train.jsonl").write_text('{"word": "né"}\n{"word": ""}\n{"word": "a"}')
    return TaskArguments(
        vocabulary=load_vocabulary(tiny_vocabulary),
        directory=str(tmp_path),
        inputs_length=16,
        targets_length=8,
    )


def plain(dataset):
    return [
        {
            name: value.tolist() if isinstance(value, np.ndarray | np.generic) else value.decode()
            for name, value in example.items()
        }
        for example in dataset.as_numpy_iterator()
    ]


EXPECTED = [
    {"inputs": "né", "targets": "n", "idx": 0, "answers": [b"n", "é".encode()]},
    {"inputs": "né", "targets": "é", "idx": 1, "answers": [b"n", "é".encode()]},
    {"inputs": "a", "targets": "a", "idx": 0, "answers": [b"a"]},
]


def test_a_task_over_files(arguments):
    spell = task(SPELL, arguments)
    assert spell.name == "spell"
    assert plain(spell.source.get_dataset("train", shuffle=False)) == EXPECTED
    lengths = {"inputs": 16, "targets": 8}
    first = next(spell.get_dataset(lengths, "train", shuffle=False).as_numpy_iterator())
    assert first["answers"].tolist() == [b"n", "é".encode()]
    assert first["inputs_pretokenized"].decode() == "né"
    with pytest.raises(InputError, match=r"test\.jsonl: cannot be read"):
        spell.source.get_dataset("test", shuffle=False)


def test_the_folder_itself_will_do(tmp_path, arguments):
    assert official_folder(SPELL, str(tmp_path)) == tmp_path / "Spell"
    assert official_folder(SPELL, str(tmp_path / "Spell")) == tmp_path / "Spell"
    assert official_folder(SPELL, str(tmp_path / "elsewhere")) is None
    assert official_folder(SPELL, "gs://bucket") is None


@pytest.mark.parametrize("directory", ["", "elsewhere"])
def test_a_directory_without_the_files_is_refused(arguments, directory):
    with pytest.raises(InputError, match=r"no Spell/train\.jsonl in data\.directory"):
        task(SPELL, dataclasses.replace(arguments, directory=directory))


def test_records_of_a_dataset_are_mapped_to_the_same_examples():
    import tensorflow as tf

    records = tf.data.Dataset.from_tensor_slices({"word": ["né", "", "a"]})
    found = map_records(records, lambda r: SPELL.examples(r, "train"), extras=SPELL.extras)
    assert plain(found) == EXPECTED
    assert found.element_spec == in_memory([], SPELL.extras).element_spec


def test_records_are_in_pythons_own_types():
    import tensorflow as tf

    seen = []

    def see(record):
        seen.append(record)
        return [{"inputs": "", "targets": ""}]

    columns = {
        "text": ["a"],
        "label": [1],
        "idx": {"query": [2]},
        "answers": {"text": [["b", "c"]]},
    }
    list(map_records(tf.data.Dataset.from_tensor_slices(columns), see, extras={}))
    assert seen == [{"text": "a", "label": 1, "idx": {"query": 2}, "answers": {"text": ["b", "c"]}}]
    assert type(seen[0]["label"]) is int


@pytest.fixture
def translated(tmp_path):
    """A function: (English, German) -> their lines as records."""

    def records(english, german):
        files = {"en": tmp_path / "train.en", "de": tmp_path / "train.de"}
        files["en"].write_bytes(english)
        files["de"].write_bytes(german)
        found = []
        dataset = map_records(
            parallel_lines(files),
            lambda r: found.append(r) or [{"inputs": r["en"], "targets": r["de"]}],
            extras={},
        )
        return plain(dataset)

    return records


def test_parallel_lines(translated):
    assert translated(b"A.\n\nC\r\n", "Ä.\n \nC".encode()) == [
        {"inputs": "A.", "targets": "Ä."},
        {"inputs": "", "targets": " "},
        {"inputs": "C", "targets": "C"},
    ]


@pytest.mark.parametrize(
    ("english", "german", "message"),
    [
        (b"a\nb\n", b"a\n", "train.de has fewer lines than the files of the other languages"),
        (b"a\n", b"a\nb\n", "train.en has fewer lines than the files of the other languages"),
        (b"a\nb\n", b"a\n\xff\n", "de of line 2 is not UTF-8"),
    ],
)
def test_lines_that_do_not_go_together_are_refused(translated, english, german, message):
    from t5x_lite.data.elements import input_error

    with pytest.raises(Exception) as caught:  # noqa: PT011 (one of TensorFlow's)
        translated(english, german)
    assert message in str(input_error(caught.value))


def test_parallel_records(tmp_path):
    files = {"en": tmp_path / "train.en", "de": tmp_path / "train.de"}
    files["en"].write_bytes(b"A.\n\nC\r\n")
    files["de"].write_bytes("Ä.\n \nC".encode())
    assert [*parallel_records(files)] == [
        {"en": "A.", "de": "Ä."},
        {"en": "", "de": " "},
        {"en": "C", "de": "C"},
    ]
    files["de"].write_text("A")
    with pytest.raises(InputError, match=r"train\.de has fewer lines than the files of the other"):
        list(parallel_records(files))
    files["de"].write_bytes(b"A\n\xff\nC")
    with pytest.raises(InputError, match=r"train\.de:2: not UTF-8"):
        list(parallel_records(files))


def test_a_missing_language_is_refused(tmp_path):
    (tmp_path / "train.en").touch()
    with pytest.raises(InputError, match=r"cannot read .*train\.de: there is no such file"):
        parallel_lines({"en": tmp_path / "train.en", "de": tmp_path / "train.de"})


# TensorFlow Datasets.

RTE_FILES = {
    "train.tsv": 'index\tsentence1\tsentence2\tlabel\n0\tIt "rained.\tIt did.\tentailment\n',
    "dev.tsv": "index\tsentence1\tsentence2\tlabel\n0\tA\tB\tnot_entailment\n",
    "test.tsv": "index\tsentence1\tsentence2\n0\tC\tD\n1\tE\tF\n",
}
RTE = dataclasses.replace(
    SPELL,
    folder="RTE",
    files={"train": "train.tsv", "validation": "dev.tsv"},
    examples=lambda record, split: [
        {"inputs": record["sentence1"], "targets": str(record["label"]), "idx": record["idx"]}
    ],
    extras={"idx": int},
)


@pytest.fixture
def downloads(tmp_path, monkeypatch):
    """The folder that TFDS gets for GLUE's RTE, in place of a download; without it no network."""
    pytest.importorskip("importlib_resources", reason="TFDS prepares nothing without it")
    import tensorflow_datasets as tfds

    (tmp_path / "download" / "RTE").mkdir(parents=True)
    for name, content in RTE_FILES.items():
        (tmp_path / "download" / "RTE" / name).write_text(content)

    def download(self, urls):
        if not (tmp_path / "download").is_dir():
            raise ConnectionError("no network\n here")
        return str(tmp_path / "download")

    monkeypatch.setattr(tfds.core.utils.gcs_utils, "_is_gcs_disabled", True)
    monkeypatch.setattr(tfds.download.DownloadManager, "download_and_extract", download)
    return tmp_path / "download"


def test_tfds_is_prepared_once_and_read(arguments, downloads, tmp_path):
    directory = str(tmp_path / "tfds")
    rte = task(RTE, dataclasses.replace(arguments, directory=f"tfds:{directory}"))
    expected = [{"inputs": 'It "rained.', "targets": "0", "idx": 0}]
    assert plain(rte.source.get_dataset("train", shuffle=False)) == expected
    downloads.rename(tmp_path / "gone")
    rte = task(RTE, dataclasses.replace(arguments, directory=directory))
    assert plain(rte.source.get_dataset("train", shuffle=False)) == expected
    other = dataclasses.replace(RTE, tfds_splits={"validation": "validation_matched"})
    with pytest.raises(InputError, match="has no split 'validation_matched'; its splits are t"):
        task(other, dataclasses.replace(arguments, directory=directory)).source.get_dataset(
            "validation", shuffle=False
        )


def test_tfds_without_a_network_is_one_line(arguments, downloads, tmp_path):
    downloads.rename(tmp_path / "gone")
    directory = str(tmp_path / "tfds")
    rte = task(RTE, dataclasses.replace(arguments, directory=f"tfds:{directory}"))
    with pytest.raises(InputError) as caught:
        rte.source.get_dataset("train", shuffle=False)
    assert str(caught.value).startswith(
        f"TFDS has no glue/rte in {directory} and could not make it (ConnectionError: no network "
        "here): run `tfds build glue/rte`"
    )
    assert not (tmp_path / "tfds").exists()
    # The data sets that were there stay.
    kept = tmp_path / "tfds" / "other" / "kept.txt"
    kept.parent.mkdir(parents=True)
    kept.write_text("kept")
    with pytest.raises(InputError):
        rte.source.get_dataset("train", shuffle=False)
    assert [file for file in (tmp_path / "tfds").rglob("*") if file.is_file()] == [kept]


def test_a_name_of_tfds_is_no_directory(arguments):
    """Documents are at tfds://NAME; a labelled task has a name of its own, and no directory."""
    with pytest.raises(InputError, match=r"tfds://glue names a TFDS data set, but the task always"):
        task(RTE, dataclasses.replace(arguments, directory="tfds://glue"))


def test_tfds_data_dir_stands_in_for_a_directory(arguments, downloads, tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    assert task(RTE, dataclasses.replace(arguments, directory="")).name == "spell"
