"""Predictions of an encoder's head, as the text that a task's metrics compare.

    ClassAnswers(bind, ("negative", "positive"), ...)    # "positive"
    ScoreAnswers(bind, ...)                              # "3.81"
    SpanAnswers(bind, longest=30, ...)                   # "12 15": tokens of the context, or ""
    ChoiceAnswers(bind, ("choice1", "choice2"), ...)     # "choice2"
    TokenAnswers(bind, ("B-PER", "I-PER", "O"), ...)     # "O B-PER I-PER O", a label per token
    CandidateAnswers(bind, ("no", "yes"), yes="yes", ...)    # "7", index of a candidate

These classes replace the decoding of a text-to-text model; postprocessing, metrics, samples and
submission files are the same.

If a context is split into windows, the answer to a question is computed from the logits of all
windows. For windows of 4, 4 and 3 tokens that start every 2 tokens, an answer may begin at the
following tokens; each token counts only in the window where it has the most context:

    0 1 2 3              0 1 2
        2 3 4 5                3 4
            4 5 6                  5 6

The answer is the most likely span that begins at one of these tokens, does not exceed the maximum
length, and lies in one window. The score of "no answer" is the minimum score of [CLS] over the
windows. The answer is "" if this score minus the best span's score is above a threshold (Devlin et
al. 2019, section 4.3; google-research/bert run_squad.py, write_predictions). BERT considers only
the 20 most likely first and last tokens of a window; here all spans are compared.
"""

import logging
import math
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Bool, Float

from t5x_lite.core.errors import InputError
from t5x_lite.core.sharding import jit_rows, rounded_rows
from t5x_lite.core.trees import Array, Params
from t5x_lite.inference.generate import (
    Bind,
    Generator,
    Prediction,
    batched,
    padded_length,
    with_adapter_ids,
)
from t5x_lite.layouts.base import Layout, separate
from t5x_lite.layouts.labelled import Windows
from t5x_lite.models.heads import Choice, ClassHead, Classifier, Head, Token
from t5x_lite.models.heads import Span as heads_Span

_logger = logging.getLogger(__name__)


class Window(NamedTuple):
    """Logits of a question answering head for one window of a long context.

    Attributes:
      first: logit of each context token as the first token of the answer, float32 [n].
      last: logit of each context token as the last token of the answer, float32 [n].
      null: sum of both logits at [CLS], the score of "no answer".
    """

    first: Float[np.ndarray, " n"]
    last: Float[np.ndarray, " n"]
    null: float


class Span(NamedTuple):
    """Answer span: its first and last token in the context, and the sum of their logits."""

    first: int
    last: int
    score: float


def best_answer(windows: Sequence[Window], *, stride: int, longest: int) -> Span | None:
    """Return the most likely span of a context, or None for an empty context.

    Args:
      windows: windows of the context, in order; all but the last have the same number of tokens.
      stride: number of tokens between the starts of two windows.
      longest: maximum number of tokens of a span.
    """
    sizes = [len(window.first) for window in windows]
    best = None
    counting = in_most_context(sizes, stride=stride)
    for (start, counts), window in zip(counting, windows, strict=True):
        scores = np.where(counts, window.first, -np.inf)
        first, last, score = best_span(scores, window.last, longest=longest)
        if score > (-np.inf if best is None else best.score):
            best = Span(start + first, start + last, score)
    return best


def in_most_context(
    sizes: Sequence[int], *, stride: int
) -> list[tuple[int, Bool[np.ndarray, " _"]]]:
    """Return each window's start in the context, and a mask of the tokens that count in the window.

    A token counts only in the window in which it is farthest from the nearer end of the window
    (_check_is_max_context in BERT).
    """
    step = min([stride, *sizes[:1]])
    starts = [step * number for number in range(len(sizes))]
    context = np.full((len(sizes), max(map(sum, zip(starts, sizes, strict=True)), default=0)), -1.0)
    for number, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        places = np.arange(size)
        around = np.minimum(places, size - 1 - places)
        context[number, start : start + size] = around + 0.01 * size
    chosen = np.argmax(context, axis=0) if len(sizes) else np.zeros(0, np.int64)
    return [
        (start, chosen[start : start + size] == number)
        for number, (start, size) in enumerate(zip(starts, sizes, strict=True))
    ]


