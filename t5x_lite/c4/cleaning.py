"""Cleaning rules of C4 for lines and pages: line filters, sentences, lengths and languages.

`clean_page` filters the lines of a page, and drops the page if too little remains.

Source: c4_utils.clean_page, with the same result for every line and page if the sentence tokenizer
is the same; section 2.2 of Raffel et al. (JMLR 2020) for the preset `paper`. The rules are applied
to each line in this order: strip the line; drop a line with a word that is too long; remove
citations; drop a line by its end mark, then by its number of words; "lorem ipsum" drops the page;
"javascript" drops the line; "{" drops the page; a policy phrase drops the line. Finally a page with
too few sentences is dropped.

    "Buy now" -> dropped, no end mark
    "See the map.[3] It is old." -> "See the map. It is old."

Shortcuts make it fast without changing the result:

* A word longer than the limit needs a line longer than the limit.
* If the page does not contain a phrase, no line contains it. The exception is a line without
  a citation, where a phrase may appear by the removal ("java[1]script").
* Every kept line has a word, and so at least one sentence. Punkt is only called if a page keeps
  fewer lines than it needs sentences, and only until there are enough.

Length rules drop pages that are too long, and pages with too few paragraphs.

Source: c4_utils.is_valid_length and paragraph_filter (only mC4).

`SentenceCounter` counts sentences with NLTK's punkt, as in C4.

Kiss and Strunk, "Unsupervised Multilingual Sentence Boundary Detection" (2006). Punkt's English
parameters are used if they are installed (`NLTK_DATA`, tokenizers/punkt_tab). Otherwise a built-in
list of abbreviations is used, so no download is needed. `SentenceCounter.name` records the
parameters for the manifest, because results may differ for a page with about the minimum number of
sentences.

    counter = load_counter()
    counter.sentences("Dr. Roberts came. He stayed.") == ["Dr. Roberts came.", "He stayed."]
    counter.at_least("One. Two. Three. Four.", 3)  # stops at the third

`LanguageIdentifier` identifies a page's language, and keeps pages in configured languages.

Source: c4_utils.detect_english (langdetect, seed 0) for English C4, and detect_languages (CLD3) for
mC4. langdetect samples at random: each page starts again from seed 0, so a page's language does not
depend on earlier pages.
"""

import functools
import heapq
import itertools
import re
from collections.abc import Callable
from typing import Any

from t5x_lite.c4.config import UNKNOWN_LANGUAGE, Cleaning
from t5x_lite.c4.pages import Page, Tally
from t5x_lite.core.errors import InputError, install_command
from t5x_lite.data.formats.documents import ABBREVIATIONS


def keep_length(page: Page, cleaning: Cleaning, tally: Tally) -> Page | None:
    """Return the page, or None if its text has more than `max_chars` characters."""
    tally.page_in("length", page)
    if cleaning.max_chars and len(page.text) > cleaning.max_chars:
        tally.drop_page("length", "too_long", page)
        return None
    tally.page_out("length", page)
    return page


def keep_paragraphs(page: Page, cleaning: Cleaning, tally: Tally) -> Page | None:
    """Return the page, or None if fewer than `min_paragraphs` lines are long enough (mC4).

    Google's C4 code always checks the three longest lines, for any `min_paragraphs`.
    """
    tally.page_in("paragraphs", page)
    wanted = cleaning.min_paragraphs
    longest = heapq.nlargest(wanted, map(len, page.text.split("\n")))
    if wanted and (len(longest) < wanted or longest[-1] < cleaning.min_paragraph_chars):
        tally.drop_page("paragraphs", "too_few_paragraphs", page)
        return None
    tally.page_out("paragraphs", page)
    return page


BUILT_IN = "built-in English abbreviations"
PUNKT_TAB = "punkt_tab/english"


