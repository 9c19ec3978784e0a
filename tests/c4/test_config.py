import dataclasses

import pytest

from t5x_lite.c4.config import (
    MC4_LANGUAGES,
    VARIANTS,
    Cleaning,
    missing_lists,
    paper,
    preset,
    released,
)
from t5x_lite.core.errors import InputError


def differences(one: Cleaning, two: Cleaning) -> dict[str, object]:
    """Fields of `two` that differ from `one`."""
    return {
        field.name: getattr(two, field.name)
        for field in dataclasses.fields(Cleaning)
        if getattr(one, field.name) != getattr(two, field.name)
    }


def test_released_is_the_default():
    assert released() == Cleaning() == preset()
    cleaning = released()
    assert (cleaning.max_chars, cleaning.max_word_chars) == (190_000, 1000)
    assert (cleaning.min_words, cleaning.min_sentences) == (5, 3)
    assert (cleaning.end_marks, cleaning.ellipsis) == ((".", "?", "!", '"'), "...")
    assert (cleaning.dedup, cleaning.min_language_probability) == ("lines", 0.99)
    assert not cleaning.splits_by_language


def test_paper_has_its_own_thresholds_and_none_of_the_later_rules():
    assert differences(released(), paper()) == {
        "max_chars": 0,
        "dedup_urls": False,
        "max_word_chars": 0,
        "remove_citations": False,
        "end_marks": (".", "!", "?", '"', "”"),
        "ellipsis": "",
        "min_words": 3,
        "page_rules_see": "page",
        "policies": (),
        "min_sentences": 5,
        "dedup": "spans",
        "min_sentences_after_dedup": 0,
    }


@pytest.mark.parametrize("variant", ["en", "realnewslike", "webtextlike"])
def test_variants_that_are_lists_change_no_rule(variant):
    assert preset("released", variant) == released()


def test_noclean():
    assert differences(released(), preset("released", "en.noclean")) == {
        "clean_lines": False,
        "dedup": "none",
        "min_sentences_after_dedup": 0,
    }


def test_multilingual():
    cleaning = preset("released", "multilingual")
    assert differences(released(), cleaning) == {
        "min_paragraphs": 3,
        "clean_lines": False,
        "min_sentences_after_dedup": 0,
        "languages": MC4_LANGUAGES,
        "languages_by": "cld3",
        "min_language_probability": 0.95,
        "keep_undetermined": True,
        "bad_words_fraction": 0.999,
    }
    assert (cleaning.dedup, cleaning.min_paragraph_chars) == ("lines", 200)
    assert cleaning.splits_by_language


def test_languages_of_mc4_are_those_of_the_reference():
    c4 = pytest.importorskip("tensorflow_datasets.text.c4")
    assert list(MC4_LANGUAGES) == c4.MC4_LANGUAGES


def test_lists_that_a_variant_lacks():
    assert [missing_lists(Cleaning(), variant) for variant in VARIANTS] == [
        ["bad_words"],
        [],
        ["domains", "bad_words"],
        ["urls", "bad_words"],
        ["bad_words"],
    ]
    assert missing_lists(Cleaning(bad_words="en.txt", urls="urls"), "webtextlike") == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_words": 0}, "min_words must be at least 1"),
        ({"min_sentences": -1}, "min_sentences must be at least 0"),
        ({"span_sentences": 0}, "span_sentences"),
        ({"bad_words_fraction": 1.5}, r"bad_words_fraction must be in \[0, 1\]: got 1.5"),
        ({"min_language_probability": float("nan")}, "min_language_probability"),
        ({"end_marks": ("",)}, 'end_marks contains ""'),
        ({"end_marks": (". ",)}, "not contain whitespace"),
        ({"end_marks": ("a b",)}, "not contain whitespace"),
        ({"ellipsis": " ..."}, "not contain whitespace"),
        ({"policies": ("Terms of Use",)}, "lower case"),
        ({"policies": ("terms\nof use",)}, "policies"),
        ({"languages": (), "keep_undetermined": True}, "keep_undetermined"),
        ({"allowed_bad_words": ("sm",)}, '"language:word"'),
    ],
)
def test_contradictions_are_refused(options, message):
    with pytest.raises(InputError, match=message) as error:
        Cleaning(**options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("name", "variant"), [("release", "en"), ("paper", "de")])
def test_unknown_names_list_what_there_is(name, variant):
    with pytest.raises(InputError, match="choose one of"):
        preset(name, variant)
