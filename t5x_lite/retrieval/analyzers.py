"""Analyzers that split text into terms (words or stems), as in Lucene.

analyzer("english")("The flies' wings")         # ["fli", "wing"] analyzer("whitespace")("The flies'
wings")      # ["the", "flies'", "wings"]

whitespace    runs of characters between white space, in lower case standard      words (`words`),
in lower case english       words in lower case without possessive 's and 33 stop words, Porter's
stems cjk           words in lower case; for runs of ideographs, kana and hangul, all pairs of
              neighboring characters; full-width letters become normal letters
vocabulary    the tokens of a vocabulary, such as a checkpoint's; written "vocabulary:FILE" german,
...   words in lower case, stems of the Snowball stemmer of that language (`SNOWBALL`); no
              stop words. Turkish has its own lower case (İ is i, I is ı).

The Snowball stemmers come from the package PyStemmer, in the extra `stemmers`.

`stem` is Porter's stemmer for English words, with two later changes by its author:

    stem("relational")      # "relat"
    stem("flies")           # "fli"

The changes (as in Lucene's PorterStemFilter) are "bli" -> "ble" instead of "abli" -> "able", and
"logi" -> "log". Words of one or two letters do not change.

Source: M. F. Porter 1980, "An algorithm for suffix stripping", Program 14(3), and
tartarus.org/martin/PorterStemmer.

`words` splits text at Unicode's word boundaries (UAX #29, section 4), as Lucene does:

    words("Can't stop: 3.14 is π_0")    # ["Can't", "stop", "3.14", "is", "π_0"]
    words("日本のテレビ")               # ["日", "本", "の", "テレビ"]

A word is a run of letters and digits; "." or "'" between letters and "." "," or ";" between digits
continue it. A run of katakana is a word; each ideograph and each hiragana is a separate word. In
Thai, Lao, Khmer, Burmese and related scripts without spaces, a run of letters is one word, as in
Lucene's StandardTokenizer (UAX #29 separates every letter). Text without letters and digits, such
as punctuation and emoji, gives no words. Words are split after 255 characters, as in Lucene.

The classes of characters come from Python's Unicode data; the exceptions in Word_Break, which
Python's data lacks, are listed here.

Source: unicode.org/reports/tr29, rules WB4-WB13b; Lucene StandardTokenizerImpl.jflex.
"""

import functools
import importlib
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from t5x_lite.core.errors import InputError, install_command
from t5x_lite.core.options import did_you_mean
from t5x_lite.data.vocabularies.loading import load_vocabulary

_STEP_2 = {
    "ational": "ate",
    "tional": "tion",
    "enci": "ence",
    "anci": "ance",
    "izer": "ize",
    "bli": "ble",
    "alli": "al",
    "entli": "ent",
    "eli": "e",
    "ousli": "ous",
    "ization": "ize",
    "ation": "ate",
    "ator": "ate",
    "alism": "al",
    "iveness": "ive",
    "fulness": "ful",
    "ousness": "ous",
    "aliti": "al",
    "iviti": "ive",
    "biliti": "ble",
    "logi": "log",
}
_STEP_3 = {
    "icate": "ic",
    "ative": "",
    "alize": "al",
    "iciti": "ic",
    "ical": "ic",
    "ful": "",
    "ness": "",
}
_STEP_4 = {
    *("al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion"),
    *("ou", "ism", "ate", "iti", "ous", "ive", "ize"),
}


def stem(word: str) -> str:
    """Return the stem of a lower-case English word, by Porter's algorithm."""
    if len(word) <= 2:
        return word
    word = _step_1(word)
    word = _replaced(word, _STEP_2)
    word = _replaced(word, _STEP_3)
    return _step_5(_step_4(word))


def _consonants(word: str) -> list[bool]:
    """Return True for each consonant of a word; y is a consonant at the start and after a vowel."""
    found: list[bool] = []
    for i, letter in enumerate(word):
        if letter == "y":
            found.append(i == 0 or not found[-1])
        else:
            found.append(letter not in "aeiou")
    return found


def _measure(word: str) -> int:
    """Return Porter's measure m of a word: how often a consonant follows a vowel."""
    consonants = _consonants(word)
    return sum(not before and after for before, after in itertools.pairwise(consonants))


def _has_vowel(word: str) -> bool:
    return not all(_consonants(word))


