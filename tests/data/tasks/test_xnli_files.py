"""XNLI's files: languages by column, the translations' words, and the mean of 15."""

import dataclasses
from pathlib import Path

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.tasks.glue_files import LANGUAGES, XnliTask
from t5x_lite.metrics.benchmarks import XNLI

WORDS = ("entailment", "neutral", "contradiction")


def write(root, lines):
    """The release's folders, of lines of English."""
    held_out, training = Path(root) / "XNLI-1.0", Path(root) / "XNLI-MT-1.0" / "multinli"
    held_out.mkdir()
    training.mkdir(parents=True)
    texts = [" ".join(line.replace('"', "").split())[:60] for line in lines]
    rows = [f"{LANGUAGES[i % 15]}\t{WORDS[i % 3]}\tx\t{t}\t{t[:20]}" for i, t in enumerate(texts)]
    head = "language\tgold_label\tpromptID\tsentence1\tsentence2"
    for split in ("dev", "test"):
        (held_out / f"xnli.{split}.tsv").write_text("\n".join([head, *rows]) + "\n")
    theirs = ("entailment", "neutral", "contradictory")
    rows = [f"{text}\t{text[:20]}\t{theirs[i % 3]}" for i, text in enumerate(texts)]
    for language in LANGUAGES:
        path = training / f"multinli.train.{language}.tsv"
        path.write_text("\n".join(["premise\thypo\tlabel", *rows]) + "\n")


@pytest.fixture
def root(tmp_path):
    write(tmp_path, [f"A line of number {i}" for i in range(45)])
    return tmp_path


def test_rows_of_a_language(root):
    task = XnliTask.held_out("bg")
    rows = list(task.records(root / "XNLI-1.0" / "xnli.test.tsv", "test"))
    assert rows == [
        {"hypothesis": text[:20], "premise": text, "label": i % 3, "idx": place}
        for place, i in enumerate((1, 16, 31))
        for text in [f"A line of number {i}"]
    ]
    assert task.benchmark().name == "xnli_bg"
    assert set(task.files) == {"validation", "test"}


def test_a_training_file_is_of_one_language(root):
    task = XnliTask.training("sw")
    rows = list(task.records(root / "XNLI-MT-1.0" / task.files["train"], "train"))
    assert [row["label"] for row in rows[:4]] == [0, 1, 2, 0]
    assert len(rows) == 45
    assert task.benchmark().name == "xnli_train_sw"
    assert task.labelled().texts == ("premise", "hypothesis")


def test_what_is_wrong(root):
    file = root / "XNLI-1.0" / "xnli.dev.tsv"
    head = file.read_text().splitlines()[0]
    file.write_text(f"{head}\nen\tneutral\tx\ta\tb\n")
    with pytest.raises(InputError, match=r"xnli\.dev\.tsv: no row of the language de"):
        list(XnliTask.held_out("de").records(file, "validation"))
    file.write_text(f"{head}\nen\tmaybe\tx\ta\tb\n")
    with pytest.raises(
        InputError, match=r"xnli\.dev\.tsv:2: column gold_label is 'maybe', but must be one of"
    ):
        list(XnliTask.held_out("en").records(file, "validation"))


def test_the_mean_of_15():
    scores = {f"xnli_{language}": {"accuracy": i / 15} for i, language in enumerate(LANGUAGES)}
    assert XNLI.score(scores) == pytest.approx(7 / 15)
    assert tuple(XNLI.rows) == LANGUAGES
    assert XNLI.missing({"xnli_en": {"accuracy": 1.0}}) == [n for n in LANGUAGES if n != "en"]


@pytest.fixture
def tfds_directory(tmp_path, monkeypatch):
    """XNLI and XTREME's translations, which TFDS prepares of files in place of downloads."""
    pytest.importorskip("importlib_resources", reason="TFDS prepares nothing without it")
    tfds = pytest.importorskip("tensorflow_datasets")
    downloaded = tmp_path / "downloaded" / "XNLI-1.0"
    downloaded.mkdir(parents=True)
    head = "language\tgold_label\tpromptID\tsentence1\tsentence2\tpairID"
    rows = [
        f"{language}\t{WORDS[n % 3]}\tx\tP {language} {n}\tH {language} {n}\t{n}"
        for n in range(4)
        for language in LANGUAGES
    ]
    for split in ("dev", "test"):
        (downloaded / f"xnli.{split}.tsv").write_text("\n".join([head, *rows]) + "\n")
    for language in LANGUAGES:
        rows = [f"P en {n}\tH en {n}\tP {language} {n}\tH {language} {n}\tcontradictory"
                for n in range(4)]  # fmt: skip
        (downloaded / f"en-{language}.tsv").write_text("\n".join(rows) + "\n")

    def download(self, urls):
        if isinstance(urls, str):
            return str(downloaded.parent)
        return {language: str(downloaded / f"en-{language}.tsv") for language in urls}

    monkeypatch.setattr(tfds.core.utils.gcs_utils, "_is_gcs_disabled", True)
    monkeypatch.setattr(tfds.download.DownloadManager, "download_and_extract", download)
    return tmp_path


@pytest.mark.parametrize("layout", ["labelled", "seq2seq"])
def test_records_of_tfds(tfds_directory, tiny_vocabulary, layout):
    from t5x_lite import layouts
    from t5x_lite.data import loading, reading
    from t5x_lite.data.config import Data
    from t5x_lite.data.vocabularies.loading import load_vocabulary
    from tests import tokenizer_files

    is_text = layout == "seq2seq"
    path = tiny_vocabulary
    if not is_text:
        path = tokenizer_files.write_wordpiece(tfds_directory)
    data = Data(
        task="tasks.xnli:sw",
        vocabulary="",
        directory=f"tfds:{tfds_directory / 'tfds'}",
        layout=layouts.Seq2Seq() if is_text else layouts.Labelled(),
        inputs_length=64,
        pack=False,
    )
    vocabulary = load_vocabulary(path)
    found = reading.eval_examples(data, vocabulary)
    shown = "xnli hypothesis: H sw {0} premise: P sw {0}" if is_text else "P sw {0} H sw {0}"
    expected = {shown.format(number): WORDS[number % 3] for number in range(4)}
    assert {one.inputs_text: one.targets_text for one in found} == expected
    assert [one.raw["idx"] for one in found] == [0, 1, 2, 3]  # in TFDS's order
    train = loading.load_task(dataclasses.replace(data, task="tasks.xnli:train_th"), vocabulary)
    assert list(train.splits) == ["train"]
    rows = list(train.source.get_dataset("train", shuffle=False).as_numpy_iterator())
    assert len(rows) == 4
    assert all(b"P th " in one["inputs"] and one["targets"] == b"contradiction" for one in rows)


def test_a_language_that_tfds_lacks():
    hypothesis = {"language": ["ar", "de"], "translation": ["x", "H de"]}
    record = {"premise": {"de": "P de 0"}, "hypothesis": hypothesis, "label": 0}
    task = XnliTask.held_out("de")
    assert (task.text("hypothesis", record), task.text("premise", record)) == ("H de", "P de 0")
    with pytest.raises(
        InputError, match="TFDS's xnli: a hypothesis has no text in 'sw'; the languages are"
    ):
        XnliTask.held_out("sw").text("hypothesis", record)
