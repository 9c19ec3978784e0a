import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.report.page import write_suite_page


def test_all_numbers_are_on_the_page(tmp_path):
    result = {
        "mean": {"ndcg@10": 0.375},
        "sets": {"nq": {"ndcg@10": 0.5}, "<b>": {"ndcg@10": 0.25}},
        "missing": ["fiqa"],
    }
    write_suite_page(tmp_path / "page.html", "beir", result)
    text = (tmp_path / "page.html").read_text()
    for expected in ("BEIR", "0.3750", "0.5000", "&lt;b&gt;", "missing sets: fiqa"):
        assert expected in text
    with pytest.raises(InputError, match="cannot be written"):
        write_suite_page(tmp_path / "no" / "page.html", "beir", result)
