"""Porter's stems: examples of the paper, and another implementation."""

import re
from pathlib import Path

import pytest

from t5x_lite.retrieval.analyzers import stem


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("caresses", "caress"), ("ponies", "poni"), ("ties", "ti"), ("cats", "cat"),
        ("feed", "feed"), ("agreed", "agre"), ("plastered", "plaster"), ("bled", "bled"),
        ("motoring", "motor"), ("sing", "sing"), ("conflated", "conflat"), ("sized", "size"),
        ("hopping", "hop"), ("falling", "fall"), ("hissing", "hiss"), ("failing", "fail"),
        ("filing", "file"), ("happy", "happi"), ("sky", "sky"), ("relational", "relat"),
        ("conditional", "condit"), ("rational", "ration"), ("digitizer", "digit"),
        ("conformabli", "conform"), ("possibly", "possibl"), ("radicalli", "radic"),
        ("vietnamization", "vietnam"), ("sensibiliti", "sensibl"), ("triplicate", "triplic"),
        ("goodness", "good"), ("revival", "reviv"), ("adoption", "adopt"), ("probate", "probat"),
        ("rate", "rate"), ("cease", "ceas"), ("controll", "control"), ("roll", "roll"),
        ("apology", "apolog"), ("geology", "geologi"), ("as", "as"), ("y", "y"), ("", ""),
        ("generalizations", "gener"), ("oscillators", "oscil"), ("yyy", "yyi"),
    ],
)  # fmt: skip
def test_stems(word, expected):
    assert stem(word) == expected


@pytest.mark.slow
def test_as_another_implementation_stems():
    nltk = pytest.importorskip("nltk.stem.porter")
    other = nltk.PorterStemmer(mode=nltk.PorterStemmer.MARTIN_EXTENSIONS)
    root = Path(__file__).parents[2]
    text = " ".join(path.read_text() for path in sorted(root.glob("docs/**/*.md"))).lower()
    found = set(re.findall("[a-z']+", text))
    assert len(found) > 1000
    assert {word: stem(word) for word in found} == {word: other.stem(word) for word in found}
