r"""Winograd schemas as text: WSC of SuperGLUE, WNLI of GLUE, and definite pronoun resolution (DPR).

T5 asks all three in one form: the pronoun stands between asterisks, and the answer is the noun that
it means (Raffel et al. 2020, section 2.4):

    wsc_simple({"text": "Ann asked Bob if he could go .", "span1_text": "Bob", "span2_text": "he",
                "span2_index": 4, "label": 1, "idx": 0})
    # {"inputs": "wsc: Ann asked Bob if *he* could go .", "targets": "Bob", "label": 1, "idx": 0}

WSC and WNLI ask whether a given noun is meant. That noun is the target of their examples even where
it is not ("label" 0): train on examples with label 1 only.

Source: t5 0.9.4, t5/data/preprocessors.py (wsc, wsc_simple, definite_pronoun_resolution_simple,
wnli_simple).
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from t5x_lite.data.preprocess.classification import label_text
from t5x_lite.data.preprocess.templates import fill
from t5x_lite.errors import InputError

PRONOUNS = ("he", "she", "they", "it", "her", "his", "their", "them", "him")
_ARTICLES = ("a", "an", "the")
_MARKS = (".", ",", "!", "?")
_SPACE = r"[\t\n\f\r ]"  # RE2's \s
_TOO_FAR = 10

# Two texts of WSC whose pronoun does not stand alone at its index, with X in its place.
_PONY = (
    "The boy continued to whip the pony , and eventually the pony threw him over. John laughed out "
    'quite loud. "Good for him," he said. '
)
_PEBBLE = (
    "When they had eventually calmed down a bit , and had gotten home, Mr. Farley put the magic "
    "pebble in an iron safe . Some day they might want to use it , but really for now, what more "
    "could they wish for?"
)
_BLANKED = {
    _PONY: _PONY.replace('for him," he said. ', 'for X ," he said.'),
    _PEBBLE: _PEBBLE.replace("use it ,", "use X ,"),
}


def wsc_simple(record: Mapping[str, Any], *, inputs: str = "wsc: {text}") -> dict[str, Any]:
    """WSC: "text" with the pronoun (span2) between asterisks; the target is the noun (span1).

    Raises:
      InputError: the word at span2_index is not span2_text.
    """
    pronoun = record["span2_text"]
    text = _blanked(record).replace(" X ", f" *{pronoun}* ")
    return {
        "inputs": fill(inputs, {**record, "text": text}),
        "targets": record["span1_text"],
        "label": record.get("label", 0),
        "idx": record["idx"],
    }


def _blanked(record: Mapping[str, Any]) -> str:
    """The text with X in place of the pronoun."""
    text, pronoun, index = record["text"], record["span2_text"], record["span2_index"]
    if text in _BLANKED:
        return _BLANKED[text]
    words = text.split(" ")
    if not 0 < index < len(words) or words[index] != pronoun:
        raise _no_pronoun(record)
    # A pronoun at the end is followed by the space before nothing, as in T5.
    return " ".join([" ".join(words[:index]), "X", " ".join(words[index + 1 :])])


def marked_pronoun(record: Mapping[str, Any]) -> str:
    """The text of WSC with the pronoun (span2) between asterisks, where it is nearest to its index.

    The official files have pronouns beside marks, '"for him," he said', and indices that count
    marks as words or not: ten words off is too far.

    Raises:
      InputError: the pronoun is not at its index.
    """
    text, pronoun, index = record["text"], record["span2_text"], record["span2_index"]
    starts = [word.start() for word in re.finditer(r"\S+", text)]
    bare = re.escape(pronoun)
    words = [*re.finditer(rf"(?<!\w){bare}(?!\w)", text, re.IGNORECASE)]
    places = words or [*re.finditer(bare, text, re.IGNORECASE)]
    if pronoun and places and index < len(starts):
        nearest = min(places, key=lambda place: abs(place.start() - starts[index]))
        start, end = nearest.span()
        if abs(sum(begin <= start for begin in starts) - 1 - index) < _TOO_FAR:
            return f"{text[:start]}*{text[start:end]}*{text[end:]}"
    raise _no_pronoun(record)


def wsc(record: Mapping[str, Any], *, inputs: str = "wsc text: {text}") -> dict[str, Any]:
    """WSC as a yes or no: " * " around the noun (span1), " # " around the pronoun (span2).

    A span that does not stand at its index is not marked.
    """
    first, second = record["span1_index"], record["span2_index"]
    text = _marked(record["text"], record["span1_text"], first, mark="*")
    second += 2 * (first < second)  # the two marks are words, too
    text = _marked(text, record["span2_text"], second, mark="#")
    return {
        "inputs": fill(inputs, {**record, "text": text}),
        "targets": label_text(record["label"], ("False", "True")),
        "idx": record["idx"],
    }


def _no_pronoun(record: Mapping[str, Any]) -> InputError:
    return InputError(
        f"WSC {record['idx']}: word {record['span2_index']} of {record['text'][:60]!r} is not the "
        f"pronoun {record['span2_text']!r}"
    )


def _marked(text: str, span: str, index: int, *, mark: str) -> str:
    before = rf"^((?:[^\t\n\f\r ]+{_SPACE}){{{index}}})"
    return re.sub(
        before + re.escape(span), lambda match: f"{match.group(1)}{mark} {span} {mark}", text
    )


def definite_pronoun_resolution(
    record: Mapping[str, Any], *, inputs: str = "wsc: {sentence}"
) -> dict[str, Any]:
    """DPR: "sentence", its first "pronoun" between asterisks; the target is the right candidate.

    Args:
      record: "sentence", "pronoun", the two "candidates" and "label", the right one's index.
      inputs: the template.
    """
    pronoun = re.compile(rf" ({re.escape(record['pronoun'])})( |\.|,)")
    sentence = pronoun.sub(r" *\1*\2", record["sentence"], count=1)
    return {
        "inputs": fill(inputs, {**record, "sentence": sentence}),
        "targets": record["candidates"][record["label"]],
    }


# WNLI: the pronoun and the noun must be found by comparing premise and hypothesis.


class _Match(NamedTuple):
    """How well a pronoun of the premise fits, and what stands in its place in the hypothesis."""

    score: int
    index: int
    candidate: str


def wnli_simple(record: Mapping[str, Any], *, inputs: str = "wsc: {text}") -> dict[str, Any]:
    """WNLI in WSC's form; for evaluation only.

    Of the premise ("sentence1"), the pronoun is taken whose neighbours fit the hypothesis
    ("sentence2") furthest; what stands between them there is the target.

        "The fish ate the worm. It was tasty.", "The worm was tasty."
        -> "wsc: The fish ate the worm. *It* was tasty.", "The worm"

    Raises:
      InputError: the premise has no pronoun, or the hypothesis does not fit it.
    """
    premise, hypothesis = record["sentence1"], record["sentence2"]
    words, wanted = _words(premise), _words(hypothesis)
    matches = [_match(words, wanted, i) for i, word in enumerate(words) if word in PRONOUNS]
    if not matches:
        raise InputError(f"WNLI {record['idx']}: no pronoun in {premise[:60]!r}")
    best = max(matches, key=lambda match: match.score)
    targets = _as_in(hypothesis, _without_beginning(best.candidate))
    if targets is None:
        raise InputError(f"WNLI {record['idx']}: {hypothesis[:60]!r} does not fit its premise")
    return {
        "inputs": fill(inputs, {**record, "text": _highlighted(premise, best.index)}),
        "targets": targets,
        "premise": premise,
        "hypothesis": hypothesis,
        "label": record.get("label", 0),
        "idx": record["idx"],
    }


def _words(sentence: str) -> list[str]:
    """The words in lower case without a mark at their end."""
    words = (re.sub(r"[.,?!]$", "", word) for word in sentence.strip().lower().split(" "))
    return [word for word in words if word]


def _match(premise: Sequence[str], hypothesis: Sequence[str], index: int) -> _Match:
    before, after = premise[:index], premise[index + 1 :]
    num_before = _fitting(before[::-1], hypothesis[::-1])
    num_after = _fitting(after, hypothesis)
    score = num_before + num_after
    if not score:
        return _Match(0, index, "")
    left, right = list(before[len(before) - num_before :]), list(after[:num_after])
    text = " ".join(hypothesis)
    # The words are patterns, as in T5, where they are not escaped either.
    patterns = ([*left, "(.+)", *right], ["^(.+)", *right], [*left, "(.+)$"])
    try:
        found = (re.search(" ".join(pattern), text) for pattern in patterns)
        match = next((match for match in found if match), None)
    except re.error as error:
        raise InputError(f"WNLI: {text[:60]!r} cannot be compared ({error})") from error
    return _Match(score, index, match.group(1) if match else "")


def _fitting(words: Sequence[str], hypothesis: Sequence[str]) -> int:
    """How many of the first words stand, as one text, in the hypothesis."""
    text = " ".join(hypothesis)
    for count in range(len(words)):
        if " ".join(words[: count + 1]) not in text:
            return count
    return len(words)


def _without_beginning(candidate: str) -> str:
    """The candidate from its last article on: it may hold the beginning of the hypothesis."""
    words = candidate.split(" ")
    return " ".join(words[max((words.index(a) for a in _ARTICLES if a in words), default=0) :])


def _as_in(hypothesis: str, candidate: str) -> str | None:
    """The candidate as the hypothesis writes it, not possessive; None where it is not there."""
    words = (rf"{re.escape(word)}[.,?!]?" for word in candidate.split(" "))
    match = re.search(f"({' '.join(words)})", hypothesis, re.IGNORECASE)
    if match is None:
        return None
    text = match.group(1)
    text = text[:-1] if text.endswith(_MARKS) else text
    return text.removesuffix("'") if text.endswith("'") else text.removesuffix("'s")


def _highlighted(sentence: str, index: int) -> str:
    words = sentence.split(" ")
    word = words[index]
    ended = word.endswith(_MARKS)
    words[index] = f"*{word[:-1]}* {word[-1]}" if ended else f"*{word}*"
    return " ".join(words)
