"""Terms of texts, as Lucene's analyzers make them.

analyzer("english")("The flies' wings")         # ["fli", "wing"]
analyzer("whitespace")("The flies' wings")      # ["the", "flies'", "wings"]

whitespace    what white space divides, in lower case
standard      words (`retrieval.words`), in lower case
english       words, possessive 's off, lower case, 33 stop words off, Porter's stems
cjk           words in lower case, and of runs of ideographs, kana and hangul all pairs of
              neighbours; a full-width letter is the usual one
vocabulary    the pieces of a vocabulary, such as a checkpoint's own; "vocabulary:FILE"
german, ...   words in lower case, stems of the Snowball stemmer of that language (`SNOWBALL`); no
              stop words. Turkish has its own lower case (İ is i, I is ı).

The Snowball stemmers are those of the package PyStemmer, in the extra `stemmers`.
"""

import functools
import importlib
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from t5x_lite.errors import InputError
from t5x_lite.extras import install_command
from t5x_lite.options import did_you_mean
from t5x_lite.retrieval import porter
from t5x_lite.retrieval.words import is_hangul, is_hiragana, is_ideographic, is_katakana, words
from t5x_lite.vocabulary.loading import load_vocabulary

Analyzer: TypeAlias = Callable[[str], Sequence[str]]

_STOP_WORDS = """
a an and are as at be but by for if in into is it no not of on or such that the their then there
these they this to was will with
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
_LANGUAGES = """
arabic armenian basque catalan czech danish dutch dutch_porter esperanto estonian finnish french
german greek hindi hungarian indonesian irish italian lithuanian nepali norwegian persian polish
portuguese romanian russian serbian sesotho spanish swedish tamil turkish yiddish
"""
SNOWBALL = tuple(_LANGUAGES.split())
"""Languages of Snowball 3.1; `english` is Lucene's analyzer instead."""
NAMES = ("whitespace", "standard", "english", "cjk", "vocabulary:FILE", *SNOWBALL)
_VOCABULARY = "vocabulary:"
_WIDE = re.compile("[\uff01-\uff5e]+|[\uff65-\uff9f]+")
_POSSESSIVE = ("'s", "'S", "\u2019s", "\u2019S", "\uff07s", "\uff07S")


def analyzer(name: str) -> Analyzer:
    """The analyzer of a name.

    Raises:
      InputError: there is none, its vocabulary cannot be read, or its stemmer is not installed.
    """
    if name in SNOWBALL:
        return _of_language(name)
    if name.startswith(_VOCABULARY):
        return _of_vocabulary(name.removeprefix(_VOCABULARY))
    known: dict[str, Analyzer] = {
        "whitespace": lambda text: text.lower().split(),
        "standard": lambda text: [word.lower() for word in words(text)],
        "english": _english,
        "cjk": _cjk,
    }
    if name not in known:
        hint = did_you_mean(name, [*known, *SNOWBALL]) or f": one of {', '.join(NAMES)}"
        raise InputError(f"no analyzer {name!r}{hint}")
    return known[name]


def _english(text: str) -> list[str]:
    terms = []
    for word in words(text):
        term = (word[:-2] if word.endswith(_POSSESSIVE) else word).lower()
        if term not in STOP_WORDS:
            terms.append(_stem(term))
    return terms


_stem = functools.lru_cache(maxsize=1 << 18)(porter.stem)


def _of_language(language: str) -> Analyzer:
    """Words of a language, stemmed by its Snowball algorithm.

    Raises:
      InputError: PyStemmer is missing or lacks the language.
    """
    try:
        stemmers = importlib.import_module("Stemmer")
    except ImportError as error:
        raise InputError(
            f"analyzer {language!r} needs the package PyStemmer: {install_command('stemmers')}"
        ) from error
    if language not in stemmers.algorithms():
        raise InputError(
            f"analyzer {language!r} is not in the installed PyStemmer {stemmers.version()}; update "
            f"it: {install_command('stemmers')}"
        )
    # The memory is ours: each thread of a server would need a stemmer of its own otherwise.
    stem = functools.lru_cache(maxsize=1 << 18)(stemmers.Stemmer(language, 0).stemWord)
    lower = _lower_of_turkish if language == "turkish" else str.lower

    def terms(text: str) -> list[str]:
        composed = unicodedata.normalize("NFC", text)
        return [stem(lower(word).translate(_APOSTROPHES)) for word in words(composed)]

    return terms


def _lower_of_turkish(word: str) -> str:
    return word.translate(_TURKISH).lower()


_APOSTROPHES = str.maketrans(dict.fromkeys("\u2018\u2019\uff07", "'"))
"""Snowball's elisions and suffixes are behind the ASCII apostrophe."""
_TURKISH = str.maketrans({"I": "\u0131", "\u0130": "i"})


def _cjk(text: str) -> list[str]:
    text = _WIDE.sub(lambda match: unicodedata.normalize("NFKC", match.group()), text).lower()
    terms: list[str] = []
    for run, is_cjk in _runs(text):
        if not is_cjk:
            terms += [word for word in words(run) if word not in STOP_WORDS]
        elif len(run) == 1:
            terms.append(run)
        else:
            terms += [run[i : i + 2] for i in range(len(run) - 1)]
    return terms


def _runs(text: str) -> Iterator[tuple[str, bool]]:
    """The text in pieces, and whether each is of ideographs, kana or hangul."""
    start = 0
    for end in range(1, len(text) + 1):
        if end == len(text) or _is_cjk(text[end]) != _is_cjk(text[start]):
            yield text[start:end], _is_cjk(text[start])
            start = end


@functools.lru_cache(maxsize=1 << 16)
def _is_cjk(character: str) -> bool:
    # The middle dot and the double hyphen of katakana divide words.
    kinds = (is_ideographic, is_hiragana, is_katakana, is_hangul)
    return character not in "\u30fb\u30a0" and any(kind(character) for kind in kinds)


def _of_vocabulary(path: str) -> Analyzer:
    vocabulary = load_vocabulary(path)
    return lambda text: [str(token) for token in vocabulary.encode(text)]
