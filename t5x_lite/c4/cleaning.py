"""Rules of lines and pages: which lines stay, sentences, lengths, languages.

Which lines of a page stay, and whether enough is left of it.

Source: c4_utils.clean_page, line for line and page for page, given the same sentence tokenizer;
section 2.2 of Raffel et al. (JMLR 2020) for the preset `paper`. For each line, in this order:
strip; a word too long; take citations out; the end mark; the number of words; "lorem ipsum" drops
the page; "javascript" the line; "{" the page; a policy phrase the line. Then the page needs enough
sentences.

    "Buy now" -> dropped, no end mark
    "See the map.[3] It is old." -> "See the map. It is old."

It is fast because of what need not be looked at, none of which changes the result:

* A word longer than the limit needs a line longer than the limit.
* A phrase that the whole page does not contain, no line contains; only where a citation was taken
  out may one have come into being ("java[1]script").
* Every kept line has a word, and so at least one sentence: punkt is asked only where a page keeps
  fewer lines than it needs sentences, and only until there are enough.

Pages that are too long, and pages with too few paragraphs.

Source: c4_utils.is_valid_length and paragraph_filter (mC4 only).

Sentences as C4 counts them: NLTK's punkt.

Kiss and Strunk, "Unsupervised Multilingual Sentence Boundary Detection" (2006). Punkt's English
parameters are used where they are installed (`NLTK_DATA`, tokenizers/punkt_tab); else abbreviations
of our own, so that nothing must be downloaded. `SentenceCounter.name` says which, for the manifest:
the two may count differently where a page has about as few sentences as it needs.

    counter = load_counter()
    counter.sentences("Dr. Roberts came. He stayed.") == ["Dr. Roberts came.", "He stayed."]
    counter.at_least("One. Two. Three. Four.", 3)  # stops at the third

Which language a page is in, and whether it is a wanted one.

Source: c4_utils.detect_english (langdetect, seed 0) for English C4, and detect_languages (CLD3) for
mC4. langdetect draws at random: each page starts again from seed 0, so a page's language does not
depend on the pages before it.
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
    """The page unless its text has more than `max_chars` characters."""
    tally.page_in("length", page)
    if cleaning.max_chars and len(page.text) > cleaning.max_chars:
        tally.drop_page("length", "too_long", page)
        return None
    tally.page_out("length", page)
    return page


def keep_paragraphs(page: Page, cleaning: Cleaning, tally: Tally) -> Page | None:
    """The page if `min_paragraphs` of its lines have at least `min_paragraph_chars` characters.

    c4_utils.paragraph_filter looks at the three longest lines whatever its `min_paragraphs`; this
    at as many as are asked for, which is the same for three.
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
    """The counter of this installation."""
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


_CITATION = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")
"""c4_utils.get_clean_page_fn. Linear: a run of digits is read once for the bracket before it."""
_LOREM_IPSUM = "lorem ipsum"
_JAVASCRIPT = "javascript"
_LOWERED_TO_ASCII = ("\N{KELVIN SIGN}", "\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}")
"""The only characters beyond ASCII whose lower case has an ASCII letter."""

_Lines = dict[str, list[str]]


def clean_page(
    page: Page, cleaning: Cleaning, counter: SentenceCounter, tally: Tally
) -> Page | None:
    """Stage 4: the page with its good lines, or None where too little is left."""
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
    """Sorts the lines of a text into `kept` and `dropped`; the rule that drops the page, or ""."""
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
    """The rule about phrases that a line falls to, in the order of the reference; "" is none."""
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
    """Whether any line as it stands could fall to a rule about phrases."""
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
    # Lower case of ASCII alone costs a fraction of str.lower() on text that has other characters.
    lowered = text.encode("utf-8", "surrogatepass").lower()
    return any(map(lowered.__contains__, words)) and any(
        phrase.encode() in lowered for phrase in phrases
    )


@functools.lru_cache
def _words(phrases: tuple[str, ...]) -> tuple[bytes, ...] | None:
    """Few texts of which every phrase contains one; None if any is beyond ASCII.

    "use cookies", "uses cookies" and "cookie policy" all have "cookie"; "terms of use" is alone.
    """
    if not all(phrase.isascii() for phrase in phrases):
        return None
    longest = {max(phrase.split() or [phrase], key=len) for phrase in phrases}
    shared = {word for word in longest if sum(word in phrase for phrase in phrases) > 1}
    alone = {phrase for phrase in phrases if not any(word in phrase for word in shared)}
    needed = {word for word in shared if not any(o != word and o in word for o in shared)}
    return tuple(text.encode() for text in sorted(needed | alone))


def _enough_sentences(lines: list[str], minimum: int, counter: SentenceCounter) -> bool:
    """Whether lines, none of them blank, have so many sentences, each line counted alone."""
    missing = minimum - len(lines)
    for line in lines:
        if missing <= 0:
            break
        missing -= counter.count(line, limit=missing + 1) - 1
    return missing <= 0


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
    """Return the guesser of a text's language."""
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
