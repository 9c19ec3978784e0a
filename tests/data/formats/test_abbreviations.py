from t5x_lite.data.formats.documents import ABBREVIATIONS


def test_words_that_also_end_sentences_are_left_out():
    assert {"mr", "e.g", "u.s.a", "wis"} <= ABBREVIATIONS
    assert not {"no", "sat", "mass", ""} & ABBREVIATIONS
    assert all(word == word.lower() and not word.endswith(".") for word in ABBREVIATIONS)
