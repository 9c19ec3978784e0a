import sys
import types

import pytest

from t5x_lite.c4.cleaning import LanguageIdentifier
from t5x_lite.c4.config import Cleaning, preset
from t5x_lite.c4.pages import Page, Tally
from t5x_lite.core.errors import InputError

ENGLISH = "This is a page of plain English, and there is no doubt about that at all."
GERMAN = "Diese Seite ist auf Deutsch geschrieben, daran gibt es gar keinen Zweifel."


def page(text):
    return Page("http://a.com", text, "", "", "")


@pytest.fixture(scope="module")
def english():
    pytest.importorskip("langdetect")
    return LanguageIdentifier(Cleaning())


@pytest.mark.parametrize(
    ("text", "language", "rule"),
    [
        (ENGLISH, "en", None),
        (GERMAN, None, "other_language"),
        (f"{ENGLISH} {GERMAN}", None, "low_confidence"),
        ("12345 !!!", None, "no_features"),
        ("", None, "no_features"),
    ],
)
def test_langdetect(english, text, language, rule):
    tally = Tally()
    found = english.keep(page(text), tally)
    assert (found.language if found else None) == language
    assert list(tally.rules.get("language", {})) == ([rule] if rule else [])
    assert tally.stages["language"]["pages_in"] == 1


def test_the_same_page_gets_the_same_answer_after_others(english):
    mixed = page(f"{ENGLISH} {GERMAN}")
    first = english._guess(mixed.text)
    for text in (ENGLISH, GERMAN, "x y z"):
        english.keep(page(text), Tally())
    assert english._guess(mixed.text) == first


def test_without_languages_every_page_passes():
    found = LanguageIdentifier(Cleaning(languages=())).keep(page(GERMAN), Tally())
    assert found == page(GERMAN)


def fake_cld3(answers):
    class Identifier:
        def __init__(self, min_num_bytes, max_num_bytes):
            assert (min_num_bytes, max_num_bytes) == (100, 10_000)

        def FindLanguage(self, text):
            return types.SimpleNamespace(**answers[text])

    return types.SimpleNamespace(NNetLanguageIdentifier=Identifier)


@pytest.mark.parametrize(
    ("answer", "language"),
    [
        ({"is_reliable": True, "probability": 0.99, "language": "de"}, "de"),
        ({"is_reliable": True, "probability": 0.94, "language": "de"}, "und"),
        ({"is_reliable": False, "probability": 0.99, "language": "de"}, "und"),
        ({"is_reliable": True, "probability": 0.99, "language": "bs"}, None),
    ],
)
def test_cld3(monkeypatch, answer, language):
    monkeypatch.setitem(sys.modules, "gcld3", fake_cld3({"text": answer}))
    found = LanguageIdentifier(preset("released", "multilingual")).keep(page("text"), Tally())
    assert (found.language if found else None) == language


@pytest.mark.parametrize("name", ["langdetect", "cld3"])
def test_missing_packages_are_named(monkeypatch, name):
    monkeypatch.setitem(sys.modules, "langdetect.detector_factory", None)
    monkeypatch.setitem(sys.modules, "gcld3", None)
    with pytest.raises(InputError, match="not installed; pip install"):
        LanguageIdentifier(Cleaning(languages_by=name))
