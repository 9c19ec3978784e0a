"""Whether a passage holds an answer: the recall of open question answering.

    has_answer(["Café de Flore"], "Le café  de flore,")     # True
    top_k({"q": ["Rome"]}, {"q": ["Oslo", "In Rome"]}, [1, 2])      # {"top@1": 0.0, "top@2": 1.0}

Text is divided into runs of letters, digits and marks, and single other characters that are no
white space and no control character, after normalisation to NFD, in lower case. An answer is there
where its tokens stand one after another. An answer without a token is in no passage.

Quotation marks, dashes, primes, slashes and the ellipsis are first made the plain ones.

Sources: Karpukhin et al. 2020, arXiv:2004.04906 (facebookresearch/DPR dpr/data/qa_validation.py);
MKQA: Longpre et al. 2021; BGE-M3's evaluation of it.
"""

import functools
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

_PLAIN = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032\u2035\u0060\u00b4\u02b9\u02bc", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u201f\u00ab\u00bb\u2033\u2036\u02ba", '"'),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d", "-"),
        **dict.fromkeys("\u2044\u2215\u29f8\uff0f", "/"),
        "\u2026": "...",
        "\u00ad": None,
    }
)


def tokens(text: str) -> list[str]:
    """The tokens of a text."""
    plain = unicodedata.normalize("NFD", text.translate(_PLAIN)).lower()
    return _pattern().findall(plain)


def has_answer(answers: Iterable[str], text: str) -> bool:
    """Whether one of the answers is in a text."""
    found = tokens(text)
    return any(_is_part(tokens(answer), found) for answer in answers)


def _is_part(part: Sequence[str], whole: Sequence[str]) -> bool:
    size = len(part)
    if not size:
        return False
    starts = (i for i in range(len(whole) - size + 1) if whole[i] == part[0])
    return any(whole[i : i + size] == part for i in starts)


def top_k(
    answers: Mapping[str, Sequence[str]],
    passages: Mapping[str, Sequence[str]],
    cuts: Sequence[int],
) -> dict[str, float]:
    """The share of questions of which one of the first k passages holds an answer.

    Args:
      answers: question -> its answers; at least one question.
      passages: question -> texts, best first; a question may be missing.
      cuts: the k.

    Returns:
      "top@k" of each.
    """
    firsts = {
        question: first_answer(found, passages.get(question, ()))
        for question, found in answers.items()
    }
    return {
        f"top@{cut}": sum(0 < first <= cut for first in firsts.values()) / len(firsts)
        for cut in cuts
    }


def first_answer(answers: Sequence[str], passages: Iterable[str]) -> int:
    """The rank, from 1, of the first passage that holds an answer; 0 where none does."""
    wanted = [found for answer in answers if (found := tokens(answer))]
    for rank, passage in enumerate(passages, start=1):
        whole = tokens(passage)
        if any(_is_part(part, whole) for part in wanted):
            return rank
    return 0


@functools.cache
def _pattern() -> re.Pattern[str]:
    r"""[\p{L}\p{N}\p{M}]+ or one character that is no separator and no control character."""
    spans: dict[str, list[str]] = {"word": [], "no": []}
    kinds = []
    for code in range(0x110000):
        category = unicodedata.category(chr(code))
        kinds.append("word" if category[0] in "LNM" else "no" if category[0] in "ZC" else "")
    for kind, inside in spans.items():
        marks = "".join("1" if found == kind else "0" for found in kinds)
        inside += [f"\\U{m.start():08x}-\\U{m.end() - 1:08x}" for m in re.finditer("1+", marks)]
    word, none = ("".join(inside) for inside in spans.values())
    return re.compile(f"[{word}]+|[^{word}{none}]")
