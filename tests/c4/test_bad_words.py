import logging
import re
import sys
import time

import hypothesis
import hypothesis.strategies as st
import pytest

from t5x_lite.c4.bad_words import BadWords, BadWordsFilter, load_bad_words
from t5x_lite.c4.config import Cleaning, preset
from t5x_lite.c4.pages import Page, Tally, url_number
from t5x_lite.core.errors import InputError


@pytest.mark.parametrize(
    ("entries", "text", "found"),
    [
        (["ass"], "I asked for assistance polishing my cutlass.", None),
        (["ass"], "He took the saddle and put it on his ASS in preparation.", "ass"),
        (["ass"], "Ass", "ass"),
        (["ass"], 'One synonym is the word "ass".', "ass"),
        (["ass"], "“ass”", "ass"),
        (["ass"], "assé éass ass_ 1ass", None),
        (["ass"], "ass\u0301", "ass"),  # a combining accent is no word character
        (["s&m"], "s m, s-m", None),
        (["s&m", "s m"], "It is S&M.", "s&m"),
        (["a.b", "a+"], "a+ b, axb", "a+"),
        (["(a", "[b]", "^c$", "d|e", "\\w"], "x d|e y", "d|e"),
        (["(a", "[b]", "^c$", "d|e", "\\w"], "a b c d e", None),
        (["two words"], "two\nwords", None),
        (["two words"], "Two words!", "two words"),
        (["🖕"], "Look: 🖕!", "🖕"),
        (["🖕"], "a🖕", None),
        (["ok", "ik"], "o\N{KELVIN SIGN}", "ok"),
        (
            ["i"],
            "\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}",
            "i",
        ),  # lower() makes two characters of it
        (["Capital"], "Capital", None),
        (["  "], "a  b", None),
        (["$$"], "a $$ b", "$$"),
        ([], "anything", None),
        (["a"], "", None),
        (["nul"], "\x00nul\x00", "nul"),
    ],
)
def test_find(entries, text, found):
    assert BadWords(entries).find(text) == found


def test_without_boundaries():
    words = BadWords(["グロい", "sm"], word_boundaries=False)
    assert words.find("これはグロいです") == "グロい"
    assert words.find("PRISM") == "sm"
    assert words.find("これは") is None
    many = BadWords([f"語{number}x" for number in range(9)], word_boundaries=False)
    assert many.find("日本語3X") == "語3x"


ALPHABET = "ab& -_é🖕\u0130\u212aſß\n\u0301"  # dotted capital I, Kelvin sign, long s


@hypothesis.given(
    entries=st.lists(st.text("ab& -_é🖕ik", min_size=1, max_size=4), min_size=1, max_size=9),
    text=st.text(ALPHABET, max_size=12),
)
@hypothesis.settings(max_examples=300)
@pytest.mark.slow
def test_equal_to_the_regular_expression(entries, text):
    pattern = re.compile(r"(?:\W|^)({})(?:\W|$)".format("|".join(map(re.escape, entries))))
    assert (BadWords(entries).find(text) is not None) == bool(pattern.search(text.lower()))
    anywhere = re.compile("|".join(map(re.escape, entries)))
    unbounded = BadWords(entries, word_boundaries=False)
    assert (unbounded.find(text) is not None) == bool(anywhere.search(text.lower()))


def page(number=0, text="A bad page.", language="en"):
    return Page(f"http://a.com/{number}", text, "", "", "", language)


def test_filter_with_one_list(tmp_path):
    path = tmp_path / "en.txt"
    path.write_text("bad\n\n  worse  \n")
    words, tally = BadWordsFilter(Cleaning(bad_words=str(path))), Tally()
    assert words.keep(page(), tally) is None
    assert words.keep(page(text="Badly."), tally) == page(text="Badly.")
    assert words.keep(page(text="It is worse.", language=""), tally) is None
    assert tally.rules["bad_words"]["bad_word"]["pages"] == 2
    assert tally.stages["bad_words"]["pages_in"] == 3


