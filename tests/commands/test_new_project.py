"""`t5x-lite init`: a project whose configs load, and whose data are read."""

import json
import sys

import pytest

from t5x_lite.commands.texts import init
from t5x_lite.core.errors import InputError
from t5x_lite.data.tasks.python_docs import Document


@pytest.fixture
def short_docs(monkeypatch):
    """A small corpus of two packages, of words that a vocabulary can be made of."""
    words = [f"{a}{b}" for a in ("array", "lexer", "matrix", "token", "value") for b in range(40)]
    docs = [
        Document(
            module=("numpy", "rust")[i % 2],
            name=f"f{i}",
            text=f"number {i} "
            + " ".join(words[(i * 7 + j * (1 + i % 5)) % 200] for j in range(14)),
        )
        for i in range(120)
    ]
    monkeypatch.setattr("t5x_lite.data.tasks.python_docs.documents", lambda: docs)
    monkeypatch.setattr("t5x_lite.commands.texts.PROJECT_PIECES", 120)


def test_the_project_is_whole(short_docs, tmp_path, monkeypatch):
    assert init(str(tmp_path / "mine")) == tmp_path / "mine"
    monkeypatch.chdir(tmp_path / "mine")
    names = sorted(str(p.relative_to(tmp_path / "mine")) for p in (tmp_path / "mine").rglob("*.*"))
    assert names == [
        "README.md",
        "configs/finetune.py",
        "configs/pretrain.py",
        "data/questions.jsonl",
        "data/questions.txt",
        "data/table/test.jsonl",
        "data/table/train.jsonl",
        "data/table/validation.jsonl",
        "data/text/documents.txt",
        "tasks/packages.py",
        "vocabulary/sentencepiece.model",
    ]
    assert (tmp_path / "mine" / "README.md").read_text().startswith("# mine\n")
    row = json.loads((tmp_path / "mine/data/table/train.jsonl").read_text().splitlines()[0])
    assert set(row) == {"text", "package"}
    with pytest.raises(InputError, match="exists and is not empty"):
        init(str(tmp_path / "mine"))


@pytest.fixture
def no_other_project():
    """Modules of this repository's configs and tasks, which other tests imported, are set aside."""

    def taken() -> dict:
        return {
            name: sys.modules.pop(name)
            for name in list(sys.modules)
            if name.partition(".")[0] in ("configs", "tasks")
        }

    others = taken()
    yield
    taken()
    sys.modules.update(others)


@pytest.mark.slow
def test_its_configs_and_its_task(short_docs, no_other_project, tmp_path, monkeypatch, capfd):
    from t5x_lite import cli

    monkeypatch.chdir(tmp_path)
    assert cli.main(["init", "mine"]) == 0
    monkeypatch.chdir(tmp_path / "mine")
    assert cli.main(["train", "configs/pretrain.py", "--dry-run"]) == 0
    assert "row 1, decoder_target_tokens: <extra_id_0>" in capfd.readouterr().out
    options = ["--dry-run", "--init.checkpoint", ""]
    assert cli.main(["train", "configs/finetune.py", *options]) == 0
    assert "row 1, encoder_input_tokens: documentation: " in capfd.readouterr().out
    assert not (tmp_path / "mine" / "work").exists()