class SentenceCounter:
    """Counter of the sentences of a text, which uses NLTK's sentence tokenizer punkt.

    Attributes:
      name: description of the parameters and the version of NLTK, for the manifest.
      parameters: punkt's parameters, an nltk PunktParameters.
    """

    def __init__(self, parameters: Any, *, name: str):
        self.name = name
        self.parameters = parameters
        self._unsure = parameters.abbrev_types | {first for first, _ in parameters.collocations}
        self._tokenizer = _tokenizer(parameters)

    def sentences(self, text: str) -> list[str]:
        """Return the sentences of a text, as nltk's PunktSentenceTokenizer.tokenize does."""
        return [text[start:end] for start, end in self._tokenizer.span_tokenize(text)]

    def count(self, text: str, *, limit: int) -> int:
        """Count the sentences of a text, up to `limit`.

        The slow tokenizer is only called if simple bounds do not give the result.
        """
        if limit <= 1 or _most_breaks(text) == 0:
            return int(limit > 0 and not text.isspace() and text != "")
        if self._has_breaks(text, limit - 1):
            return limit
        return sum(1 for _ in itertools.islice(self._tokenizer.span_tokenize(text), limit))

    def at_least(self, text: str, number: int) -> bool:
        """Return whether a text has at least `number` sentences."""
        return self.count(text, limit=number) >= number

    def _has_breaks(self, text: str, number: int) -> bool:
        """Return whether punkt certainly finds at least `number` sentences in a text.

        A sentence certainly ends if a lower-case word, neither an abbreviation nor the first word
        of a collocation, is followed by one of the marks . ? ! and a capitalized word.
        """
        for found in _CLEAR_BREAK.finditer(text):
            if found[2] != "." or found[1] not in self._unsure:
                number -= 1
                if not number:
                    return True
        return False


_CLEAR_BREAK = re.compile(r"[ \n]([a-z]{2,})([.?!])[ \n](?=[A-Z][a-z])")


def _most_breaks(text: str) -> int:
    """Return an upper bound on the number of sentence ends in a text."""
    marks = text.count(".") + text.count("?") + text.count("!")
    return marks - text.endswith((".", "?", "!"))