def _ends_double(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and _consonants(word)[-1]


def _ends_cvc(word: str) -> bool:
    """Return True if a word ends in consonant, vowel, consonant (the last one not w, x or y)."""
    return len(word) > 2 and _consonants(word)[-3:] == [True, False, True] and word[-1] not in "wxy"


def _step_1(word: str) -> str:
    """Remove plural endings, -ed and -ing, and replace a final y by i."""
    if word.endswith("s"):
        if word.endswith(("sses", "ies")):
            word = word[:-2]
        elif not word.endswith("ss"):
            word = word[:-1]
    if word.endswith("eed"):
        word = word[:-1] if _measure(word[:-3]) > 0 else word
    else:
        for suffix in ("ed", "ing"):
            if word.endswith(suffix) and _has_vowel(word[: -len(suffix)]):
                word = _mended(word[: -len(suffix)])
                break
    if word.endswith("y") and _has_vowel(word[:-1]):
        word = word[:-1] + "i"
    return word


def _mended(word: str) -> str:
    if word.endswith(("at", "bl", "iz")):
        return word + "e"
    if _ends_double(word):
        return word if word[-1] in "lsz" else word[:-1]
    return word + "e" if _measure(word) == 1 and _ends_cvc(word) else word


def _replaced(word: str, rules: dict[str, str]) -> str:
    for size in range(min(7, len(word)), 2, -1):
        suffix = word[-size:]
        if suffix in rules:
            before = word[:-size]
            return before + rules[suffix] if _measure(before) > 0 else word
    return word


def _step_4(word: str) -> str:
    suffixes = [suffix for suffix in _STEP_4 if word.endswith(suffix)]
    if not suffixes:
        return word
    suffix = max(suffixes, key=len)
    before = word[: -len(suffix)]
    if suffix == "ion" and not before.endswith(("s", "t")):
        return word
    return before if _measure(before) > 1 else word


def _step_5(word: str) -> str:
    if word.endswith("e"):
        m = _measure(word[:-1])
        if m > 1 or (m == 1 and not _ends_cvc(word[:-1])):
            word = word[:-1]
    if word.endswith("ll") and _measure(word[:-1]) > 1:
        word = word[:-1]
    return word


MOST_CHARACTERS = 255

_MID_LETTER = ":\u00b7\u0387\u055f\u05f4\u2027\ufe13\ufe55\uff1a"
_MID_NUMBER = ",;\u037e\u0589\u060c\u060d\u066c\u07f8\u2044\ufe10\ufe14\ufe50\ufe54\uff0c\uff1b"
_MID_BOTH = ".'\u2018\u2019\u2024\ufe52\uff07\uff0e"
_SPANS = tuple[tuple[int, int], ...]
_HIRAGANA: _SPANS = (
    (0x3041, 0x3096),
    (0x309D, 0x309F),
    (0x1B001, 0x1B11F),
    (0x1B132, 0x1B132),
    (0x1B150, 0x1B152),
    (0x1F200, 0x1F200),
)
_KATAKANA: _SPANS = (
    (0x3031, 0x3035),
    (0x309B, 0x309C),
    (0x30A0, 0x30FA),
    (0x30FC, 0x30FF),
    (0x31F0, 0x31FF),
    (0x32D0, 0x32FE),
    (0x3300, 0x3357),
    (0xFF66, 0xFF9D),
    (0x1AFF0, 0x1AFFE),
    (0x1B000, 0x1B000),
    (0x1B120, 0x1B122),
    (0x1B155, 0x1B155),
    (0x1B164, 0x1B167),
)
_IDEOGRAPHS: _SPANS = (
    (0x3005, 0x3007),
    (0x3021, 0x3029),
    (0x3038, 0x303B),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x16FE4, 0x16FE4),
    (0x17000, 0x18D08),
    (0x1B170, 0x1B2FB),
    (0x20000, 0x323AF),
)
# Scripts without spaces: their letters; digits and marks are like others.
_NO_SPACES: _SPANS = (
    (0x0E01, 0x0E4F),
    (0x0E81, 0x0EDF),
    (0x1000, 0x109F),
    (0x1780, 0x17DC),
    (0x1950, 0x19DF),
    (0x1A20, 0x1AAD),
    (0xA9E0, 0xA9FE),
    (0xAA60, 0xAADF),
    (0x11700, 0x11746),
)
_HEBREW: _SPANS = ((0x05D0, 0x05F2), (0xFB1D, 0xFB4F))
# Characters that are letters for Word_Break, but not by their general category.
_MORE_LETTERS: _SPANS = (
    (0x02C2, 0x02C5),
    (0x02D2, 0x02D7),
    (0x02DE, 0x02DF),
    (0x02E5, 0x02EB),
    (0x02ED, 0x02ED),
    (0x02EF, 0x02FF),
    (0x055A, 0x055C),
    (0x055E, 0x055E),
    (0x058A, 0x058A),
    (0x05F3, 0x05F3),
    (0x070F, 0x070F),
    (0x24B6, 0x24E9),
    (0xA708, 0xA716),
    (0xA720, 0xA721),
    (0xA789, 0xA78A),
    (0xAB5B, 0xAB5B),
    (0x1F130, 0x1F149),
    (0x1F150, 0x1F169),
    (0x1F170, 0x1F189),
)
_DIGITS: _SPANS = (
    (0x0600, 0x0605),
    (0x066B, 0x066B),
    (0x06DD, 0x06DD),
    (0x0890, 0x0891),
    (0x08E2, 0x08E2),
)
_EXTENDING: _SPANS = ((0xFF9E, 0xFF9F), (0x1F3FB, 0x1F3FF))
_LETTERS = frozenset(["Lu", "Ll", "Lt", "Lm", "Lo", "Nl"])
_MARKS = frozenset(["Mn", "Me", "Mc"])


