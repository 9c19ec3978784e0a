r"""From a record to text: pure functions over str that tasks share, T5's text to the letter.

A record is a mapping with the fields of TensorFlow Datasets, text as str, a class label as its
index (-1 where it is not known). A function returns the example, or the list of examples, that T5
makes of it: "inputs", "targets", and what its metric needs to know ("idx", "answers").

    glue(
        {"sentence": "it 's charming .", "label": 1, "idx": 7},
        inputs="sst2 sentence: {sentence}",
        labels=("negative", "positive"),
    )
    # {"inputs": "sst2 sentence: it 's charming .", "targets": "positive", "idx": 7}

The text around the fields is a template: the paper (Raffel et al. 2020, arXiv:1910.10683, section
2.4) calls it a hyperparameter. A label that is not known is written "<unk>".

Source: t5 0.9.4, t5/data/preprocessors.py, where the text is made by TensorFlow.

Classification and regression as text: GLUE, and the tasks of SuperGLUE with one label a record.

Source: t5 0.9.4, t5/data/preprocessors.py (glue, stsb).

Questions about a text: SQuAD, and MultiRC and ReCoRD of SuperGLUE.

    squad({"question": "Why?", "context": "It rains.", "answers": {"text": ["rain"]}, "id": "7"})
    # {"inputs": "question: Why ? context: It rains . ", "targets": "rain", "id": "7", ...}

Source: t5 0.9.4, t5/data/preprocessors.py (squad, glue, record). White space is that of RE2's "\s",
which is ASCII and has no vertical tab.

Text with places for the fields of a record.

    fill("sst2 sentence: {sentence}", {"sentence": "it 's charming ."})
    # "sst2 sentence: it 's charming ."

A place is a field's name in braces, and any name will do ("{#1 String}"); "{{" and "}}" are braces.
What a field holds is text and is never read as a template.

Winograd schemas as text: WSC of SuperGLUE, WNLI of GLUE, and definite pronoun resolution (DPR).

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
import string
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from t5x_lite.core.errors import InputError
from t5x_lite.data.formats.documents import fill, places

__all__ = ["fill", "places", "prompt", "rewrite"]


def prompt(task: str, fields: Mapping[str, str]) -> str:
    """One line of a task's name and its fields, in their order."""
    return " ".join([task, *(f"{key}: {value}" for key, value in fields.items())])


def rewrite(record: Mapping[str, object], *, inputs: str, targets: str) -> dict[str, str]:
    """A record as two templates: summaries, translations, and anything of one's own.

    T5's are "summarize: {article}", and "translate English to German: {en}".
    """
    return {"inputs": fill(inputs, record), "targets": fill(targets, record)}


UNKNOWN = "<unk>"
"""The target of a record whose answer is not known, as in a test split."""


def glue(record: Mapping[str, Any], *, inputs: str, labels: Sequence[str]) -> dict[str, Any]:
    """A record with "label" and "idx" as text.

    Args:
      record: the fields.
      inputs: the template of the text. T5's shows the fields in alphabetical order.
      labels: the words of the labels, in the order of their indices.
    """
    return {
        "inputs": fill(inputs, record),
        "targets": label_text(record["label"], labels),
        "idx": record["idx"],
    }


def stsb(
    record: Mapping[str, Any], *, inputs: str = "stsb sentence1: {sentence1} sentence2: {sentence2}"
) -> dict[str, Any]:
    """STS-B: how similar two sentences are, from 0 to 5, as the nearest of "0.0", "0.2" ... "5.0".

    Rounding is that of TensorFlow, in float32 and to the even neighbour: 2.5 is "2.4". A label of
    -1, which is not known, is "-1.0".
    """
    fifths = np.rint(np.float32(record["label"]) * np.float32(5))
    return {
        "inputs": fill(inputs, record),
        "targets": f"{float(fifths / np.float32(5)):.1f}",
        "idx": record["idx"],
    }


def label_text(label: int, labels: Sequence[str]) -> str:
    """The word of a label's index; "<unk>" for -1."""
    return UNKNOWN if label == -1 else labels[label]


_SPACES = re.compile(r"[\t\n\f\r ]+")
_PUNCTUATION = re.compile(f"([{re.escape(string.punctuation)}])")
_SENTENCE_END = re.compile(r"""([.?!"'])\n@highlight\n""")


def pad_punctuation(text: str) -> str:
    """The text with a space on both sides of each ASCII punctuation mark, white space joined."""
    return _SPACES.sub(" ", _PUNCTUATION.sub(r" \1 ", text))


def squad(
    record: Mapping[str, Any], *, inputs: str = "question: {question} context: {context}"
) -> dict[str, Any]:
    """SQuAD: the first answer is the target, and all are kept for the metric.

    Args:
      record: "id", "question", "context", and "answers" with the list "text", empty where they are
        not known.
      inputs: the template; T5's closed-book form is "squad trivia question: {question}".
    """
    question, context = pad_punctuation(record["question"]), pad_punctuation(record["context"])
    answers = [pad_punctuation(answer) for answer in record["answers"]["text"]]
    return {
        "inputs": _SPACES.sub(" ", fill(inputs, {"question": question, "context": context})),
        "targets": answers[0] if answers else UNKNOWN,
        "id": record["id"],
        "context": context,
        "question": question,
        "answers": answers,
    }


def multirc(
    record: Mapping[str, Any],
    *,
    inputs: str = "multirc question: {question} answer: {answer} paragraph: {paragraph}",
) -> dict[str, Any]:
    """MultiRC: is this an answer to that question? HTML's <br> becomes a space, <b> goes.

    Args:
      record: "question", "answer", "paragraph", "label", and "idx" with the numbers of all three:
        the metric groups answers by their question.
      inputs: the template.
    """
    return {
        "inputs": without_html(fill(inputs, record)),
        "targets": label_text(record["label"], ("False", "True")),
        **{f"idx/{name}": record["idx"][name] for name in ("paragraph", "question", "answer")},
    }


def without_html(text: str) -> str:
    """A text of MultiRC: HTML's <br> becomes a space, <b> goes."""
    return re.sub("</?b>", "", text.replace("<br>", " "))


def record(
    record: Mapping[str, Any],
    *,
    inputs: str = "record query: {query} entities: {entities} passage: {passage}",
) -> list[dict[str, Any]]:
    """ReCoRD: which entity fills the @placeholder? One example for each answer.

    Without answers there is one example, its target "<unk>". The metric takes the best over the
    answers of a query, once.

    Args:
      record: "query", "passage", the lists "entities" and "answers", and "idx" with the numbers
        "passage" and "query".
      inputs: the template.
    """
    passage = without_highlights(record["passage"])
    fields = {**record, "passage": passage, "entities": ", ".join(record["entities"])}
    return [
        {
            "idx/passage": record["idx"]["passage"],
            "idx/query": record["idx"]["query"],
            "inputs": fill(inputs, fields),
            "targets": answer,
            "answers": list(record["answers"]),
        }
        for answer in record["answers"] or [UNKNOWN]
    ]


def without_highlights(passage: str) -> str:
    """A passage of ReCoRD: its "@highlight" lines become ends of sentences, as in T5."""
    return _SENTENCE_END.sub(r"\1 ", passage).replace("\n@highlight\n", ". ")


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


__all__ = [
    "UNKNOWN",
    "definite_pronoun_resolution",
    "fill",
    "glue",
    "label_text",
    "marked_pronoun",
    "multirc",
    "pad_punctuation",
    "prompt",
    "record",
    "rewrite",
    "squad",
    "stsb",
    "wnli_simple",
    "wsc",
    "wsc_simple",
]
