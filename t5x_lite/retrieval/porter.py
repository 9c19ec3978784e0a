"""Porter's stemmer of English words, with its author's two later changes.

    stem("relational")      # "relat"
    stem("flies")           # "fli"

Martin's changes (as in Lucene's PorterStemFilter): "bli" becomes "ble" in place of "abli" "able",
and "logi" becomes "log". Words of one or two letters stay.

Source: M. F. Porter 1980, "An algorithm for suffix stripping", Program 14(3), and
tartarus.org/martin/PorterStemmer.
"""

import itertools

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
    """The stem of a word in lower case."""
    if len(word) <= 2:
        return word
    word = _step_1(word)
    word = _replaced(word, _STEP_2)
    word = _replaced(word, _STEP_3)
    return _step_5(_step_4(word))


def _consonants(word: str) -> list[bool]:
    """Of each letter whether it is a consonant: y is one at the start and behind a vowel."""
    found: list[bool] = []
    for i, letter in enumerate(word):
        if letter == "y":
            found.append(i == 0 or not found[-1])
        else:
            found.append(letter not in "aeiou")
    return found


def _measure(word: str) -> int:
    """m of [C](VC)^m[V]: how often a vowel is followed by a consonant."""
    consonants = _consonants(word)
    return sum(not before and after for before, after in itertools.pairwise(consonants))


def _has_vowel(word: str) -> bool:
    return not all(_consonants(word))


def _ends_double(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and _consonants(word)[-1]


def _ends_cvc(word: str) -> bool:
    """Consonant, vowel, consonant that is not w, x or y."""
    return len(word) > 2 and _consonants(word)[-3:] == [True, False, True] and word[-1] not in "wxy"


def _step_1(word: str) -> str:
    """Plurals, -ed and -ing, and y."""
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
    """A word that lost -ed or -ing: its e again, or one of two equal consonants off."""
    if word.endswith(("at", "bl", "iz")):
        return word + "e"
    if _ends_double(word):
        return word if word[-1] in "lsz" else word[:-1]
    return word + "e" if _measure(word) == 1 and _ends_cvc(word) else word


def _replaced(word: str, rules: dict[str, str]) -> str:
    """The word with its longest suffix of the rules replaced, if what is before it has m > 0."""
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
    """A last e off, and one of two l."""
    if word.endswith("e"):
        m = _measure(word[:-1])
        if m > 1 or (m == 1 and not _ends_cvc(word[:-1])):
            word = word[:-1]
    if word.endswith("ll") and _measure(word[:-1]) > 1:
        word = word[:-1]
    return word