def words(text: str) -> list[str]:
    """Return the words of a text, in order, without lowercasing or stemming."""
    pattern = _ascii() if text.isascii() else _unicode()
    found = pattern.findall(text)
    if any(len(word) > MOST_CHARACTERS for word in found):
        return [
            word[start : start + MOST_CHARACTERS]
            for word in found
            for start in range(0, len(word), MOST_CHARACTERS)
        ]
    return found


def is_ideographic(character: str) -> bool:
    return _inside(ord(character), _IDEOGRAPHS)


def is_hiragana(character: str) -> bool:
    return _inside(ord(character), _HIRAGANA)


def is_katakana(character: str) -> bool:
    return _inside(ord(character), _KATAKANA)


def is_hangul(character: str) -> bool:
    code = ord(character)
    return 0xAC00 <= code <= 0xD7A3 or 0x1100 <= code <= 0x11FF or 0x3131 <= code <= 0x318E


@functools.cache
def _ascii() -> re.Pattern[str]:
    return _pattern("A-Za-z", "", "0-9", "_", "", "", "", "")


@functools.cache
def _unicode() -> re.Pattern[str]:
    classes = _classes()
    return _pattern(*(_ranges(classes, name) for name in "LHDEXKCS"))


def _classes() -> list[str]:
    """Return the word-break class of each Unicode character, by code point, as a letter.

    L letter, H Hebrew, D digit, E joiner, X extending, K katakana, C a word by itself, S script
    without spaces, "" no class.
    """
    by_category = dict.fromkeys(_LETTERS, "L") | dict.fromkeys(_MARKS, "X")
    by_category |= {"Nd": "D", "Pc": "E", "Cf": "X"}
    categories = map(unicodedata.category, map(chr, range(0x110000)))
    classes = [by_category.get(category, "") for category in categories]
    for spans, name, only in (
        (_HEBREW, "H", "L"),
        (_NO_SPACES, "S", "L"),
        (_IDEOGRAPHS, "C", "L"),
        (_MORE_LETTERS, "L", ""),
        (_HIRAGANA, "C", ""),
        (_KATAKANA, "K", ""),
        (_EXTENDING, "X", ""),
        (_DIGITS, "D", ""),
    ):
        for first, last in spans:
            for code in range(first, last + 1):
                if not only or classes[code] == only:
                    classes[code] = name
    classes[0x202F], classes[0x200B] = "E", ""
    return classes


def _inside(code: int, spans: _SPANS) -> bool:
    return any(first <= code <= last for first, last in spans)


def _ranges(classes: Sequence[str], name: str) -> str:
    marks = "".join("1" if found == name else "0" for found in classes)
    spans = (match.span() for match in re.finditer("1+", marks))
    return "".join(f"\\U{first:08x}-\\U{end - 1:08x}" for first, end in spans)


