import pytest

from t5x_lite.evaluate.submission import dump, load, sentence

EU = {"words": "EU\nrejects", "targets_pretokenized": "B-ORG O"}


def test_a_word_its_tag_and_the_predicted_one():
    found = sentence(EU, "B-LOC O")
    assert found == ([("EU", "B-ORG", "B-LOC"), ("rejects", "O", "O")], True)
    bare = {**EU, "words": "New York\n", "targets_pretokenized": "<unk>"}
    assert sentence(bare, "B-LOC O") == ([("New_York", "B-LOC"), ("_", "O")], True)
    assert sentence(EU, "B-LOC") == ([("EU", "B-ORG", "B-LOC"), ("rejects", "O", "O")], False)
    assert sentence({}, "nan") == ([], False)


def test_the_file():
    rows = [((0,), [("EU", "B-ORG", "B-LOC"), ("rejects", "O", "O")]), ((1,), [(".", "O", "O")])]
    text = "EU B-ORG B-LOC\nrejects O O\n\n. O O\n\n"
    assert dump(rows) == text
    assert load(text) == rows
    assert load("EU B-ORG\n\n") == [((0,), [("EU", "B-ORG")])]
    for damaged in ("EU B-ORG\nrejects\n\n", "EU\n\n", "a b c d\n\n", "EU O O\na  O O\n\n"):
        with pytest.raises(ValueError, match=r"line \d must have a word and its tags"):
            load(damaged)
