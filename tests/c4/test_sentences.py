import sys
import time

import hypothesis
import hypothesis.strategies as st
import pytest

from t5x_lite.c4.cleaning import SentenceCounter, load_counter
from t5x_lite.core.errors import InputError
from t5x_lite.data.formats.documents import ABBREVIATIONS


@pytest.fixture(scope="module")
def counter():
    return load_counter(installed=False)


def test_sentences(counter):
    text = 'Dr. Roberts came at 5 p.m. on Jan. 3. "He stayed." Did he? Yes!'
    assert counter.sentences(text) == [
        "Dr. Roberts came at 5 p.m. on Jan. 3.",
        '"He stayed."',
        "Did he?",
        "Yes!",
    ]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("  \n ", 0),
        ("No end mark", 1),
        ("One line.\nTwo lines.", 2),
        ("It ends in etc.\nSo it goes on.", 1),
        ("This line looks like it has three sentences...but it's actually just 1.", 1),
        ("What?! No... Really?!!", 4),
        (". . . .", 4),
        ("He is ill. I said no. The cat sat. It rained.", 4),
    ],
)
def test_counts(counter, text, count):
    assert len(counter.sentences(text)) == count
    for limit in range(6):
        assert counter.count(text, limit=limit) == min(limit, count)
        assert counter.at_least(text, limit) == (count >= limit)


PIECES = ["word", "etc", "Dr", "A", "3", "no", "Next", "next", "é", "x", "U.S", "a-b", "mid-etc"]
MARKS = [".", "!", "?", "...", ",", '."', ".)", "--", ".[", "", "", "", "?!", " .", "”"]
SPACES = [" ", " ", " ", "\n", "", "  ", "\u00a0", "\x1c", "\t", ' "', " ("]


@hypothesis.given(
    st.lists(st.tuples(*map(st.sampled_from, (PIECES, MARKS, SPACES))), max_size=14),
    st.sampled_from([{"etc", "dr", "u.s"}, set()]),
    st.sampled_from([set(), {("word", "next"), ("no", "next")}]),
)
@hypothesis.settings(max_examples=500)
@pytest.mark.slow
def test_bounds_agree_with_punkt(pieces, abbreviations, collocations):
    from nltk.tokenize import punkt

    parameters = punkt.PunktParameters()
    parameters.abbrev_types = abbreviations
    parameters.collocations = collocations
    counter = SentenceCounter(parameters, name="")
    text = "".join(piece for group in pieces for piece in group)
    count = len(counter.sentences(text))
    assert [counter.count(text, limit=n) for n in range(8)] == [min(n, count) for n in range(8)]


def test_counting_stops_early_and_agrees_with_nltk(counter, english_lines):
    from nltk.tokenize import punkt

    parameters = punkt.PunktParameters()
    parameters.abbrev_types = set(ABBREVIATIONS)
    nltk = punkt.PunktSentenceTokenizer(parameters)
    texts = ["\n".join(english_lines[start : start + 4]) for start in range(0, 200, 4)]
    for text in texts:
        theirs = nltk.tokenize(text)
        assert counter.sentences(text) == theirs
        assert [counter.count(text, limit=n) for n in range(5)] == [
            min(n, len(theirs)) for n in range(5)
        ]


def test_name_says_what_was_used(counter, monkeypatch, tmp_path):
    import nltk

    assert counter.name == f"nltk {nltk.__version__} punkt, built-in English abbreviations"
    folder = tmp_path / "tokenizers" / "punkt_tab" / "english"
    folder.mkdir(parents=True)
    (folder / "abbrev_types.txt").write_text("zz\n")
    for name in ("collocations.tab", "sent_starters.txt", "ortho_context.tab"):
        (folder / name).write_text("")
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    load_counter.cache_clear()
    found = load_counter()
    assert found.name == f"nltk {nltk.__version__} punkt, punkt_tab/english"
    assert len(found.sentences("A zz. Dr. Smith.")) == 2
    monkeypatch.setattr(nltk.data, "path", [])
    load_counter.cache_clear()
    assert load_counter().name == counter.name
    load_counter.cache_clear()


def test_without_nltk(monkeypatch):
    monkeypatch.setitem(sys.modules, "nltk", None)
    load_counter.cache_clear()
    with pytest.raises(InputError, match=r'pip install -e "\.\[c4\]"'):
        load_counter(installed=False)
    load_counter.cache_clear()


def test_no_pattern_has_a_limit_of_wall_clock(counter):
    """NLTK 3.10's patterns give up after five seconds: a busy machine would change the data."""
    tokenizer = counter._tokenizer
    patterns = [
        tokenizer._lang_vars.period_context_re(),
        tokenizer._lang_vars._word_tokenizer_re(),
        tokenizer._lang_vars.re_boundary_realignment,
        tokenizer._Token._RE_NUMERIC,
    ]
    assert [type(pattern).__name__ for pattern in patterns] == ["Pattern"] * 4
    assert isinstance(counter, SentenceCounter)


@pytest.mark.parametrize(
    "text",
    [piece * 80_000 for piece in (" ", "a", ".", "!", ". ", "-", "[", '"', "a.b", "1,", ".)")],
    ids=lambda text: repr(text[:3]),
)
def test_adversarial_text_takes_linear_time(counter, text):
    start = time.process_time()
    counter.at_least(f"It is. {text}. And so.", 1_000_000)
    assert time.process_time() - start < 10
