"""Predictions of an encoder's head for new texts: a class, a number, a choice, tags or a span.

| head | fields of a record | prediction |
|---|---|---|
| classifier | "inputs", and "second" for a pair | {"prediction": label}, with "probabilities" on request |
| classifier of one class | as above | {"prediction": number} |
| classifier of several labels per text | as above | {"prediction": [labels]} |
| choice | "inputs" and "choices" | {"prediction": choice, "index": its number from 0} |
| token | "inputs" | {"prediction": [{"label", "start", "end", "text", "score"}]} |
| span | "question" and "context" | {"prediction": text, "start", "end", "score"} |

The results equal transformers' pipelines text-classification, token-classification with
aggregation_strategy "simple", and question-answering (4.57), with the same defaults: windows of 384
tokens with an overlap of 128, and answers of at most 15 tokens. "start" and "end" are character
offsets. The string [SEP] or another special token in a text is encoded as that token, as in the
pipelines; in training and evaluation, it is encoded as the unknown token.
"""  # noqa: E501

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float

from t5x_lite.config import Experiment
from t5x_lite.core.errors import InputError
from t5x_lite.core.options import Count, Share, Whole, check_bounds, did_you_mean
from t5x_lite.core.trees import Array, Params
from t5x_lite.data.tasks.labelled import cut_longest, join
from t5x_lite.data.tasks.questions import divided
from t5x_lite.data.vocabularies.encoder_tokens import encoder_tokens, first_tokens
from t5x_lite.data.vocabularies.loading import Vocabulary
from t5x_lite.data.vocabularies.tokenizer import Tokenizer
from t5x_lite.inference.generate import Bind, Prediction
from t5x_lite.inference.head_answers import HeadAnswers
from t5x_lite.models.encoder import EncoderConfig
from t5x_lite.models.heads import Choice, ClassHead, Classifier, Head, Span, Token
from t5x_lite.objectives.learner import heads_of

LONGEST_WINDOW = 384
"""Maximum tokens of a row with a question and a window of its context, if the model allows it."""
_STRIDE = 128
_CANDIDATES = 12
"""Number of most likely spans to compare per window, as in transformers' pipeline (2 top_k +
10)."""
_OUTSIDE = "O"

