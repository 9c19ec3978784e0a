"""Questions whose answer is a span of their context, for an encoder (SQuAD 1.1 and 2.0).

    [CLS] question [SEP] context [SEP]          labels: the places of the answer's two ends

With data.layout Windows() a context that does not fit is divided, as in BERT (`windows`). With
Labelled() a question has 64 tokens at most, and the context is cut at its end: an answer behind the
cut has no label, and is not found. A question without an answer has the label [CLS]. A head says
which tokens of the context the answer is, "12 15", and `SpanText` gives its text as the context has
it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from t5x_lite.data import labels
from t5x_lite.errors import InputError
from t5x_lite.vocabulary.encoder_tokens import EncoderTokens, separators, without_special
from t5x_lite.vocabulary.loading import Vocabulary
from t5x_lite.vocabulary.tokenizer import Tokenizer

LONGEST_QUESTION = 64
"""Tokens of a question; BERT's max_query_length."""
IMPOSSIBLE: labels.Label = (-1, -1)
"""The characters of an answer that the context does not have."""
NULL: labels.Label = labels.of_span(0, 0)
"""The label of no answer: [CLS]."""


def encode_spans(
    first: Sequence[str],
    second: Sequence[str],
    given: np.ndarray,
    *,
    vocabulary: Vocabulary,
    tokens: EncoderTokens,
    length: int,
) -> tuple[list[list[int]], list[labels.Label]]:
    """Rows of questions and contexts, labelled by tokens; `labelled_task.Encode`.

    Args:
      first: the questions.
      second: the contexts.
      given: of each answer in its context, the first character and the one behind the last; two
        equal numbers are an answer that is not known, or `IMPOSSIBLE`.
      vocabulary: a tokenizer, which knows the characters of its tokens.
      tokens: the vocabulary's.
      length: of a row at most.
    """
    num = separators(vocabulary)
    rows, found = [], []
    contexts = offsets_of(vocabulary, second)
    questions = vocabulary.encode_batch(first)
    for question, (ids, offsets), span in zip(questions, contexts, given.tolist(), strict=True):
        asked = without_special(question, tokens)[: min(LONGEST_QUESTION, length // 2)]
        start = 1 + len(asked) + num
        read = without_special(ids, tokens)[: length - 1 - start]
        rows.append([tokens.cls_id, *asked, *[tokens.sep_id] * num, *read])
        places = token_span(offsets[: len(read)], *span)
        if tuple(span) == IMPOSSIBLE:
            found.append(NULL)
        else:
            found.append(
                labels.NONE if places is None else labels.of_span(*(start + p for p in places))
            )
    return rows, found


def token_span(offsets: Sequence[tuple[int, int]], start: int, stop: int) -> tuple[int, int] | None:
    """The first and the last token that have a character of a span; None where it goes on behind.

    Args:
      offsets: of each token, its first character and the one behind its last.
      start: the span's first character.
      stop: the character behind its last.
    """
    inside = [place for place, (a, b) in enumerate(offsets) if a < stop and b > start]
    if start >= stop or not inside or offsets[-1][1] < stop:
        return None
    return inside[0], inside[-1]


def offsets_of(
    vocabulary: Vocabulary, texts: Sequence[str]
) -> list[tuple[list[int], list[tuple[int, int]]]]:
    """Tokens of texts with their characters.

    Raises:
      InputError: the vocabulary does not know them.
    """
    if not isinstance(vocabulary, Tokenizer):
        raise InputError(
            "a task of spans needs a vocabulary that knows which characters a token is: a "
            "tokenizer.json, a vocab.txt or an spm.model"
        )
    return vocabulary.encode_with_offsets(texts)


def first_answer(record: Mapping[str, Any]) -> labels.Label:
    """The characters of a record's first answer, from the first to behind the last; or none.

    A record may say by "is_impossible" that there is no answer.
    """
    if record.get("is_impossible", False):
        return IMPOSSIBLE
    answers = record["answers"]
    if not answers["text"] or answers["answer_start"][0] < 0:
        return labels.NONE
    start = answers["answer_start"][0]
    return start, start + len(answers["text"][0])


@dataclass(frozen=True)
class SpanText:
    """From a span of a context's tokens, "12 15", to its text; of a target, all answers.

    Attributes:
      vocabulary: of the tokens.
      nulls: whether there may be no answer, which is the text "". A prediction is then {"value":
        the text, "null_odds": the score of no answer less that of the best one}.
    """

    vocabulary: Vocabulary
    nulls: bool = False

    def __call__(
        self,
        text: str,
        example: Mapping[str, Any] | None = None,
        is_target: bool = False,
        null_odds: float = 0.0,
    ) -> str | list[str] | dict[str, Any]:
        """What the metrics compare; a text that is no span is given back as it is."""
        assert example is not None
        if is_target:
            return [a.decode() if isinstance(a, bytes) else a for a in example["answers"]]
        answer = self._answer(text, example)
        return {"value": answer, "null_odds": null_odds} if self.nulls else answer

    def _answer(self, text: str, example: Mapping[str, Any]) -> str:
        places = text.split()
        if len(places) != 2 or not all(place.isdecimal() for place in places):
            return text
        first, last = map(int, places)
        [(_, offsets)] = offsets_of(self.vocabulary, [example["context"]])
        return example["context"][offsets[first][0] : offsets[last][1]].strip()
