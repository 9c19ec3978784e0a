import json

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.evaluate.submission import write_squad


def test_answers_of_squad_v2(tmp_path):
    answers = [
        ({"id": "b", "question": "?"}, {"value": "Zürich", "null_odds": -2.5}),
        ({"id": "a"}, {"value": "", "null_odds": 1.25}),
    ]
    files = write_squad(answers, tmp_path / "out")
    assert files == [tmp_path / "out" / name for name in ("predictions.json", "null_odds.json")]
    assert [json.loads(file.read_text()) for file in files] == [
        {"b": "Zürich", "a": ""},
        {"b": -2.5, "a": 1.25},
    ]


def test_answers_of_squad_v1(tmp_path):
    (file,) = write_squad([({"id": "a"}, "it")], tmp_path)
    assert file.read_text() == '{\n "a": "it"\n}\n'
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file/predictions\.json: cannot be written"):
        write_squad([({"id": "a"}, "it")], tmp_path / "file")
