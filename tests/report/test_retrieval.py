"""The page of runs: all numbers, and nothing of an id is markup."""

import html.parser

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.report.compare import Measured
from t5x_lite.report.compare import write_retrieval_page as write_page

HOSTILE = '<script>alert("1")</script>'


class Reader(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.words = set(), []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)

    def handle_data(self, data):
        self.words.append(data)


def measured(name, *values):
    by_query = {f"{HOSTILE}{i}": {"map": value} for i, value in enumerate(values)}
    curves = {"ndcg": [(1, 0.25), (10, 0.5)], "recall": [(1, 0.1), (10, 0.2)]}
    return Measured(name, {"map": sum(values) / len(values)}, by_query, curves)


def read(path):
    reader = Reader()
    reader.feed(path.read_text())
    return reader


def test_two_runs(tmp_path):
    runs = [measured("one", 0.5, 0.25), measured("two", 0.25, 0.25)]
    result = {"p_values": {"two": {"map": 0.125}}}
    write_page(tmp_path / "page.html", runs, result, source=HOSTILE)
    page = read(tmp_path / "page.html")
    assert "script" not in page.tags
    assert {"svg", "table"} <= page.tags
    words = " ".join(page.words)
    for expected in ("0.3750", "0.2500", "-0.1250", "0.125", "two against one", "1 worse, 1 equal"):
        assert expected in words


def test_one_run(tmp_path):
    write_page(tmp_path / "page.html", [measured("one", 1.0)], {}, source="qrels")
    page = read(tmp_path / "page.html")
    assert "randomization" not in " ".join(page.words)


def test_a_page_that_cannot_be_written(tmp_path):
    with pytest.raises(InputError, match="cannot be written"):
        write_page(tmp_path / "no" / "page.html", [measured("one", 1.0)], {}, source="")
