"""Sentences as C4 counts them: NLTK's punkt.

Kiss and Strunk, "Unsupervised Multilingual Sentence Boundary Detection" (2006). Punkt's English
parameters are used where they are installed (`NLTK_DATA`, tokenizers/punkt_tab); else abbreviations
of our own, so that nothing must be downloaded. `SentenceCounter.name` says which, for the manifest:
the two may count differently where a page has about as few sentences as it needs.

    counter = load_counter()
    counter.sentences("Dr. Roberts came. He stayed.") == ["Dr. Roberts came.", "He stayed."]
    counter.at_least("One. Two. Three. Four.", 3)  # stops at the third
"""

import functools
import itertools
import re
from typing import Any

from t5x_lite.errors import InputError
from t5x_lite.extras import install_command
from t5x_lite.records.abbreviations import ABBREVIATIONS

BUILT_IN = "built-in English abbreviations"
PUNKT_TAB = "punkt_tab/english"


class SentenceCounter:
    """Punkt with one set of parameters.

    Attributes:
      name: the parameters and the version of NLTK, for the manifest.
      parameters: nltk's PunktParameters.
    """

    def __init__(self, parameters: Any, *, name: str):
        self.name = name
        self.parameters = parameters
        self._unsure = parameters.abbrev_types | {first for first, _ in parameters.collocations}
        self._tokenizer = _tokenizer(parameters)

    def sentences(self, text: str) -> list[str]:
        """The sentences of a text, as nltk's PunktSentenceTokenizer.tokenize gives them."""
        return [text[start:end] for start, end in self._tokenizer.span_tokenize(text)]

    def count(self, text: str, *, limit: int) -> int:
        """How many sentences a text has, at most `limit`: it stops looking there.

        Punkt itself, at some 15 microseconds a sentence, is asked only where bounds do not tell.
        """
        if limit <= 1 or _most_breaks(text) == 0:
            return int(limit > 0 and not text.isspace() and text != "")
        if self._has_breaks(text, limit - 1):
            return limit
        return sum(1 for _ in itertools.islice(self._tokenizer.span_tokenize(text), limit))

    def at_least(self, text: str, number: int) -> bool:
        """Whether a text has so many sentences."""
        return self.count(text, limit=number) >= number

    def _has_breaks(self, text: str, number: int) -> bool:
        """Whether so many sentences end where punkt never doubts, before others are looked at.

        Such an end is a word of small letters, no abbreviation and first of no collocation, one
        mark, and a capitalized word: the token is then a break in punkt's first pass and no rule of
        its second takes that back.
        """
        for found in _CLEAR_BREAK.finditer(text):
            if found[2] != "." or found[1] not in self._unsure:
                number -= 1
                if not number:
                    return True
        return False


_CLEAR_BREAK = re.compile(r"[ \n]([a-z]{2,})([.?!])[ \n](?=[A-Z][a-z])")


def _most_breaks(text: str) -> int:
    """An upper bound: punkt ends a sentence only at one of . ? ! that something follows."""
    marks = text.count(".") + text.count("?") + text.count("!")
    return marks - text.endswith((".", "?", "!"))


@functools.cache
def load_counter(*, installed: bool = True) -> SentenceCounter:
    """The counter of this installation.

    Args:
      installed: use NLTK's own English parameters if they are there; False never looks.

    Raises:
      InputError: nltk is not installed.
    """
    try:
        import nltk
        from nltk.tokenize import punkt
    except ImportError as error:
        raise InputError(
            f"counting sentences needs nltk, which is missing: {install_command('c4')}"
        ) from error
    parameters = _installed_parameters() if installed else None
    found = PUNKT_TAB if parameters is not None else BUILT_IN
    if parameters is None:
        parameters = punkt.PunktParameters()
        parameters.abbrev_types = set(ABBREVIATIONS)
    return SentenceCounter(parameters, name=f"nltk {nltk.__version__} punkt, {found}")


def _installed_parameters() -> Any | None:
    from nltk.data import find
    from nltk.tokenize import punkt

    try:
        return punkt.load_punkt_params(find(f"tokenizers/{PUNKT_TAB}/"))
    except (LookupError, AttributeError):  # not there; or an NLTK before punkt_tab (3.8)
        return None


def _tokenizer(parameters: Any) -> Any:
    """Punkt without NLTK's limit of five seconds of wall clock for a pattern.

    Its patterns are linear, and whether a page passes must not depend on how busy the machine is,
    or on the process being stopped for a while. Patterns and text classes stay NLTK's own.
    """
    from nltk.tokenize import punkt

    class LanguageVars(punkt.PunktLanguageVars):
        re_boundary_realignment = _untimed(punkt.PunktLanguageVars.re_boundary_realignment)

    token_patterns = {
        name: _untimed(pattern)
        for name, pattern in vars(punkt.PunktToken).items()
        if name.startswith("_RE_")
    }
    variables = LanguageVars()
    variables._re_period_context = _untimed(variables.period_context_re())
    variables._re_word_tokenizer = _untimed(variables._word_tokenizer_re())
    token = type("Token", (punkt.PunktToken,), {"__slots__": (), **token_patterns})
    tokenizer = punkt.PunktSentenceTokenizer(parameters, lang_vars=variables, token_cls=token)
    # PUNCTUATION, the collocations and all the rest are NLTK's.
    return tokenizer


def _untimed(pattern: Any) -> Any:
    """The compiled pattern inside nltk.redos.TimedPattern; older NLTKs have it bare."""
    return getattr(pattern, "_rx", pattern)