def test_filter_drops_a_share_by_url(tmp_path):
    path = tmp_path / "en.txt"
    path.write_text("bad")
    words, tally = BadWordsFilter(Cleaning(bad_words=str(path), bad_words_fraction=0.75)), Tally()
    for number in range(200):
        stays = words.keep(page(number), tally) is not None
        assert stays == (url_number(page(number).url) % 4 >= 3)
    assert 20 < tally.notes["bad_word_pages_kept"] < 80


def test_filter_off():
    for cleaning in (Cleaning(), Cleaning(bad_words="nowhere", bad_words_fraction=0.0)):
        assert BadWordsFilter(cleaning).keep(page(), Tally()) == page()


def test_lists_by_language(tmp_path):
    for name, text in {
        "en": "bad",
        "fr": "mal",
        "fr-CA-u-sd-caqc": "tab",
        "ja.txt": "sm\n女",
    }.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "README.md").write_text("bad")
    (tmp_path / "LICENSE").write_text("tab")
    words = BadWordsFilter(Cleaning(bad_words=str(tmp_path)))
    expected = {
        ("bad", "en"): False,
        ("bad", "en-Latn"): False,
        ("bad", "de"): True,
        ("bad", "fr"): True,
        ("mal", "fr"): False,
        ("tab", "fr"): False,
        ("sm", "ja"): True,  # among allowed_bad_words
        ("美女です", "ja"): False,  # no boundaries
    }
    for (text, language), stays in expected.items():
        assert (words.keep(page(0, text, language), Tally()) is not None) == stays


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\xff\xfe"])
def test_lists_that_cannot_be_read(tmp_path, content):
    path = tmp_path / "list"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"cleaning\.bad_words"):
        load_bad_words(path)
    with pytest.raises(InputError, match="cannot read"):
        load_bad_words(tmp_path / "nothing")


def test_one_list_for_many_languages_is_refused(tmp_path):
    (tmp_path / "en.txt").write_text("bad")
    cleaning = preset("released", "multilingual")
    cleaning = Cleaning(languages=cleaning.languages, bad_words=str(tmp_path / "en.txt"))
    with pytest.raises(InputError, match="directory of lists"):
        BadWordsFilter(cleaning)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="has no file named after a language"):
        BadWordsFilter(Cleaning(bad_words=str(tmp_path / "empty")))


def test_empty_entries_and_capitals(tmp_path, caplog):
    with pytest.raises(InputError, match='contains ""'):
        BadWords(["a", ""])
    (tmp_path / "list").write_text("\ufeffa\nB\na\n", encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        assert load_bad_words(tmp_path / "list") == ["a", "B"]
    assert "1 entries have capital letters" in caplog.text


def test_without_pyahocorasick(monkeypatch):
    monkeypatch.setitem(sys.modules, "ahocorasick", None)
    with pytest.raises(InputError, match=r'pip install -e "\.\[c4\]"'):
        BadWords([f"é{number}" for number in range(9)])
    assert BadWords(["bad", "é"]).find("It is bad.") == "bad"


def test_no_character_without_case_comes_from_another_by_lower_case():
    """What lets entries without case be looked for in the text before it is lower-cased."""
    made = {
        made
        for character in map(chr, range(sys.maxunicode + 1))
        for made in character.lower()
        if made != character
    }
    assert {made for made in made if made.lower() == made == made.upper()} == {"\u0307"}


@pytest.mark.parametrize(
    "text", [" " * 1_000_000, "a" * 1_000_000, "a " * 500_000, "éa b" * 250_000, "&" * 1_000_000]
)
def test_adversarial_text_takes_linear_time(text):
    words = BadWords(
        ["$$", "   ", "a&a", "a a a", "& &", "aaaaaaaab", *(f"é{n}" for n in range(9))]
    )
    start = time.process_time()
    words.find(text)
    assert time.process_time() - start < 10