@functools.cache
def load_counter(*, installed: bool = True) -> SentenceCounter:
    """Return a sentence counter with NLTK's English parameters, installed or built in."""
    try:
        import nltk
        from nltk.tokenize import punkt
    except ImportError as error:
        raise InputError(
            f"counting sentences needs nltk, which is not installed; {install_command('c4')}"
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
    except (LookupError, AttributeError):  # not installed; or NLTK before punkt_tab (3.8)
        return None


def _tokenizer(parameters: Any) -> Any:
    """Return punkt without NLTK's time limit of five seconds per regular expression.

    The regular expressions need linear time, and the result for a page must not depend on the load
    of the machine.
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
    # PUNCTUATION, the collocations and everything else are NLTK's.
    return tokenizer


def _untimed(pattern: Any) -> Any:
    return getattr(pattern, "_rx", pattern)


_CITATION = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")
"""Regular expression for citations, equivalent to c4_utils.get_clean_page_fn but linear in time."""
_LOREM_IPSUM = "lorem ipsum"
_JAVASCRIPT = "javascript"
_LOWERED_TO_ASCII = ("\N{KELVIN SIGN}", "\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}")
"""The only non-ASCII characters with an ASCII letter in their lower case."""

_Lines = dict[str, list[str]]


def clean_page(
    page: Page, cleaning: Cleaning, counter: SentenceCounter, tally: Tally
) -> Page | None:
    """Remove the lines of a page that a rule forbids; return None if too little text remains."""
    tally.page_in("clean", page)
    if not cleaning.clean_lines:
        tally.page_out("clean", page)
        return page
    dropped: _Lines = {}
    kept: list[str] = []
    fell_to = _clean_lines(page.text, cleaning, kept, dropped)
    for rule, lines in dropped.items():
        tally.drop_lines("clean", rule, page, lines)
    if not fell_to and not _enough_sentences(kept, cleaning.min_sentences, counter):
        fell_to = "too_few_sentences"
    if fell_to:
        tally.drop_page("clean", fell_to, page)
        return None
    cleaned = page.with_text("\n".join(kept).strip())
    tally.page_out("clean", cleaned)
    return cleaned


def _clean_lines(text: str, cleaning: Cleaning, kept: list[str], dropped: _Lines) -> str:
    watch = _watched(text, cleaning)
    if cleaning.page_rules_see == "page":
        if cleaning.drop_lorem_ipsum and watch and _LOREM_IPSUM in text.lower():
            return "lorem_ipsum"
        if cleaning.drop_braces and "{" in text:
            return "brace"
    longest = cleaning.max_word_chars
    citations = cleaning.remove_citations and "[" in text
    end_marks = cleaning.end_marks or ("",)
    ellipsis = cleaning.ellipsis
    min_words = cleaning.min_words
    too_long_word: list[str] = []
    no_end_mark: list[str] = []
    too_few_words: list[str] = []
    fell_to = ""
    for line in text.splitlines():
        line = line.strip()
        if longest and len(line) > longest and max(map(len, line.split())) > longest:
            too_long_word.append(line)
            continue
        look = watch
        if citations and "[" in line:
            before = line
            line = _CITATION.sub("", line)
            look = watch or line != before
        if not line.endswith(end_marks) or (ellipsis and line.endswith(ellipsis)):
            no_end_mark.append(line)
        elif len(line.split(None, min_words - 1)) < min_words:
            too_few_words.append(line)
        elif look and (rule := _phrase_rule(line, cleaning)):
            if rule in _PAGE_RULES:
                fell_to = rule
                break
            dropped.setdefault(rule, []).append(line)
        else:
            kept.append(line)
    for rule, lines in (
        ("too_long_word", too_long_word),
        ("no_end_mark", no_end_mark),
        ("too_few_words", too_few_words),
    ):
        if lines:
            dropped[rule] = lines
    return fell_to


_PAGE_RULES = ("lorem_ipsum", "brace")


def _phrase_rule(line: str, cleaning: Cleaning) -> str:
    """Return the name of the rule that drops a line because of a phrase, or ""."""
    lowered = line.lower()
    if cleaning.drop_lorem_ipsum and _LOREM_IPSUM in lowered:
        return "lorem_ipsum"
    if cleaning.drop_javascript and _JAVASCRIPT in lowered:
        return "javascript"
    if cleaning.drop_braces and "{" in line:
        return "brace"
    if any(phrase in lowered for phrase in cleaning.policies):
        return "policy"
    return ""


def _watched(text: str, cleaning: Cleaning) -> bool:
    """Return True if a line of the text may contain a phrase that drops the line or the page."""
    if cleaning.drop_braces and "{" in text:
        return True
    phrases = cleaning.policies
    if cleaning.drop_lorem_ipsum:
        phrases = (_LOREM_IPSUM, *phrases)
    if cleaning.drop_javascript:
        phrases = (_JAVASCRIPT, *phrases)
    words = _words(phrases)
    if words is None or (not text.isascii() and any(map(text.__contains__, _LOWERED_TO_ASCII))):
        return True
    # Lower-casing only ASCII costs a fraction of str.lower() on text with other characters.
    lowered = text.encode("utf-8", "surrogatepass").lower()
    return any(map(lowered.__contains__, words)) and any(
        phrase.encode() in lowered for phrase in phrases
    )


@functools.lru_cache
def _words(phrases: tuple[str, ...]) -> tuple[bytes, ...] | None:
    """Return a small set of words such that each phrase contains one of the words.

    For example, "use cookies", "uses cookies" and "cookie policy" all contain "cookie".
    """
    if not all(phrase.isascii() for phrase in phrases):
        return None
    longest = {max(phrase.split() or [phrase], key=len) for phrase in phrases}
    shared = {word for word in longest if sum(word in phrase for phrase in phrases) > 1}
    alone = {phrase for phrase in phrases if not any(word in phrase for word in shared)}
    needed = {word for word in shared if not any(o != word and o in word for o in shared)}
    return tuple(text.encode() for text in sorted(needed | alone))


def _enough_sentences(lines: list[str], minimum: int, counter: SentenceCounter) -> bool:
    missing = minimum - len(lines)
    for line in lines:
        if missing <= 0:
            break
        missing -= counter.count(line, limit=missing + 1) - 1
    return missing <= 0


CLD3_MIN_BYTES = 100
CLD3_MAX_BYTES = 10_000
"""Maximum bytes of text for CLD3, from c4_utils.detect_languages."""

Guess = tuple[str, float, str]
"""Type of an identifier's result: language, probability, and the rule that drops the page or ""."""


class LanguageIdentifier:
    """Filter that keeps pages in the languages of the config.

    Raises:
      InputError: if the identifier's package is not installed.
    """

    def __init__(self, cleaning: Cleaning):
        self._cleaning = cleaning
        self._languages = frozenset(cleaning.languages)
        self._guess: Callable[[str], Guess] | None = None
        if cleaning.languages:
            self._guess = identifier(cleaning.languages_by)

    def keep(self, page: Page, tally: Tally) -> Page | None:
        """Return the page with its language, or None if the language is not in the config."""
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
    """Return a function that identifies the language of a text."""
    return _langdetect() if name == "langdetect" else _cld3()


def _langdetect() -> Callable[[str], Guess]:
    try:
        from langdetect.detector_factory import PROFILES_DIRECTORY, DetectorFactory
        from langdetect.lang_detect_exception import LangDetectException
    except ImportError as error:
        raise InputError(
            "identifying English needs langdetect, which is not installed; "
            f"{install_command('c4')}, or set cleaning.languages to ()"
        ) from error
    factory = DetectorFactory()  # not the package's global one, which may have another seed
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
            "identifying languages with CLD3 needs gcld3, which is not installed; pip install "
            "gcld3, or set cleaning.languages to ()"
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
