"""vocab and report print the path of what they wrote."""

import json

from t5x_lite.run.texts import report, vocab
from t5x_lite.vocabulary.loading import load_vocabulary


def test_vocab(tmp_path, english_lines, capsys):
    texts = [tmp_path / "a.txt", tmp_path / "b.txt"]
    texts[0].write_text("\n".join(english_lines[:200]))
    texts[1].write_text("\n".join(english_lines[200:400]))
    vocab([str(text) for text in texts], output=str(tmp_path / "vocabulary"), size=300)
    model = tmp_path / "vocabulary" / "sentencepiece.model"
    assert capsys.readouterr().out == f"{model}\n"
    assert load_vocabulary(tmp_path / "vocabulary").size == 300 + 100


def test_report(tmp_path, capsys):
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1, "loss": 2.5}) + "\n")
    report(str(tmp_path))
    assert capsys.readouterr().out == f"{tmp_path / 'report.html'}\n"
    assert "2.5" in (tmp_path / "report.html").read_text()
    report(str(tmp_path), output=str(tmp_path / "page.html"))
    assert capsys.readouterr().out == f"{tmp_path / 'page.html'}\n"
    assert (tmp_path / "page.html").is_file()
