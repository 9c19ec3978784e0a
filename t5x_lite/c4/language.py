"""Which language a page is in, and whether it is a wanted one.

Source: c4_utils.detect_english (langdetect, seed 0) for English C4, and detect_languages (CLD3) for
mC4. langdetect draws at random: each page starts again from seed 0, so a page's language does not
depend on the pages before it.
"""

from collections.abc import Callable
from typing import Any

from t5x_lite.c4.config import UNKNOWN_LANGUAGE, Cleaning
from t5x_lite.c4.pages import Page, Tally
from t5x_lite.errors import InputError
from t5x_lite.extras import install_command

CLD3_MIN_BYTES = 100
CLD3_MAX_BYTES = 10_000
"""c4_utils.detect_languages: "CLD3 is not expected to work well on very short documents." """

Guess = tuple[str, float, str]
"""Language, its probability, and the rule that a page without a guess falls to, else ""."""


class LanguageIdentifier:
    """The language stage; it holds the identifier's tables, so there is one for a process.

    Raises:
      InputError: the identifier's package is not installed.
    """

    def __init__(self, cleaning: Cleaning):
        self._cleaning = cleaning
        self._languages = frozenset(cleaning.languages)
        self._guess: Callable[[str], Guess] | None = None
        if cleaning.languages:
            self._guess = identifier(cleaning.languages_by)

    def keep(self, page: Page, tally: Tally) -> Page | None:
        """Stage 6: the page with its language, or None where that is not a wanted one."""
        tally.page_in("language", page)
        if self._guess is None:
            tally.page_out("language", page)
            return page
        language, probability, rule = self._guess(page.text)
        if not rule and probability < self._cleaning.min_language_probability:
            rule = "low_confidence"
        if rule and self._cleaning.keep_undetermined:
            rule, language = "", UNKNOWN_LANGUAGE
        elif not rule and language not in self._languages:
            rule = "other_language"
        if rule:
            tally.drop_page("language", rule, page)
            return None
        found = page.with_language(language)
        tally.page_out("language", found)
        return found


def identifier(name: str) -> Callable[[str], Guess]:
    """What guesses the language of a text.

    Args:
      name: "langdetect", with seed 0, or "cld3".

    Raises:
      InputError: the package is not installed.
    """
    return _langdetect() if name == "langdetect" else _cld3()


def _langdetect() -> Callable[[str], Guess]:
    try:
        from langdetect.detector_factory import PROFILES_DIRECTORY, DetectorFactory
        from langdetect.lang_detect_exception import LangDetectException
    except ImportError as error:
        raise InputError(
            f"finding English needs langdetect, which is missing: {install_command('c4')}, or "
            "set cleaning.languages to ()"
        ) from error
    factory = DetectorFactory()  # our own: the package's global one may have another seed
    factory.seed = 0
    factory.load_profile(PROFILES_DIRECTORY)

    def guess(text: str) -> Guess:
        detector = factory.create()
        detector.append(text)
        try:
            found = detector.get_probabilities()
        except LangDetectException:
            return "", 0.0, "no_features"
        if not found:
            return "", 0.0, "no_prediction"
        return found[0].lang, float(found[0].prob), ""

    return guess


def _cld3() -> Callable[[str], Guess]:
    try:
        import gcld3  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise InputError(
            "finding languages by CLD3 needs gcld3, which is missing: pip install gcld3, or set "
            "cleaning.languages to ()"
        ) from error
    identifier: Any = gcld3.NNetLanguageIdentifier(
        min_num_bytes=CLD3_MIN_BYTES, max_num_bytes=CLD3_MAX_BYTES
    )

    def guess(text: str) -> Guess:
        found = identifier.FindLanguage(text)
        if not found.is_reliable:
            return "", 0.0, "no_prediction"
        return found.language, float(found.probability), ""

    return guess