def best_span(first: np.ndarray, last: np.ndarray, *, longest: int) -> Span:
    """Return the span with the largest sum of the logits of its ends; ties go to the earliest span.

    Args:
      first: logits of the first token, [n].
      last: logits of the last token, [n].
      longest: maximum number of tokens of a span.

    Returns:
      Indices of the first and last token, and the sum of logits; (0, 0, -inf) without tokens.
    """
    best = Span(0, 0, -np.inf)
    for width in range(min(longest, len(first))):
        sums = first[: len(first) - width].astype(np.float64) + last[width:]
        place = int(np.argmax(sums))
        if (sums[place], -place) > (best.score, -best.first):
            best = Span(place, place + width, float(sums[place]))
    return best


_OBJECTIVES = {
    "classifier": "Classify",
    "span": "Spans",
    "choice": "Choose",
    "token": "TagTokens",
}
"""Name of the objective that trains each head, by name of the head."""

_GIVES = {
    "classifier": "a class or a score",
    "span": "a span of the second text",
    "choice": "one of several choices",
    "token": "a tag for each word",
}

_FORMS: dict[str, type[Head]] = {
    "classifier": Classifier,
    "span": heads_Span,
    "choice": Choice,
    "token": Token,
}
"""Class of the head that predicts for a task, by the task's form, such as "classifier"."""

_TIED_ROWS = 60
"""Maximum number of predictions for a row with tokens that have several best labels."""


_T = TypeVar("_T")


class HeadAnswers(Generator):
    """Generator of predictions that applies an encoder's head to rows in batches of one size.

    Attributes:
      logits: compiled function (params, tokens [B, S], segment_ids [B, S], token_types [B, S]) ->
        logits of the head.

    Args:
      bind: function that builds the module, with its heads, from the parameters.
      head: name of the head.
      batch_size: number of rows per batch, rounded up to a multiple of the mesh's devices.
      longest: maximum number of tokens of a row.
      pad_id: id of the padding token.
      sep_id: id of the token that ends each text of a row.
      mesh: device mesh that divides the rows; None uses the devices of the parameters.
    """

    def __init__(
        self,
        bind: Bind,
        *,
        head: str,
        batch_size: int,
        longest: int,
        pad_id: int,
        sep_id: int,
        mesh: Mesh | None = None,
    ):
        def logits(params: Params, tokens: Array, segment_ids: Array, token_types: Array) -> Array:
            learner = bind(params)
            hidden = learner.model(tokens, segment_ids=segment_ids, token_types=token_types)
            return self._read(learner.heads[head], hidden)

        self.logits = jit_rows(logits, mesh)
        self._batch_size = rounded_rows(batch_size, mesh)
        self._longest, self._pad_id, self._sep_id = longest, pad_id, sep_id

    def run(
        self,
        params: Params,
        inputs: Sequence[np.ndarray],
        *,
        prompts: Sequence[np.ndarray] | None = None,
        seeds: Sequence[int | None] | None = None,
        offset: int = 0,
    ) -> list[list[Prediction]]:
        """Return the predictions for each input, best first.

        Args:
          params: parameter tree of the model and its heads.
          inputs: token ids of each row, int32, including [CLS] and [SEP].
          prompts: unused, because nothing is decoded.
          seeds: unused, because nothing is sampled.
          offset: unused, because nothing is sampled.
        """
        del prompts, seeds, offset
        return self._of_rows(params, inputs, self._answers)

    def _of_rows(
        self,
        params: Params,
        inputs: Sequence[np.ndarray],
        answers: Callable[[np.ndarray, np.ndarray], _T],
        *,
        static_length: int | None = None,
        seconds: Sequence[int] | None = None,
        adapter_ids: Sequence[int] | None = None,
    ) -> list[_T]:
        """Apply a function to each row's logits and the mask of its second text.

        Rows are padded to `static_length`, or to the next power of two. `seconds` has the index of
        the second text's first token in each row; by default, the second text begins after [SEP].
        """
        found: dict[int, _T] = {}
        order = sorted(range(len(inputs)), key=lambda row: len(inputs[row]))
        for rows in batched(order, self._batch_size):
            needed = padded_length(max(len(inputs[row]) for row in rows))
            length = min(needed, self._longest) if static_length is None else static_length
            tokens = np.full((self._batch_size, length), self._pad_id, np.int32)
            segments = np.zeros_like(tokens)
            for place, row in enumerate(rows):
                tokens[place, : len(inputs[row])] = inputs[row]
                segments[place, : len(inputs[row])] = 1
            ends = (tokens == self._sep_id) & (segments > 0)
            if seconds is None:
                types = ((np.cumsum(ends, axis=1) > ends) & (segments > 0)).astype(np.int32)
            else:
                begins = np.full((self._batch_size, 1), length)
                begins[: len(rows), 0] = [seconds[row] for row in rows]
                types = ((np.arange(length) >= begins) & (segments > 0)).astype(np.int32)
            own = with_adapter_ids(params, adapter_ids, rows, size=self._batch_size)
            logits = np.asarray(self.logits(own, tokens, segments, types))
            second = (types > 0) & ~ends
            for place, row in enumerate(rows):
                found[row] = answers(logits[place], second[place])
        return [found[row] for row in range(len(inputs))]

    def _read(self, head: Any, hidden: Array) -> Array:
        return head(hidden)

    @abstractmethod
    def _answers(self, logits: np.ndarray, second: np.ndarray) -> list[Prediction]:
        """Return the predictions for one row, best first."""