def _pattern(
    letters: str,
    hebrew: str,
    digits: str,
    joiners: str,
    extending: str,
    katakana: str,
    alone: str,
    without_spaces: str,
) -> re.Pattern[str]:
    """Return the regular expression of a word, from the characters of each class.

    Extending characters belong to the preceding character (rule WB4 of Unicode's UAX 29). Groups
    are atomic (no backtracking).
    """
    x = f"[{extending}]*+" if extending else ""
    mid = f"[{re.escape(_MID_LETTER + _MID_BOTH)}]{x}"
    number_mid = f"[{re.escape(_MID_NUMBER + _MID_BOTH)}]{x}"
    letter, digit, joiner = f"[{letters}{hebrew}]{x}", f"[{digits}]{x}", f"[{joiners}]{x}"
    if hebrew:  # WB7a, WB7b, WB7c
        between = f'(?:{mid}(?={letter})|(?<=[{hebrew}])"{x}(?=[{hebrew}]))?'
        end = f"(?:(?<=[{hebrew}])'{x})?"
    else:
        between, end = f"(?:{mid}(?={letter}))?", ""
    run = f"{letter}(?>{between}{letter})*{end}"  # WB5-WB7
    number = f"{digit}(?>(?:{number_mid}(?={digit}))?{digit})*"  # WB8, WB11, WB12
    part = f"(?>(?>{run}|{number})+)"  # WB9, WB10
    if katakana:
        part = f"(?:{part}|(?>(?:[{katakana}]{x})+))"  # WB13
    # The pattern scans a run of joiners without a letter once, not again from each joiner.
    begin = f"(?>(?<![{joiners}])(?:{joiner}){{1,{MOST_CHARACTERS}}}|)"
    word = f"{begin}{part}(?:(?>(?:{joiner})+){part})*(?>(?:{joiner})*)"  # WB13a, WB13b
    others = f"|[{alone}]{x}|(?>(?:[{without_spaces}]{x})+)" if alone else ""
    return re.compile(word + others)


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
"""Languages of the Snowball 3.1 stemmers, except English, for which Lucene's analyzer is used."""
NAMES = ("whitespace", "standard", "english", "cjk", "vocabulary:FILE", *SNOWBALL)
_VOCABULARY = "vocabulary:"
_WIDE = re.compile("[\uff01-\uff5e]+|[\uff65-\uff9f]+")
_POSSESSIVE = ("'s", "'S", "\u2019s", "\u2019S", "\uff07s", "\uff07S")


def analyzer(name: str) -> Analyzer:
    """Return the analyzer with this name, a function from a text to its terms.

    Raises:
      InputError: if the name is unknown, the vocabulary is unreadable, or the stemmer is missing.
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
        hint = did_you_mean(name, [*known, *SNOWBALL]) or f"; give one of {', '.join(NAMES)}"
        raise InputError(f"unknown analyzer {name!r}{hint}")
    return known[name]


def _english(text: str) -> list[str]:
    terms = []
    for word in words(text):
        term = (word[:-2] if word.endswith(_POSSESSIVE) else word).lower()
        if term not in STOP_WORDS:
            terms.append(_stem(term))
    return terms


_stem = functools.lru_cache(maxsize=1 << 18)(stem)


def _of_language(language: str) -> Analyzer:
    try:
        stemmers = importlib.import_module("Stemmer")
    except ImportError as error:
        raise InputError(
            f"analyzer {language!r} needs the package PyStemmer, which is missing; run "
            f"{install_command('stemmers')}"
        ) from error
    if language not in stemmers.algorithms():
        raise InputError(
            f"the installed PyStemmer {stemmers.version()} has no stemmer for {language!r}; "
            f"update it by {install_command('stemmers')}"
        )
    # Stems are cached here and not by PyStemmer, which would need one stemmer for each thread.
    stem = functools.lru_cache(maxsize=1 << 18)(stemmers.Stemmer(language, 0).stemWord)
    lower = _lower_of_turkish if language == "turkish" else str.lower

    def terms(text: str) -> list[str]:
        composed = unicodedata.normalize("NFC", text)
        return [stem(lower(word).translate(_APOSTROPHES)) for word in words(composed)]

    return terms


def _lower_of_turkish(word: str) -> str:
    return word.translate(_TURKISH).lower()


_APOSTROPHES = str.maketrans(dict.fromkeys("\u2018\u2019\uff07", "'"))
"""Map of typographic apostrophes to the ASCII apostrophe, which Snowball expects."""
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
