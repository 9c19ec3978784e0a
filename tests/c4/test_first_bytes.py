import random

import pytest

from t5x_lite.c4.bad_words import FirstBytes


@pytest.mark.parametrize(
    ("entries", "text", "found"),
    [
        (["bad"], "A bad one, BAD badly badge_ bad", ["bad", "bad", "bad"]),
        (["bad day"], "A BAD-day, bad days.", ["bad day"]),
        (["s&m"], "s m", ["s&m"]),
        (["s&m", "s-m"], "S+M!", ["s&m", "s-m"]),
        (["bad"], "ébadé", ["bad"]),
        (["longer entry", "longer"], "the longer entry", ["longer entry", "longer"]),
        (["longest"], "longes longestt alongest", []),
        (["$$$"], "a $$$ b", ["$$$"]),
        (["bad"], "", []),
        (["ab", "c", "$"], "AB-c $ abc", ["c", "$", "ab"]),
        (["$", "ab"], "a  b", ["$"]),
        ([], "a", []),
        (["end"], "the end", ["end"]),
        (["a 1_"], "A.1_", ["a 1_"]),
    ],
)
def test_candidates(entries, text, found):
    assert FirstBytes(entries).candidates(text.encode()) == found


def test_equal_to_a_search_for_each_entry():
    generator = random.Random(0)

    def word(longest):
        return "".join(generator.choices("abc ", k=generator.randrange(1, longest)))

    for _ in range(60):
        entries = sorted({entry for _ in range(12) if (entry := word(9).strip())})
        table = FirstBytes(entries)
        text = "".join(generator.choices("abc -", weights=(3, 3, 3, 2, 1), k=400))
        normal = f" {text.replace('-', ' ')} "
        expected = {entry for entry in entries if f" {entry} " in normal}
        assert set(table.candidates(text.encode())) == expected