class ClassAnswers(HeadAnswers):
    """Predictor of one of several labels; the score is the label's log-probability.

    Args:
      bind: function that builds the module from the parameters.
      labels: texts of the labels, in the order of the classes.
      **options: options of `HeadAnswers`.
    """

    ranks = True

    def __init__(self, bind: Bind, labels: Sequence[str], **options: Any):
        super().__init__(bind, **options)
        self._labels = tuple(labels)

    def _answers(self, logits: np.ndarray, second: np.ndarray) -> list[Prediction]:
        scores = logits.astype(np.float64) - np.max(logits)
        scores -= np.log(np.sum(np.exp(scores)))
        return [
            Prediction(text=self._labels[index], ids=(), score=float(scores[index]))
            for index in np.argsort(-scores, kind="stable").tolist()
        ]


class CandidateAnswers(ClassAnswers):
    """Predictor of the index of the correct candidate of an input, with one row per candidate.

    Each row is classified separately; its score is the log-probability of the label `yes`.

    Args:
      bind: function that builds the module from the parameters.
      labels: texts of the labels, in the order of the classes.
      yes: label of the correct candidate.
      **options: options of `HeadAnswers`.
    """

    def __init__(self, bind: Bind, labels: Sequence[str], *, yes: str, **options: Any):
        super().__init__(bind, labels, **options)
        self._yes = yes

    def run(
        self, params: Params, inputs: Sequence[np.ndarray], **unused: Any
    ) -> list[list[Prediction]]:
        rows = [separate(one) for one in inputs]
        read = iter(super().run(params, [row for each in rows for row in each]))
        return [self._best([next(read) for _ in each]) for each in rows]

    def _best(self, answers: Sequence[Sequence[Prediction]]) -> list[Prediction]:
        scores = [next(one.score for one in each if one.text == self._yes) for each in answers]
        return [
            Prediction(text=str(number), ids=(), score=scores[number])
            for number in np.argsort(-np.array(scores), kind="stable").tolist()
        ]


class ScoreAnswers(HeadAnswers):
    """Predictor of a number (regression score), as text."""

    def _answers(self, logits: np.ndarray, second: np.ndarray) -> list[Prediction]:
        return [Prediction(text=f"{float(logits[0]):.6g}", ids=(), score=0.0)]


class SpanAnswers(HeadAnswers):
    """Predictor of the most likely span of a context, as indices of its first and last token.

    Args:
      bind: function that builds the module from the parameters.
      longest_answer: maximum number of tokens of a span.
      doc_stride: number of tokens between the starts of two windows of a context.
      null_threshold: threshold for the answer "": the score of "no answer" minus the best span's
        score must exceed it; None never predicts "".
      **options: options of `HeadAnswers`.
    """

    def __init__(
        self,
        bind: Bind,
        *,
        longest_answer: int,
        doc_stride: int = 1,
        null_threshold: float | None = None,
        **options: Any,
    ):
        super().__init__(bind, **options)
        self._longest_answer = longest_answer
        self._doc_stride, self._null_threshold = doc_stride, null_threshold

    def run(
        self, params: Params, inputs: Sequence[np.ndarray], **unused: Any
    ) -> list[list[Prediction]]:
        rows = [separate(one) for one in inputs]
        read = iter(self._of_rows(params, [row for each in rows for row in each], _window))
        return [[self._best([next(read) for _ in each])] for each in rows]

    def _read(self, head: Any, hidden: Array) -> Array:
        return jnp.stack(head(hidden), axis=1)

    def _best(self, windows: Sequence[Window]) -> Prediction:
        best = best_answer(windows, stride=self._doc_stride, longest=self._longest_answer)
        text = "" if best is None else f"{best.first} {best.last}"
        score = 0.0 if best is None else best.score
        if self._null_threshold is None:
            return Prediction(text=text, ids=(), score=score)
        odds = min(window.null for window in windows) - score
        if odds > self._null_threshold:
            text = ""
        return Prediction(text=text, ids=(), score=score, null_odds=odds)

    def _answers(self, logits: np.ndarray, second: np.ndarray) -> list[Prediction]:
        return [self._best([_window(logits, second)])]


