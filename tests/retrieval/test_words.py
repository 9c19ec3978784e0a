"""Words against the table of UAX #29's rules, and against another implementation."""

import random
import unicodedata

import pytest

from t5x_lite.retrieval.analyzers import words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Can't stop: 3.14 is o'clock's", ["Can't", "stop", "3.14", "is", "o'clock's"]),
        ("a.b.c. 1,000.5; 3:4 a:b", ["a.b.c", "1,000.5", "3", "4", "a:b"]),
        ("x_1__y _ __ 2nd B52", ["x_1__y", "2nd", "B52"]),
        ("café naïve e\u0301te\u0301", ["café", "naïve", "e\u0301te\u0301"]),
        ("日本のテレビ", ["日", "本", "の", "テレビ"]),
        ("한국어 단어", ["한국어", "단어"]),
        ("สวัสดีครับ ไทย", ["สวัสดีครับ", "ไทย"]),
        ("אב\"ג ד'", ['אב"ג', "ד'"]),
        ("don\u2019t — “quoted”", ["don\u2019t", "quoted"]),
        ("١٢٣٫٤ ہے", ["١٢٣٫٤", "ہے"]),
        ("soft\u00adhyphen zero\u200bwidth", ["soft\u00adhyphen", "zero", "width"]),
        ("😀 🇩🇪 ...", []),
        ("", []),
    ],
)
def test_words(text, expected):
    assert words(text) == expected


def test_a_long_word_is_cut():
    assert [len(word) for word in words("a" * 600)] == [255, 255, 90]


def test_no_text_takes_long():
    for text in ("a." * 50_000, "_" * 100_000, "a_" * 50_000, "1," * 50_000, "é'" * 50_000):
        words(text)


def segments(regex, text):
    """The words of the `regex` package: segments with a letter or digit in them."""
    # It has no boundary between what extends or joins and the letter behind, where nothing stands
    # before.
    parts = [part.lstrip("\u00ad\u200d\u0301'’.:;,") for part in regex.split(r"(?V1w)\b", text)]
    return [part for part in parts if regex.search(r"[\p{L}\p{N}\u24b6-\u24e9]", part)]


def test_as_another_implementation_divides():
    regex = pytest.importorskip("regex")
    rng = random.Random(0)
    alphabet = [
        "ab1٣é_-.,:;'\"’ г日のカー한·",
        "".join(
            c
            for c in map(chr, range(0x20, 0x3000))
            if unicodedata.category(c)[0] in "LNPZ"
            and unicodedata.category(c) not in ("No", "Lo")
            and not 0x0E00 <= ord(c) < 0x0F00
        ),
    ]
    different = []
    for i in range(1000):
        text = "".join(rng.choices(alphabet[i % 2], k=rng.randint(1, 12)))
        ours = [word for word in words(text) if regex.search(r"[\p{L}\p{N}\u24b6-\u24e9]", word)]
        if ours != segments(regex, text):
            different.append((text, ours, segments(regex, text)))
    assert different == []
