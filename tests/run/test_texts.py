"""report prints the path of the page that it wrote."""

import json

from t5x_lite.run.texts import report


def test_report(tmp_path, capsys):
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1, "loss": 2.5}) + "\n")
    report(str(tmp_path))
    assert capsys.readouterr().out == f"{tmp_path / 'report.html'}\n"
    assert "2.5" in (tmp_path / "report.html").read_text()
    report(str(tmp_path), output=str(tmp_path / "page.html"))
    assert capsys.readouterr().out == f"{tmp_path / 'page.html'}\n"
    assert (tmp_path / "page.html").is_file()