def _window(logits: np.ndarray, second: np.ndarray) -> Window:
    null = float(np.sum(logits[:, 0], dtype=np.float64))
    return Window(logits[0, second], logits[1, second], null)


class ChoiceAnswers(HeadAnswers):
    """Predictor of the most likely choice of an input, as a label.

    Args:
      bind: function that builds the module from the parameters.
      labels: texts of the labels, in the order of the choices.
      **options: options of `HeadAnswers`.
    """

    ranks = True

    def __init__(self, bind: Bind, labels: Sequence[str], **options: Any):
        super().__init__(bind, **options)
        self._labels = tuple(labels)

    def run(
        self, params: Params, inputs: Sequence[np.ndarray], **unused: Any
    ) -> list[list[Prediction]]:
        choices = [separate(one) for one in inputs]
        read = iter(super().run(params, [row for rows in choices for row in rows]))
        return [self._chosen([next(read)[0].score for _ in rows]) for rows in choices]

    def _chosen(self, logits: Sequence[float]) -> list[Prediction]:
        scores = np.array(logits) - np.max(logits)
        scores -= np.log(np.sum(np.exp(scores)))
        return [
            Prediction(text=self._labels[index], ids=(), score=float(scores[index]))
            for index in np.argsort(-scores, kind="stable").tolist()
        ]

    def _answers(self, logits: np.ndarray, second: np.ndarray) -> list[Prediction]:
        return [Prediction(text="", ids=(), score=float(logits[0]))]


class TokenAnswers(HeadAnswers):
    """Predictor of a label for each token of a row, as text separated by spaces.

    If several labels of a token tie, several predictions are returned, in which each of these
    labels occurs equally often.

    Args:
      bind: function that builds the module from the parameters.
      labels: texts of the labels, in the order of the classes.
      **options: options of `HeadAnswers`.
    """

    ranks = True

    def __init__(self, bind: Bind, labels: Sequence[str], **options: Any):
        super().__init__(bind, **options)
        self._labels = tuple(labels)

    def run(
        self, params: Params, inputs: Sequence[np.ndarray], **unused: Any
    ) -> list[list[Prediction]]:
        """Return a label for each token; the task's postprocessor maps them to words."""
        found = self._of_rows(params, inputs, _best_classes)
        return [self._written(best[: len(row)]) for best, row in zip(found, inputs, strict=True)]

    def _written(self, best: Sequence[Sequence[int]]) -> list[Prediction]:
        rounds = min(math.lcm(*map(len, best)), _TIED_ROWS)
        rows = [[self._labels[own[k % len(own)]] for own in best] for k in range(rounds)]
        return [Prediction(text=" ".join(row), ids=(), score=0.0) for row in rows]

    def _answers(self, logits: np.ndarray, second: np.ndarray) -> list[Prediction]:
        return self._written(_best_classes(logits, second))


def _best_classes(logits: np.ndarray, _: np.ndarray) -> list[list[int]]:
    """Return for each token the classes with the largest logit: one class, or several tied ones."""
    return [np.flatnonzero(own == np.max(own)).tolist() or [0] for own in logits]


def head_named(heads: Mapping[str, Head], form: str | None, task: str) -> Head | None:
    """Return the encoder head for a task by its name, such as "mnli" for glue_mnli_matched."""
    kinds = _FORMS.values() if form is None else (_FORMS[form],)
    found = [
        head
        for name, head in heads.items()
        if name not in _OBJECTIVES
        and isinstance(head, tuple(kinds))
        and re.search(rf"(?:^|_){re.escape(name)}(?:_|$)", task)
    ]
    return max(found, key=lambda head: len(head.name), default=None)


