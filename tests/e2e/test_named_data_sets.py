"""Named data sets and retrieval augmentation by commands: from files to the printed result."""

import json

import pytest

from t5x_lite.cli import main
from tests import tokenizer_files
from tests.data.formats import test_released_files as released
from tests.data.formats.test_suites import write_narrative

CONFIG = """
from t5x_lite.config import Checkpoints, Evaluation, Experiment
from t5x_lite import layouts
from t5x_lite.data.preprocessors import Columns
from t5x_lite.data.config import Data
from t5x_lite.models.encoder import BertConfig
from t5x_lite.models.t5 import T5Config
from t5x_lite.objectives.task_heads import Choose
from t5x_lite.objectives.contrastive import Contrastive
from t5x_lite.objectives.likelihood import Seq2Seq
from t5x_lite.optim.config import AdamW
from t5x_lite.optim.config import Constant

bert = BertConfig(vocab_size={size}, d_model=16, d_ff=32, num_heads=2, num_layers=1,
                  max_positions=32, token_types=2, dropout_rate=0.0)
t5 = T5Config(vocab_size={size}, d_model=16, d_kv=8, d_ff=32, num_heads=2, num_encoder_layers=1,
              num_decoder_layers=1, dropout_rate=0.0)
data = Data(task="{task}", layout={layout}, vocabulary={vocabulary!r}, directory="files",
            batch_size=4, inputs_length=32, targets_length=16, pack=False,
            columns=Columns(inputs="{{question}}", targets="{{answer}}", id="id"))
experiment = Experiment(model={model}, objective={objective}, data=data,
                        optimizer=AdamW(schedule=Constant(value=1e-3)), steps=2,
                        checkpoints=Checkpoints(period=2),
                        evaluation=Evaluation(period=2, batch_size=4, max_decode_length=4))
"""
WORDS = ["the dog run", "a cat sat", "dogs run the", "cat and dog"]


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A function that writes config.py for a task; the test runs in its directory."""
    from t5x_lite.data.vocabularies.loading import load_vocabulary

    monkeypatch.chdir(tmp_path)
    (tmp_path / "files").mkdir()
    vocabulary = str(tokenizer_files.write_wordpiece(tmp_path))

    def write(**options):
        size = load_vocabulary(vocabulary).size
        (tmp_path / "config.py").write_text(
            CONFIG.format(vocabulary=vocabulary, size=size, **options)
        )

    return write


def printed(capsys, *arguments):
    """What a command prints, which ends with exit code 0."""
    capsys.readouterr()
    assert main([*map(str, arguments)]) == 0
    return capsys.readouterr().out


def refused(capsys, *arguments):
    """The one line of a command that ends with exit code 2."""
    capsys.readouterr()
    assert main([*map(str, arguments)]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert len(lines) == 1
    return lines[0]


@pytest.mark.slow
def test_race_and_swag_by_an_encoder(config, tmp_path, capsys, compile_once):
    config(
        task="tasks.choices:race",
        layout="layouts.Choices(num=4)",
        model="bert",
        objective="Choose()",
    )
    released.write_race(tmp_path / "files", WORDS)
    printed(capsys, "train", "config.py", "--workdir", "w")
    result = json.loads(printed(capsys, "evaluate", "w/config.json", "--checkpoint", "w"))
    assert 0 <= result["validation/accuracy"] <= 1
    released.write_swag(tmp_path / "files", WORDS)
    swag = ["evaluate", "w/config.json", "--data.task", "tasks.choices:swag", "--checkpoint", "w"]
    assert 0 <= json.loads(printed(capsys, *swag))["validation/accuracy"] <= 1
    (tmp_path / "files" / "val.csv").write_text(released.SWAG_HEAD.replace("ending3,", "") + "\n")
    assert "val.csv:1: the header lacks ending3" in refused(capsys, *swag)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["squad", "pubmedqa", "mrtydi", "tevatron", "triviaqa"])
def test_pairs_of_named_data_sets(config, tmp_path, capsys, name):
    config(
        task=f"tasks.pairs:{name}",
        layout="layouts.Groups()",
        model="bert",
        objective="Contrastive()",
    )
    (released.write_trivia if name == "triviaqa" else released.write_pairs)(
        tmp_path / "files", WORDS
    )
    assert "query_tokens: " in printed(capsys, "train", "config.py", "--dry-run", "--workdir", "w")
    for path in (tmp_path / "files").rglob("*"):
        if path.is_file():
            path.write_bytes(b"")
    assert str(tmp_path / "files")[-5:] in refused(capsys, "train", "config.py", "--workdir", "v")
    assert not (tmp_path / "v").exists()


def test_suites(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_narrative(tmp_path / "narrative")
    command = ["evaluate-suite", "narrativeqa", "--directory", "narrative", "--bm25", "standard"]
    result = json.loads(printed(capsys, *command, "--output", "one"))
    assert list(result["sets"]) == ["narrativeqa"]
    assert result["missing"] == []
    # "Who, then?" and "Who else?" have a word of their story, and "Why?" has none.
    assert result["mean"]["ndcg@10"] == pytest.approx(2 / 3)
    released.write_tydi(tmp_path / "tydi", WORDS)
    command = ["evaluate-suite", "mrtydi", "--directory", "tydi", "--bm25", "whitespace"]
    result = json.loads(printed(capsys, *command, "--output", "two"))
    assert result["mean"] == {"mrr@100": 1.0, "recall@100": 1.0}
    assert len(result["missing"]) == 10
    (tmp_path / "narrative" / "qaps.csv").write_bytes(b"")
    command = ["evaluate-suite", "narrativeqa", "--directory", "narrative", "--bm25", "standard"]
    assert "qaps.csv: the file is empty" in refused(capsys, *command, "--output", "three")


def test_pairs_of_text_and_of_lines_with_scores(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = " ".join(f"The word {i} is in this sentence." for i in range(40))
    (tmp_path / "a.jsonl").write_text(json.dumps({"title": "Words", "text": text}))
    command = ["pairs", "--input", "a.jsonl", "--rule", "ict", "--seed", "4"]
    printed(capsys, *command, "--output", "ict.jsonl")
    lines = (tmp_path / "ict.jsonl").read_text().splitlines()
    assert len(lines) == 2
    for line in map(json.loads, lines):
        assert line["query"].startswith("The word ")
        assert line["pos"][0].startswith("Words The word ")
    (tmp_path / "a.tsv").write_text("1.1\tein Hund läuft\ta dog runs\n0.9\tx y z\tx y z\n")
    command = "pairs --input a.tsv --rule parallel --languages de en --min-passage-words 2"
    printed(capsys, *command.split(), "--min-score", "1.0", "--output", "de.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "de.jsonl").read_text().splitlines()]
    assert [one["query"] for one in lines] == ["ein Hund läuft", "a dog runs"]
    (tmp_path / "a.tsv").write_text("ein Hund\ta dog\n")
    message = refused(capsys, *command.split(), "--min-score", "1.0", "--output", "no.jsonl")
    assert "a.tsv:1: the line has no score" in message
    assert not (tmp_path / "no.jsonl").exists()


@pytest.mark.slow
def test_passages_of_bm25_behind_questions(config, tmp_path, capsys, compile_once):
    config(
        task="tasks.files:answer",
        layout="layouts.Seq2Seq()",
        model="t5",
        objective="Seq2Seq()",
    )
    files = tmp_path / "files"
    corpus = [{"_id": f"d{i}", "title": "", "text": text} for i, text in enumerate(WORDS)]
    (files / "passages.jsonl").write_text(released.lines_of(*corpus))
    for split in ("train", "validation"):
        rows = [{"id": f"{split}{i}", "question": x, "answer": "dog"}
                for i, x in enumerate(WORDS)]  # fmt: skip
        (files / f"{split}.jsonl").write_text(released.lines_of(*rows))
        queries = [{"_id": row["id"], "text": row["question"]} for row in rows]
        (tmp_path / f"{split}.queries.jsonl").write_text(released.lines_of(*queries))
    printed(capsys, "bm25", "build", "--input", "files/passages.jsonl", "--output", "index")
    for split in ("train", "validation"):
        command = f"bm25 search --index index --queries {split}.queries.jsonl --output {split}.trec"
        printed(capsys, *command.split())
    augment = "--data.augment.run {split}.trec --data.augment.passages files/passages.jsonl"
    command = ["train", "config.py", *augment.split(), "--data.augment.k", "1"]
    dry = [*command, "--dry-run", "--data.shuffle", "False", "--workdir", "w"]
    rows = printed(capsys, *dry).splitlines()
    assert any(row.count("the dog run") == 2 for row in rows)  # the question, and its passage
    printed(capsys, *command, "--workdir", "w")
    result = json.loads(printed(capsys, "evaluate", "w/config.json", "--checkpoint", "w"))
    assert result["validation/f1"] >= 0
    (tmp_path / "validation.trec").write_text("")
    message = refused(capsys, "evaluate", "w/config.json", "--checkpoint", "w")
    assert "4 of the 4 examples of the split validation have no passages" in message
