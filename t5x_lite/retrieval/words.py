"""Words as Unicode divides text into them (UAX #29, section 4), and as Lucene takes them for terms.

    words("Can't stop: 3.14 is π_0")    # ["Can't", "stop", "3.14", "is", "π_0"]
    words("日本のテレビ")               # ["日", "本", "の", "テレビ"]

Letters and digits that stand together are a word, as are those that "." or "'" joins, and "," or
";" between digits; so is a run of katakana. An ideograph and a hiragana are words of their own. Of
Thai, Lao, Khmer, Burmese and their relatives, which write no spaces, UAX #29 divides every letter
from the next; a run of them is one word here, as in Lucene's StandardTokenizer. What has no letter
and no digit (punctuation, emoji) is no word. A word of more than 255 characters is cut, as there.

The classes of characters come from Python's own Unicode data; the few that are not in it
(Word_Break has exceptions) are listed here.

Source: unicode.org/reports/tr29, rules WB4-WB13b; Lucene StandardTokenizerImpl.jflex.
"""

import functools
import re
import unicodedata
from collections.abc import Sequence

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
# Letters to Word_Break, and none to the general category.
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
    """The words of a text, in order, as they stand in it."""
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
    """Whether a character is an ideograph."""
    return _inside(ord(character), _IDEOGRAPHS)


def is_hiragana(character: str) -> bool:
    """Whether a character is of hiragana."""
    return _inside(ord(character), _HIRAGANA)


def is_katakana(character: str) -> bool:
    """Whether a character is of katakana."""
    return _inside(ord(character), _KATAKANA)


def is_hangul(character: str) -> bool:
    """Whether a character is of hangul."""
    code = ord(character)
    return 0xAC00 <= code <= 0xD7A3 or 0x1100 <= code <= 0x11FF or 0x3131 <= code <= 0x318E


@functools.cache
def _ascii() -> re.Pattern[str]:
    return _pattern("A-Za-z", "", "0-9", "_", "", "", "", "")


@functools.cache
def _unicode() -> re.Pattern[str]:
    """The pattern of all characters; their classes are looked up once."""
    classes = _classes()
    return _pattern(*(_ranges(classes, name) for name in "LHDEXKCS"))


def _classes() -> list[str]:
    """The class of each character, later lines before earlier ones.

    L letter, H Hebrew, D digit, E joiner, X extends, K katakana, C alone, S without spaces.
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
    """The characters of a class as the inside of a pattern's class."""
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
    """The pattern of a word from the insides of classes; "" is a class of none.

    What extends a character belongs to it (WB4). Groups are atomic: nothing is tried twice.
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
    # A row of joiners without a letter is looked at once, and not from each of them.
    begin = f"(?>(?<![{joiners}])(?:{joiner}){{1,{MOST_CHARACTERS}}}|)"
    word = f"{begin}{part}(?:(?>(?:{joiner})+){part})*(?>(?:{joiner})*)"  # WB13a, WB13b
    others = f"|[{alone}]{x}|(?>(?:[{without_spaces}]{x})+)" if alone else ""
    return re.compile(word + others)
