"""XNLI's files: languages by column, the translations' words, and the mean of 15."""

from pathlib import Path

import pytest

from t5x_lite.data.tasks.xnli_files import LANGUAGES, XnliTask
from t5x_lite.errors import InputError
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
    with pytest.raises(InputError, match=r"xnli\.dev\.tsv:2: gold_label 'maybe' is none of"):
        list(XnliTask.held_out("en").records(file, "validation"))


def test_the_mean_of_15():
    scores = {f"xnli_{language}": {"accuracy": i / 15} for i, language in enumerate(LANGUAGES)}
    assert XNLI.score(scores) == pytest.approx(7 / 15)
    assert tuple(XNLI.rows) == LANGUAGES
    assert XNLI.missing({"xnli_en": {"accuracy": 1.0}}) == [n for n in LANGUAGES if n != "en"]