_NEEDS = {
    "classifier": '"inputs", a string, and "second", a string, for a pair of texts',
    "token": '"inputs", a string',
    "choice": '"inputs", a string, and "choices", a list of strings',
    "span": '"question" and "context", two strings',
}
_GIVES = {
    "classifier": "classifies a text or a pair of texts",
    "token": "tags the words of one text",
    "choice": "chooses one of several texts",
    "span": "finds an answer in a context",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """Options for the predictions of an encoder head.

    Attributes:
      probabilities: True to return the probability of each class or choice.
      threshold: minimum probability of a label in multi-label classification; None is 0.5.
      doc_stride: number of tokens that two neighboring windows of a long text share. In question
        answering, None is 128, but at most half a row; for a tagger, None truncates long texts.
      longest_answer: maximum number of tokens of an answer span; None is 15.
      impossible_answers: True to allow the empty answer "", as in SQuAD 2.0.
    """

    probabilities: bool = False
    threshold: Share | None = None
    doc_stride: Whole | None = None
    longest_answer: Count | None = None
    impossible_answers: bool = False

    def __post_init__(self) -> None:
        check_bounds(self)

    def check(self, head: Head, *, where: object) -> None:
        """Raise InputError if one of the options does not apply to a head."""
        allowed = {
            "choice": {"probabilities"},
            "token": {"doc_stride"},
            "span": {"doc_stride", "longest_answer", "impossible_answers"},
            "classifier": {"probabilities"},
            "multi": {"probabilities", "threshold"},
            "number": set(),
        }
        fits = allowed[_option_kind(head)]
        for field in dataclasses.fields(self):
            if getattr(self, field.name) != field.default and field.name not in fits:
                others = f"; its options are {', '.join(sorted(fits))}" if fits else ""
                raise InputError(
                    f"checkpoint {where}: head {head.name!r} {_GIVES[kind_of(head)]}, but the "
                    f"option {field.name} is not supported for such a head{others}"
                )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Encoded:
    """Input record encoded as rows of tokens for the encoder.

    Attributes:
      rows: tokens of each row, int32, including [CLS] and [SEP].
      seconds: index of the second text's first token in each row, or the length of a row that has
        only one text.
      cut: True if a text was truncated.
      text: text that the character offsets in `offsets` refer to, or "".
      begins: number of tokens before the text in each row.
      offsets: for each row, the start and end character of each token of the text.
      words: for each row, the word number of each token; None for a token outside of words.
      choices: texts of the choices in multiple choice.
    """

    rows: Sequence[np.ndarray]
    seconds: Sequence[int] = ()
    cut: bool = False
    text: str = ""
    begins: int = 1
    offsets: Sequence[Sequence[tuple[int, int]]] = ()
    words: Sequence[Sequence[int | None]] = ()
    choices: Sequence[str] = ()


def kind_of(head: Head) -> str:
    """Return a head's kind, such as "classifier"; "" for a head that makes no predictions."""
    kinds = {"classifier": Classifier, "choice": Choice, "token": Token, "span": Span}
    return next((name for name, kind in kinds.items() if isinstance(head, kind)), "")


def _option_kind(head: Head) -> str:
    if not isinstance(head, Classifier):
        return kind_of(head)
    problem = head.problem
    if problem == "multi_label_classification":
        return "multi"
    return "number" if problem == "regression" or head.num_classes == 1 else "classifier"


def answering_heads(experiment: Experiment) -> dict[str, Head]:
    """Return the heads of an encoder that make predictions for texts, by name."""
    if not isinstance(experiment.model, EncoderConfig):
        return {}
    heads = heads_of(experiment.objective, experiment.heads)
    return {name: head for name, head in heads.items() if kind_of(head)}


def head_for(experiment: Experiment, name: str | None, *, where: object) -> Head:
    """Return the config of the head that makes predictions.

    Args:
      experiment: config of the checkpoint.
      name: name of the head; None selects the head that the objective trained, or the only head.
      where: path of the checkpoint, for messages.

    Raises:
      InputError: if the checkpoint has no such head, or several heads and no name is given.
    """
    heads = answering_heads(experiment)
    if name is not None:
        if name not in heads:
            has = (
                f"its heads are {', '.join(heads)}"
                if heads
                else "it has no head that predicts for texts"
            )
            raise InputError(
                f"checkpoint {where} has no head {name!r} that predicts for "
                f"texts{did_you_mean(name, heads)}; {has}"
            )
        return heads[name]
    own = [head.name for head in experiment.objective.heads(heads) if head.name in heads]
    chosen = own or list(heads)
    if len(chosen) == 1:
        return heads[chosen[0]]
    if chosen:
        raise InputError(
            f"checkpoint {where} has several heads, {', '.join(chosen)}; choose one of the heads "
            "by --head NAME"
        )
    raise InputError(f"checkpoint {where}: {cannot_answer(experiment)}")


def cannot_answer(experiment: Experiment) -> str:
    """Return an error message for an encoder without a head that makes predictions."""
    name = type(experiment.model).__name__.removesuffix("Config")
    return (
        f"{name} is an encoder without a head that predicts for texts; use `t5x-lite embed` for "
        "its vectors, or train a head by `t5x-lite finetune`"
    )


def check_record(head: Head, record: Mapping[str, Any], *, where: str) -> None:
    """Raise InputError unless a record has the texts that a head needs."""
    kind = kind_of(head)
    foreign = {"classifier": ("choices",), "token": ("second", "choices"), "choice": ("second",)}
    for name in foreign.get(kind, ()):
        if name in record:
            raise InputError(
                f'{where}: the record has "{name}", but head {head.name!r} {_GIVES[kind]}; the '
                f"record must have {_NEEDS[kind]}"
            )
    names = fields_of(head, record)
    for name in names:
        if name not in record:
            has = ", ".join(f'"{key[:40]}"' for key in sorted(record)[:8]) or "nothing"
            raise InputError(f"{where}: the record must have {_NEEDS[kind]}, but has {has}")
        _check_text(record[name], f'{where}: "{name}"')
    if kind == "classifier" and "second" in record:
        _check_text(record["second"], f'{where}: "second"')
    if kind == "choice":
        choices = record.get("choices")
        if not isinstance(choices, list):
            raise InputError(f"{where}: the record must have {_NEEDS[kind]}")
        if len(choices) < 2:
            raise InputError(
                f'{where}: "choices" must be a list of at least 2 texts, got {len(choices)}; '
                "add a choice or remove the line"
            )
        for number, choice in enumerate(choices):
            _check_text(choice, f'{where}: "choices"[{number}]')


def fields_of(head: Head, record: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the fields that a head reads from a record."""
    if kind_of(head) != "span":
        return ("inputs",)
    named = "question" in record or "context" in record or "inputs" not in record
    return ("question", "context") if named else ("inputs", "second")


def _check_text(value: Any, where: str) -> None:
    if not isinstance(value, str):
        raise InputError(f"{where} must be a string, got {type(value).__name__}")
    if not value.strip():
        raise InputError(f"{where} is empty; add a text or remove the line")


class HeadLogits(HeadAnswers):
    """Predictor of logits, which applies an encoder and one head to rows of tokens."""

    def of(
        self,
        params: Params,
        rows: Sequence[np.ndarray],
        *,
        seconds: Sequence[int] | None = None,
        static_length: int | None = None,
        adapter_ids: Sequence[int] | None = None,
    ) -> list[np.ndarray]:
        """Return the float32 logits of each row.

        Args:
          params: parameter tree of the model and its heads.
          rows: tokens of each row, int32.
          seconds: index of the second text's first token; None for the token after the first [SEP].
          static_length: length in tokens to which rows are padded; None is the next power of two.
          adapter_ids: adapter id of each row; None if all rows use the same adapters.
        """
        return self._of_rows(
            params,
            rows,
            lambda logits, _: logits.copy(),
            static_length=static_length,
            seconds=seconds,
            adapter_ids=adapter_ids,
        )

    def _read(self, head: Any, hidden: Array) -> Array:
        found = head(hidden)
        return jnp.stack(found, axis=1) if isinstance(found, tuple) else found

    def _answers(self, logits: np.ndarray, second: np.ndarray) -> list[Prediction]:
        raise NotImplementedError(
            "HeadLogits returns no predictions; call the method `of` for its logits"
        )


class Answerer:
    """Predictor that applies a head of an encoder to records of text.

    Args:
      head: config of the head.
      bind: function that builds the module from a parameter tree.
      params: parameter tree of the model and its heads.
      vocabulary: vocabulary of the model.
      asked: options of the predictions.
      length: maximum number of tokens of a row.
      batch_size: number of rows per batch.
      where: path of the checkpoint, for messages.
      mesh: device mesh that divides the rows; None uses one device.

    Raises:
      InputError: if an option does not apply to the head, or the length is too short for a text.
    """

    def __init__(
        self,
        head: Head,
        *,
        bind: Bind,
        params: Params,
        vocabulary: Vocabulary,
        asked: Asked,
        length: int,
        batch_size: int,
        where: object,
        mesh: Mesh | None = None,
    ):
        asked.check(head, where=where)
        self.head, self.asked, self.length = head, asked, length
        self.kind = kind_of(head)
        self._params, self._vocabulary, self._where = params, vocabulary, where
        self._tokens = encoder_tokens(vocabulary)
        least = 6 + self._tokens.separators
        if length < least:
            raise InputError(
                f"checkpoint {where}: the maximum length of {length} tokens is too short for "
                f"any text; set --inputs-length to at least {least}"
            )
        self._logits = HeadLogits(
            bind,
            head=head.name,
            batch_size=batch_size,
            longest=length,
            pad_id=vocabulary.pad_id,
            sep_id=self._tokens.sep_id,
            mesh=mesh,
        )
        if self.kind in ("span", "token") and not isinstance(vocabulary, Tokenizer):
            raise InputError(
                f"checkpoint {where}: head {head.name!r} returns character offsets, but the "
                f"vocabulary {type(vocabulary).__name__} does not provide them; use a model "
                "with a tokenizer.json, vocab.txt or spm.model"
            )

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the head's classes; LABEL_0, LABEL_1, ... if the head has no names."""
        assert isinstance(self.head, ClassHead)
        return self.head.labels or tuple(f"LABEL_{i}" for i in range(self.head.num_classes))

    def run(self, records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the prediction for each record; `check_record` must have accepted the records."""
        return self.answers(self.encode(records))

    def answers(
        self, encoded: Sequence[Encoded], *, adapter_ids: Sequence[int] | None = None
    ) -> list[dict[str, Any]]:
        """Return the prediction for each encoded record."""
        rows = [row for one in encoded for row in one.rows]
        seconds = [place for one in encoded for place in one.seconds]
        if adapter_ids is not None:
            pairs = zip(encoded, adapter_ids, strict=True)
            adapter_ids = [number for one, number in pairs for _ in one.rows]
        found = iter(self.logits(rows, seconds, adapter_ids=adapter_ids))
        return [self.answer(one, [next(found) for _ in one.rows]) for one in encoded]

    def logits(
        self,
        rows: Sequence[np.ndarray],
        seconds: Sequence[int],
        *,
        static_length: int | None = None,
        adapter_ids: Sequence[int] | None = None,
    ) -> list[np.ndarray]:
        """Return the logits of each row of tokens.

        Raises:
          InputError: if a logit is NaN or infinite.
        """
        found = self._logits.of(
            self._params,
            rows,
            seconds=seconds,
            static_length=static_length,
            adapter_ids=adapter_ids,
        )
        if not all(np.all(np.isfinite(logits)) for logits in found):
            raise InputError(
                f"checkpoint {self._where}: a logit of the head is NaN or infinite; check the "
                "checkpoint's weights, or use float32 as the compute dtype"
            )
        return found

    # Rows.

    def encode(self, records: Sequence[Mapping[str, Any]]) -> list[Encoded]:
        """Return the records as rows of tokens; `check_record` must have accepted the records."""
        if self.kind == "span":
            return self._contexts(records)
        if self.kind == "token":
            return self._tagged([record["inputs"] for record in records])
        groups = [_texts(record) for record in records]
        flat = [texts for group in groups for texts in group]
        made = iter(self._joined(flat))
        found = []
        for record, group in zip(records, groups, strict=True):
            rows = [next(made) for _ in group]
            cut = any(one for *_, one in rows)
            choices = record.get("choices", ()) if self.kind == "choice" else ()
            found.append(
                Encoded(
                    rows=[row for row, *_ in rows],
                    seconds=[second for _, second, _ in rows],
                    cut=cut,
                    choices=choices,
                )
            )
        return found

    def _joined(self, groups: Sequence[Sequence[str]]) -> list[tuple[np.ndarray, int, bool]]:
        texts = list(dict.fromkeys(text for group in groups for text in group))
        encoded = first_tokens(self._vocabulary, texts, count=self.length)
        ids = dict(zip(texts, encoded, strict=True))
        found, separators = [], self._tokens.separators
        for group in groups:
            parts = [ids[text] for text in group]
            row = join(parts, tokens=self._tokens, length=self.length, separators=separators)
            whole = sum(map(len, parts)) + 1 + separators * (len(parts) - 1)
            second = len(row) + 1
            if len(parts) == 2:
                room = self.length - 2 - separators
                second = 2 + cut_longest(len(parts[0]), len(parts[1]), room=room)[0]
            found.append(
                (np.array([*row, self._tokens.sep_id], np.int32), second, len(row) < whole)
            )
        return found

    def _tagged(self, texts: Sequence[str]) -> list[Encoded]:
        room, share = self.length - 2, self.asked.doc_stride
        if share is not None and share >= room:
            raise InputError(
                f"doc_stride must be below {room}, the number of tokens of a window, got {share}"
            )
        found = []
        for text, (ids, offsets, _) in zip(texts, self._places(texts), strict=True):
            windows = divided(len(ids), room=room, stride=room - (share or 0))
            cut = share is None and len(windows) > 1
            windows = windows[:1] if share is None else windows
            rows = [self._row([], ids[w.start : w.stop]) for w in windows]
            found.append(
                Encoded(
                    rows=rows,
                    seconds=[len(row) for row in rows],
                    cut=cut,
                    text=text,
                    offsets=[offsets[w.start : w.stop] for w in windows],
                )
            )
        return found

    def _contexts(self, records: Sequence[Mapping[str, Any]]) -> list[Encoded]:
        names = [fields_of(self.head, record) for record in records]
        questions = [record[name[0]] for record, name in zip(records, names, strict=True)]
        contexts = [record[name[1]] for record, name in zip(records, names, strict=True)]
        asked = first_tokens(self._vocabulary, questions, count=self.length)
        found = []
        for question, context, (ids, offsets, words) in zip(
            asked, contexts, self._places(contexts), strict=True
        ):
            own = question[: self.length // 2 - 2]
            before = [*own, *[self._tokens.sep_id] * self._tokens.separators]
            room = self.length - 2 - len(before)
            windows = divided(len(ids), room=room, stride=room - self._share(room))
            found.append(
                Encoded(
                    rows=[self._row(before, ids[w.start : w.stop]) for w in windows],
                    seconds=[2 + len(own)] * len(windows),
                    cut=len(own) < len(question),
                    text=context,
                    begins=1 + len(before),
                    offsets=[offsets[w.start : w.stop] for w in windows],
                    words=[words[w.start : w.stop] for w in windows],
                )
            )
        return found

    def _share(self, room: int) -> int:
        share = self.asked.doc_stride
        if share is None:
            return min(self.length // 2, _STRIDE, room - 1)
        if share >= room:
            raise InputError(
                f"doc_stride must be below {room}, the number of context tokens in a row of "
                f"{self.length} tokens, got {share}"
            )
        return share

    def _row(self, before: Sequence[int], ids: Sequence[int]) -> np.ndarray:
        return np.array([self._tokens.cls_id, *before, *ids, self._tokens.sep_id], np.int32)

    def _places(
        self, texts: Sequence[str]
    ) -> list[tuple[Sequence[int], list[tuple[int, int]], list[int | None]]]:
        assert isinstance(self._vocabulary, Tokenizer)
        return [*self._vocabulary.encode_with_words(texts)]

    # Answers.

    @property
    def can_list(self) -> bool:
        """True if the head can return the probability of each class or choice."""
        return _option_kind(self.head) in ("classifier", "multi", "choice")

    def answer(
        self,
        encoded: Encoded,
        logits: Sequence[np.ndarray],
        *,
        probabilities: bool | None = None,
    ) -> dict[str, Any]:
        """Return the prediction for one record from its logits.

        Args:
          encoded: encoded record.
          logits: logits of each row of the record.
          probabilities: True to return the probabilities; None uses the option in `asked`.
        """
        listed = self.asked.probabilities if probabilities is None else probabilities
        if self.kind == "classifier":
            return self._of_classes(logits[0], listed=listed)
        if self.kind == "choice":
            values = np.array([float(one[0]) for one in logits])
            return _of_choices(encoded, values, listed=listed)
        if self.kind == "token":
            return {"prediction": tagged_spans(encoded, logits, self.labels)}
        return best_span(
            encoded,
            logits,
            longest=self.asked.longest_answer or 15,
            may_be_none=self.asked.impossible_answers,
        )

    def _of_classes(self, logits: Float[np.ndarray, " C"], *, listed: bool) -> dict[str, Any]:
        assert isinstance(self.head, Classifier)
        problem, values = self.head.problem, logits.astype(np.float64)
        if problem == "regression":
            numbers = values.tolist()
            return {"prediction": numbers[0] if len(numbers) == 1 else numbers}
        if problem == "multi_label_classification" or len(values) == 1:
            probabilities = 1.0 / (1.0 + np.exp(-values))
        else:
            probabilities = softmax(values)
        named = dict(zip(self.labels, probabilities.tolist(), strict=True))
        if problem == "multi_label_classification":
            threshold = 0.5 if self.asked.threshold is None else self.asked.threshold
            answer: Any = [label for label, p in named.items() if p > threshold]
        elif len(values) == 1:
            answer = float(probabilities[0])
        else:
            answer = self.labels[int(np.argmax(values))]
        return {"prediction": answer, **({"probabilities": named} if listed else {})}


def _of_choices(
    encoded: Encoded, values: Float[np.ndarray, " n"], *, listed: bool
) -> dict[str, Any]:
    best = int(np.argmax(values))
    more = {"probabilities": softmax(values).tolist()} if listed else {}
    return {"prediction": encoded.choices[best], "index": best, **more}


def _texts(record: Mapping[str, Any]) -> list[list[str]]:
    if "choices" in record:
        return [[record["inputs"], choice] for choice in record["choices"]]
    return [[record["inputs"], *([record["second"]] if "second" in record else [])]]


def softmax(logits: Float[np.ndarray, "*B n"]) -> Float[np.ndarray, "*B n"]:
    """Return the softmax of logits over the last axis, in float64."""
    values = np.exp(logits.astype(np.float64) - np.max(logits, axis=-1, keepdims=True))
    return values / np.sum(values, axis=-1, keepdims=True)


def tagged_spans(
    encoded: Encoded, logits: Sequence[np.ndarray], labels: Sequence[str]
) -> list[dict[str, Any]]:
    """Return a text's tagged spans (entities), like transformers' aggregation_strategy "simple".

    A span is a run of tokens with the same tag; B- begins a new span. If spans of different windows
    overlap, the longest span is kept, and of equally long spans the most likely one.

    Args:
      encoded: encoded text with the character offsets of its tokens.
      logits: logits of each window, float32 [tokens, classes].
      labels: names of the classes; "O" marks tokens outside of spans.
    """
    found = []
    for offsets, window in zip(encoded.offsets, logits, strict=True):
        scores = softmax(window[encoded.begins : encoded.begins + len(offsets)])
        classes = np.argmax(scores, axis=-1) if len(offsets) else np.zeros(0, np.int64)
        groups: list[list[int]] = []
        before = ""
        for place, number in enumerate(classes.tolist()):
            label = labels[number]
            tag = label[2:] if label.startswith(("B-", "I-")) else label
            if groups and tag == before and not label.startswith("B-"):
                groups[-1].append(place)
            else:
                groups.append([place])
            before = tag
        for places in groups:
            label = labels[int(classes[places[0]])].split("-", 1)[-1]
            if label == _OUTSIDE:
                continue
            start, end = offsets[places[0]][0], offsets[places[-1]][1]
            found.append(
                {
                    "label": label,
                    "start": start,
                    "end": end,
                    "text": encoded.text[start:end],
                    "score": float(np.mean([scores[p, classes[p]] for p in places])),
                }
            )
    return found if len(logits) == 1 else _without_overlaps(found)


def _without_overlaps(spans: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    kept: list[dict[str, Any]] = []
    for span in sorted(spans, key=lambda span: span["start"]):
        last = kept[-1] if kept else None
        if last is None or not last["start"] <= span["start"] < last["end"]:
            kept.append(span)
        elif (span["end"] - span["start"], span["score"]) > (
            last["end"] - last["start"],
            last["score"],
        ):
            kept[-1] = span
    return kept


def best_span(
    encoded: Encoded, logits: Sequence[np.ndarray], *, longest: int, may_be_none: bool = False
) -> dict[str, Any]:
    """Return the most likely answer in a context, like transformers' question-answering pipeline.

    In each window, the probability of a span is the product of the probabilities of its first and
    last token. A span is extended to complete words. The probabilities of spans with equal texts
    are added, also across windows.

    Args:
      encoded: encoded context with the character offsets and word numbers of its tokens.
      logits: logits of each window, float32 [2, tokens].
      longest: maximum number of tokens of a span.
      may_be_none: True to allow the answer "", with the probability of [CLS].
    """
    found: dict[str, dict[str, Any]] = {}
    null = 1.0
    for number, window in enumerate(logits):
        offsets, words = encoded.offsets[number], encoded.words[number]
        size = len(offsets)
        own = window[:, encoded.begins : encoded.begins + size]
        scores = softmax(np.concatenate([window[:, :1], own], axis=1))
        null = min(null, float(scores[0, 0] * scores[1, 0]))
        for first, last, score in _likeliest(scores[0, 1:], scores[1, 1:], longest=longest):
            start, end = _characters(offsets, words, first, last)
            text = encoded.text[start:end]
            known = found.setdefault(
                text.lower(), {"prediction": text, "start": start, "end": end, "score": 0.0}
            )
            known["score"] += score
    answers = list(found.values())
    if may_be_none or not answers:
        answers.append({"prediction": "", "start": 0, "end": 0, "score": null})
    return max(answers, key=lambda answer: answer["score"])


def _likeliest(
    first: Float[np.ndarray, " n"], last: Float[np.ndarray, " n"], *, longest: int
) -> list[tuple[int, int, float]]:
    size = len(first)
    widths = min(longest, size)
    table = np.full((size, widths), -1.0)
    for width in range(widths):
        table[: size - width, width] = first[: size - width] * last[width:]
    order = np.argsort(-table, axis=None, kind="stable")[:_CANDIDATES]
    found = [divmod(int(place), widths) for place in order] if size else []
    return [(i, i + w, float(table[i, w])) for i, w in found if table[i, w] >= 0.0]


def _characters(
    offsets: Sequence[tuple[int, int]], words: Sequence[int | None], first: int, last: int
) -> tuple[int, int]:
    if words[first] is None or words[last] is None:
        return offsets[first][0], offsets[last][1]
    while first > 0 and words[first - 1] == words[first]:
        first -= 1
    while last + 1 < len(words) and words[last + 1] == words[last]:
        last += 1
    return offsets[first][0], offsets[last][1]