def check_head(
    heads: Mapping[str, Head],
    form: str | None,
    labels: Sequence[str] | None,
    *,
    where: str,
    task: str = "",
) -> str:
    """Return the name of the encoder head that fits a task, by the task's name or form.

    Args:
      heads: heads of the checkpoint, by name.
      form: kind of head that the task needs, such as "classifier"; None if the task sets no kind.
      labels: labels of the task; None without a closed set of labels.
      where: description of the task for error messages.
      task: name of the task.

    Raises:
      InputError: if the head is missing or has another number of classes.
    """
    if (named := head_named(heads, form, task)) is not None:
        _check_classes(named, labels, where=where, remedy="name its classes in --objective.tasks")
        return named.name
    known = [name for name in _OBJECTIVES if name in heads]
    if not known:
        raise InputError(
            f"{where} requires a head named {' or '.join(_OBJECTIVES)}, but the model has the "
            f"heads {', '.join(heads) or 'none'}; use the objective Classify, Spans, Choose or "
            "TagTokens, or a checkpoint with such a head"
        )
    if form is not None and form not in heads:
        raise InputError(
            f"{where} requires a head that predicts {_GIVES[form]}, but the head {known[0]} "
            f"predicts {_GIVES[known[0]]}; use the objective {_OBJECTIVES[form]}"
        )
    head = heads[known[0] if form is None else form]
    wanted = 1 if labels is None else len(labels)
    _check_classes(head, labels, where=where, remedy=f"set --objective.num-classes {wanted}")
    return head.name


def _check_classes(head: Head, labels: Sequence[str] | None, *, where: str, remedy: str) -> None:
    wanted = 1 if labels is None else len(labels)
    if isinstance(head, ClassHead) and head.num_classes != wanted:
        named = (
            "no labels, so it needs 1 class"
            if labels is None
            else f"the labels {', '.join(labels)}"
        )
        raise InputError(
            f"objective.num_classes is {head.num_classes} (head {head.name}), but {where} has "
            f"{named}; {remedy}"
        )


def head_answers(
    bind: Bind,
    head: Head,
    labels: Sequence[str] | None,
    *,
    where: str,
    layout: Layout,
    null_threshold: float | None = None,
    candidates: bool = False,
    **options: Any,
) -> HeadAnswers:
    """Return the predictor that applies an encoder head to a task's examples.

    Args:
      bind: function that builds the module from the parameters.
      head: config of the head, which `check_head` has accepted.
      labels: labels of the task; None without a closed set of labels.
      where: description of the task for messages.
      layout: layout of the task's examples.
      null_threshold: threshold for the answer "", as in `SpanAnswers`; None never predicts "".
      candidates: True if an input has one row per candidate, and one candidate is right.
      **options: options of `HeadAnswers`.
    """
    options |= {"head": head.name}
    if isinstance(head, heads_Span):
        options |= {"doc_stride": layout.doc_stride} if isinstance(layout, Windows) else {}
        return SpanAnswers(
            bind, longest_answer=head.longest, null_threshold=null_threshold, **options
        )
    if isinstance(head, Choice):
        return ChoiceAnswers(bind, labels or (), **options)
    if labels is None:
        return ScoreAnswers(bind, **options)
    assert isinstance(head, ClassHead)
    order = _in_order(head, labels, where=where)
    if candidates:
        return CandidateAnswers(bind, order, yes=labels[-1], **options)
    answers = TokenAnswers if isinstance(head, Token) else ClassAnswers
    return answers(bind, order, **options)


def is_in_order(head: Head, labels: Sequence[str] | None) -> bool:
    """Return True if the head's classes have the order of the task's labels."""
    if labels is None or not isinstance(head, ClassHead):
        return True
    return head.order_of(labels) in (None, tuple(labels))


def _in_order(head: ClassHead, labels: Sequence[str], *, where: str) -> tuple[str, ...]:
    """Return a task's labels in the order of the head's classes.

    A head without class names, or with unrelated names such as LABEL_0, uses the task's order.
    """
    order = head.order_of(labels)
    if order is not None:
        return order
    if head.labels:
        _logger.warning(
            "%s: interpreting the head's classes %s as the labels %s, in this order",
            *(where, ", ".join(head.labels), ", ".join(labels)),
        )
    return tuple(labels)
