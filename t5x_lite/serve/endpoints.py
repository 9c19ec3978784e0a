"""Endpoints of `t5x-lite serve`: predict, score, embed, rerank.

    ENDPOINTS["predict"](model, Asked(decoding=Decoding(num_beams=4)))

An endpoint converts the texts of a request into rows, and rows into outcomes, in static shapes: a
batch of `size` rows with tokens padded to `lengths`. To add an endpoint, write its class and add it
to ENDPOINTS. Routes, batches, warm-up, metrics and the web page follow from the table.
"""

import dataclasses
import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from t5x_lite.core.errors import InputError, shown
from t5x_lite.core.options import did_you_mean
from t5x_lite.decoding.sampling import NUM_SEEDS, Decoding
from t5x_lite.inference.answers import Answerer, Encoded, answering_heads, check_record
from t5x_lite.inference.answers import Asked as Answers
from t5x_lite.inference.checkpoint import Checkpoint, LongInputs, check_finite
from t5x_lite.inference.pairs import CrossEncoder
from t5x_lite.models.vector_heads import Pooling, Role
from t5x_lite.serve import batching
from t5x_lite.serve.batching import Refused, Row, fit, lengths


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """Options of the endpoints of a server.

    Attributes:
      decoding: options for decoding predictions.
      lengths: static input lengths in tokens, ascending; None selects powers of two.
      targets_length: maximum tokens of a target or candidate, including EOS.
      long_inputs: "cut" truncates longer inputs and marks the result; "refuse" rejects them.
      max_rows: maximum number of texts of a request.
      pooling: pooling of vectors; None uses the checkpoint's setting.
      normalize: True to scale vectors to length 1; None uses the checkpoint's setting, or True.
      role: role of the embedded texts, for a retriever with separate encoders or projections for
        queries and passages.
      head: encoder head that predicts; None selects the head that the objective trained.
      answers: options for the predictions of an encoder head.
      adapters: adapter ids by the names that requests may give; the server changes the mapping
        while it runs.
    """

    decoding: Decoding = dataclasses.field(default_factory=Decoding)
    lengths: tuple[int, ...] | None = None
    targets_length: int = 64
    long_inputs: LongInputs = "cut"
    max_rows: int = 128
    pooling: Pooling | None = None
    normalize: bool | None = None
    role: Role = "query"
    head: str | None = None
    answers: Answers = dataclasses.field(default_factory=Answers)
    adapters: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def adapter_id(self, record: Mapping[str, Any]) -> int:
        """Return the id of the adapter that a request names; 0 if it names no adapter."""
        name = batching.optional_text(record, "adapter")
        if not name:
            return 0
        found = self.adapters.get(name)
        if found is None:
            known = sorted(dict(self.adapters))
            has = f"there are {', '.join(known)}" if known else "there is none"
            hint = did_you_mean(name[:40], known)
            raise Refused(400, f"No adapter is called {shown(name)}{hint}; {has}.")
        return found

    def static_lengths(self, longest: int) -> tuple[int, ...]:
        """Return the input lengths to compile programs for, up to about `longest` tokens."""
        if self.lengths is None:
            return lengths(longest)
        shorter = [one for one in self.lengths if one < longest]
        return (*shorter, *lengths(longest)[-1:])


class Predict:
    """Endpoint `predict` of a text-to-text model, which generates a prediction for each input."""

    fields = frozenset({"inputs", "seed", "adapter"})

    def __init__(self, model: Checkpoint, asked: Asked):
        self._model, self._asked = model, asked
        self._lengths = asked.static_lengths(model.inputs_length)
        self._generators = _BySize(lambda size: model.generator(asked.decoding, batch_size=size))
        self._generators.get(1)  # an encoder is rejected at the start
        self.example = {"inputs": ["Type a text here.", "A second text is answered with it."]}

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Padded lengths of the inputs; a program is compiled for each length."""
        return [(length,) for length in self._lengths]

    def warm_row(self, shape: tuple[int, ...]) -> Any:
        return np.ones(shape[0], np.int32), 0, False, 0

    def rows(self, record: Mapping[str, Any]) -> list[Row]:
        inputs = batching.texts(record, "inputs", most=self._asked.max_rows)
        seed = batching.optional_number(record, "seed", below=NUM_SEEDS)
        adapter_id = self._asked.adapter_id(record)
        rows, cut = _tokens(self._model, inputs, self._asked)
        return [
            Row(
                (fit(self._lengths, len(row)),),
                (row, random.randrange(NUM_SEEDS) if seed is None else seed, i in cut, adapter_id),
            )
            for i, row in enumerate(rows)
        ]

    def answer(
        self, payloads: Sequence[Any], *, size: int, lengths: tuple[int, ...]
    ) -> list[dict[str, Any] | Refused]:
        rows, seeds, cut, ids = zip(*payloads, strict=True)
        found = self._model.predictions(
            self._generators.get(size),
            _filled(rows, lengths[0]),
            seeds=seeds,
            adapter_ids=_ids(self._model, ids),
        )
        return [
            _finite(self._result(predictions, cut=one), *(each.score for each in predictions))
            for predictions, one in zip(found, cut, strict=True)
        ]

    def _result(self, predictions: Sequence[Any], *, cut: bool) -> dict[str, Any]:
        best = predictions[0]
        result: dict[str, Any] = {"prediction": best.text, "score": best.score}
        if self._asked.decoding.num_return > 1:
            result["predictions"] = [{"text": p.text, "score": p.score} for p in predictions]
        return _with_cut(result, cut)

    def results(self, record: Mapping[str, Any], outcomes: Sequence[Any]) -> list[Any]:
        del record
        return list(outcomes)


class PredictByHead:
    """Endpoint `predict` of an encoder head, such as a classifier.

    A field holds one text, or a list of texts; all lists of a request have the same length. A
    classifier reads {"inputs", "second"}, a tagger {"inputs"}, and a span head {"question",
    "context"}. Multiple choice reads "inputs" with a list of "choices", or a list of "inputs" with
    a list of such lists. With "probabilities" true, classifiers and multiple choice return the
    probability of each label.
    """

    def __init__(self, model: Checkpoint, asked: Asked):
        self._model, self._asked = model, asked
        first = model.answerer(batch_size=1, head=asked.head, asked=asked.answers)
        self._first, self._names = first, _names_of(first)
        self._answerers: dict[int, Answerer] = {1: first}
        longest = first.length
        static = asked.static_lengths(longest)
        self._lengths = tuple(sorted({min(length, longest) for length in static}))
        texts = {
            "classifier": {"inputs": ["Type a text here.", "A second text gets its own answer."]},
            "token": {"inputs": ["Type a text here.", "Each line gets its own tags."]},
            "choice": {
                "inputs": "Type a question here.",
                "choices": ["One choice a line.", "Two."],
            },
            "span": {
                "question": ["Type a question here."],
                "context": ["Type here the text that has the answer."],
            },
        }
        self.example: dict[str, Any] = texts[first.kind]
        if first.kind == "classifier" and model.members[0].experiment.data.columns.second:
            self.example["second"] = ["Type its second text here.", "That of the other text."]
        if first.can_list:
            self.example["probabilities"] = False

    @property
    def fields(self) -> frozenset[str]:
        listed = ("probabilities",) if self._first.can_list else ()
        return frozenset({*self._names, "adapter", *listed})

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [(length,) for length in self._lengths]

    def warm_row(self, shape: tuple[int, ...]) -> Any:
        return np.ones(shape[0], np.int32), shape[0], None, 0

    def rows(self, record: Mapping[str, Any]) -> list[Row]:
        adapter_id = self._asked.adapter_id(record)
        encoded = self._encoded({k: x for k, x in record.items() if k != "adapter"})
        cut = [place for place, one in enumerate(encoded) if one.cut]
        _check_cut(cut, self._asked, length=self._first.length)
        batching.check_rows(sum(len(one.rows) for one in encoded), most=self._asked.max_rows)
        return [
            Row((fit(self._lengths, len(row)),), (row, second, one, adapter_id))
            for one in encoded
            for row, second in zip(one.rows, one.seconds, strict=True)
        ]

    def answer(
        self, payloads: Sequence[Any], *, size: int, lengths: tuple[int, ...]
    ) -> list[tuple[np.ndarray, Encoded | None] | Refused]:
        """Return the logits of each row of a batch."""
        rows, seconds, encoded, ids = zip(*payloads, strict=True)
        if size not in self._answerers:
            self._answerers[size] = self._model.answerer(
                batch_size=size, head=self._asked.head, asked=self._asked.answers
            )
        try:
            found = self._answerers[size].logits(
                rows, seconds, static_length=lengths[0], adapter_ids=_ids(self._model, ids)
            )
        except InputError as error:
            return [Refused(500, sentence(error))] * len(payloads)
        return list(zip(found, encoded, strict=True))

    def results(self, record: Mapping[str, Any], outcomes: Sequence[Any]) -> list[Any]:
        listed = record.get("probabilities") is True
        place, results = 0, []
        while place < len(outcomes):
            one: Encoded = outcomes[place][1]
            logits = [found for found, _ in outcomes[place : place + len(one.rows)]]
            answer = self._first.answer(one, logits, probabilities=listed or None)
            results.append(_with_cut(answer, one.cut))
            place += len(one.rows)
        return results

    def _encoded(self, record: Mapping[str, Any]) -> list[Encoded]:
        listed = record.get("probabilities")
        if listed is not None and not isinstance(listed, bool):
            raise Refused(400, '"probabilities" must be true or false.')
        records = self._records({k: x for k, x in record.items() if k != "probabilities"})
        batching.check_rows(len(records), most=self._asked.max_rows)
        try:
            for place, one in enumerate(records):
                check_record(self._first.head, one, where=f"text {place}")
            return self._first.encode(records)
        except InputError as error:
            raise Refused(400, sentence(error)) from error

    def _records(self, record: Mapping[str, Any]) -> list[dict[str, Any]]:
        if not record:
            return [{}]
        is_list = {name: isinstance(value, list) for name, value in record.items()}
        if "choices" in record:
            choices = record["choices"]
            is_list["choices"] = isinstance(choices, list) and any(
                isinstance(choice, list) for choice in choices
            )
        if not any(is_list.values()):
            return [dict(record)]
        sizes = {len(record[name]) if is_list[name] else 1 for name in record}
        if not all(is_list.values()) or len(sizes) > 1:
            names = ", ".join(f'"{name}"' for name in record)
            raise Refused(400, f"{names} must be one text each, or lists of one length.")
        [size] = sizes
        if not size:
            raise Refused(400, f'"{next(iter(record))}" must have at least one text.')
        batching.check_rows(size, most=self._asked.max_rows)
        return [{name: value[i] for name, value in record.items()} for i in range(size)]


class Score:
    """Endpoint `score`, which returns a target's log-likelihood, or ranks several candidates."""

    fields = frozenset({"inputs", "targets", "candidates", "adapter"})

    def __init__(self, model: Checkpoint, asked: Asked):
        self._model, self._asked = model, asked
        self._lengths = asked.static_lengths(model.inputs_length)
        self._target_lengths = sorted({16, lengths(asked.targets_length)[-1]})
        self._scorers = _BySize(lambda size: model.scorer(batch_size=size))
        self._scorers.get(1)
        self.example = {"inputs": ["Type a text here."], "candidates": ["positive", "negative"]}

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Padded lengths of inputs and targets; a program is compiled for each pair."""
        return list(itertools.product(self._lengths, self._target_lengths))

    def warm_row(self, shape: tuple[int, ...]) -> Any:
        rows = [np.ones(length, np.int32) for length in shape]
        return *rows, False, 0

    def rows(self, record: Mapping[str, Any]) -> list[Row]:
        if ("targets" in record) == ("candidates" in record):
            raise Refused(400, 'The request must have either "targets" or "candidates".')
        most = self._asked.max_rows
        inputs = batching.texts(record, "inputs", most=most)
        if "candidates" in record:
            candidates = batching.texts(record, "candidates", most=most)
            batching.check_rows(len(inputs) * len(candidates), most=most)
            targets = self._targets(candidates) * len(inputs)
        else:
            written = batching.texts(record, "targets", most=most)
            if len(written) != len(inputs):
                raise Refused(
                    400, f"The request has {len(inputs)} inputs, but {len(written)} targets."
                )
            targets = self._targets(written)
        rows, cut = _tokens(self._model, inputs, self._asked)
        adapter_id = self._asked.adapter_id(record)
        each = len(targets) // len(inputs)
        return [
            Row(
                (fit(self._lengths, len(row)), fit(self._target_lengths, len(target))),
                (row, target, i in cut, adapter_id),
            )
            for i, row in enumerate(rows)
            for target in targets[i * each : (i + 1) * each]
        ]

    def answer(
        self, payloads: Sequence[Any], *, size: int, lengths: tuple[int, ...]
    ) -> list[dict[str, Any] | Refused]:
        rows, targets, cut, ids = zip(*payloads, strict=True)
        scores = self._scorers.get(size).run(
            self._model.params,
            _filled(rows, lengths[0]),
            _filled(targets, lengths[1]),
            adapter_ids=_ids(self._model, ids),
        )
        return [
            _finite(_with_cut({"log_likelihood": score, "num_tokens": len(target)}, one), score)
            for score, target, one in zip(scores, targets, cut, strict=True)
        ]

    def results(self, record: Mapping[str, Any], outcomes: Sequence[Any]) -> list[Any]:
        if "candidates" not in record:
            return list(outcomes)
        candidates = batching.texts(record, "candidates", most=self._asked.max_rows)
        each, results = len(candidates), []
        for start in range(0, len(outcomes), each):
            own = outcomes[start : start + each]
            scores = [outcome["log_likelihood"] for outcome in own]
            best = candidates[int(np.argmax(scores))]
            result = {"prediction": best, "scores": scores}
            results.append(_with_cut(result, "cut" in own[0]))
        return results

    def _targets(self, texts: Sequence[str]) -> list[np.ndarray]:
        longest = self._asked.targets_length
        rows = self._model.targets(texts, length=longest)
        for i, row in enumerate(rows):
            if len(row) > longest:
                raise Refused(
                    413,
                    f"Target {i} is longer than {longest} tokens, the limit of `serve "
                    "--targets-length`.",
                )
        return rows


class Embed:
    """Endpoint `embed`, which returns a vector for each text.

    The field "prompt" selects a prompt by its name; the text "prefix" is put before each text.
    """

    fields = frozenset({"texts", "prompt", "prefix", "adapter"})

    def __init__(self, model: Checkpoint, asked: Asked):
        encoder = model.encoder(pooling=asked.pooling, normalize=asked.normalize)
        self._model, self._encoder, self._asked = model, encoder, asked
        longest = model.members[0].experiment.model.longest_document
        static = asked.static_lengths(encoder.length)
        if longest is not None:
            static = tuple(sorted({min(length, longest) for length in static}))
        self._lengths = static
        self._embedders = _BySize(lambda size: encoder.embedder(batch_size=size, lengths=static))
        self._embedders.get(1)
        self.example = {"texts": ["Type a text here.", "Each line becomes a vector."]}

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [(length,) for length in self._lengths]

    def warm_row(self, shape: tuple[int, ...]) -> Any:
        return np.ones(shape[0], np.int32), False, 0

    def rows(self, record: Mapping[str, Any]) -> list[Row]:
        texts = batching.texts(record, "texts", most=self._asked.max_rows)
        prompt = batching.optional_text(record, "prompt")
        prefix = batching.optional_text(record, "prefix")
        try:
            begins = self._encoder.begins_with(prefix, prompt)
        except InputError as error:
            raise Refused(400, sentence(error)) from error
        adapter_id = self._asked.adapter_id(record)
        rows, cut = self._encoder.rows([begins + text for text in texts])
        _check_cut(cut, self._asked, length=self._encoder.length)
        return [
            Row((fit(self._lengths, len(row)),), (row, i in cut, adapter_id))
            for i, row in enumerate(rows)
        ]

    def answer(
        self, payloads: Sequence[Any], *, size: int, lengths: tuple[int, ...]
    ) -> list[dict[str, Any] | Refused]:
        del lengths  # the embedder pads to the first of its lengths that holds the rows
        rows, cut, ids = zip(*payloads, strict=True)
        vectors = self._embedders.get(size).run(
            self._encoder.params,
            rows,
            role=self._asked.role,
            adapter_ids=_ids(self._model, ids),
        )
        return [
            _finite(_with_cut({"vector": vector.tolist()}, one), float(vector.sum()))
            for vector, one in zip(vectors, cut, strict=True)
        ]

    def results(self, record: Mapping[str, Any], outcomes: Sequence[Any]) -> list[Any]:
        del record
        return list(outcomes)


class Rerank:
    """Endpoint `rerank`, which returns a score and a rank for each passage of a query."""

    fields = frozenset({"query", "passages", "adapter"})

    def __init__(self, model: Checkpoint, asked: Asked):
        if len(model.members) > 1:
            raise InputError(
                "the endpoint rerank takes one checkpoint, got several; pass a single --checkpoint"
            )
        self._model, self._asked = model, asked
        self._encoders = _BySize(lambda size: model.pair_scorer(batch_size=size))
        self._encoder: CrossEncoder = self._encoders.get(1)  # raises if the head is missing
        longest = self._encoder.length
        static = asked.static_lengths(longest)
        self._lengths = tuple(sorted({min(length, longest) for length in static}))
        passages = ["Type a passage here.", "A passage that answers better gets a lower rank."]
        self.example = {"query": "Type a query here.", "passages": passages}

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [(length,) for length in self._lengths]

    def warm_row(self, shape: tuple[int, ...]) -> Any:
        return np.ones(shape[0], np.int32), False, 0

    def rows(self, record: Mapping[str, Any]) -> list[Row]:
        query = batching.optional_text(record, "query")
        if not query:
            raise Refused(400, 'The request must have "query", a string that is not empty.')
        passages = batching.texts(record, "passages", most=self._asked.max_rows)
        rows = self._encoder.rows_and_cuts([(query, passage) for passage in passages])
        cut = [place for place, (_, is_cut) in enumerate(rows) if is_cut]
        _check_cut(cut, self._asked, length=self._encoder.length)
        adapter_id = self._asked.adapter_id(record)
        return [
            Row((fit(self._lengths, len(row)),), (row, is_cut, adapter_id)) for row, is_cut in rows
        ]

    def answer(
        self, payloads: Sequence[Any], *, size: int, lengths: tuple[int, ...]
    ) -> list[dict[str, Any] | Refused]:
        rows, cut, ids = zip(*payloads, strict=True)
        encoder = self._encoders.get(size)
        scores = encoder.scorer.of(
            encoder.loaded.params,
            rows,
            static_length=lengths[0],
            adapter_ids=_ids(self._model, ids),
        )
        return [
            _finite(_with_cut({"score": score}, one), score)
            for score, one in zip(scores.tolist(), cut, strict=True)
        ]

    def results(self, record: Mapping[str, Any], outcomes: Sequence[Any]) -> list[Any]:
        del record
        order = np.argsort([-outcome["score"] for outcome in outcomes], kind="stable")
        ranks = np.argsort(order, kind="stable") + 1
        return [
            {"rank": rank, **outcome}
            for rank, outcome in zip(ranks.tolist(), outcomes, strict=True)
        ]


def predict(model: Checkpoint, asked: Asked) -> "Predict | PredictByHead":
    """Return `PredictByHead` for a model with an encoder head that predicts, else `Predict`."""
    by_head = asked.head is not None or answering_heads(model.members[0].experiment)
    return PredictByHead(model, asked) if by_head else Predict(model, asked)


def _names_of(answerer: Answerer) -> tuple[str, ...]:
    names = {"classifier": ("inputs", "second"), "token": ("inputs",)}
    others = {"choice": ("inputs", "choices"), "span": ("question", "context", "inputs", "second")}
    return (names | others)[answerer.kind]


ENDPOINTS: dict[str, Callable[[Checkpoint, Asked], Any]] = {
    "predict": predict,
    "score": Score,
    "embed": Embed,
    "rerank": Rerank,
}


class _BySize:
    """Cache that holds one object, such as a text generator, for each batch size."""

    def __init__(self, make: Callable[[int], Any]):
        self._make, self._made = make, {}

    def get(self, size: int) -> Any:
        if size not in self._made:
            self._made[size] = self._make(size)
        return self._made[size]


def _ids(model: Checkpoint, adapter_ids: Sequence[int]) -> Sequence[int] | None:
    return adapter_ids if model.names else None


def _tokens(
    model: Checkpoint, texts: Sequence[str], asked: Asked
) -> tuple[list[np.ndarray], set[int]]:
    rows, cut = model.inputs(texts)
    _check_cut(cut, asked, length=model.inputs_length)
    return rows, set(cut)


def _check_cut(cut: Sequence[int], asked: Asked, *, length: int) -> None:
    if cut and asked.long_inputs == "refuse":
        raise Refused(413, f"Text {cut[0]} is longer than {length} tokens.")


def _filled(rows: Sequence[np.ndarray], length: int) -> list[np.ndarray]:
    first, *others = rows
    return [np.pad(first, (0, length - len(first))), *others]


def _with_cut(result: dict[str, Any], cut: bool) -> dict[str, Any]:
    return {**result, "cut": True} if cut else result


def _finite(result: dict[str, Any], *values: float) -> dict[str, Any] | Refused:
    try:
        check_finite("the text", "the result", *values)
    except InputError as error:
        return Refused(500, sentence(error))
    return result


def sentence(error: Exception) -> str:
    """Return an error message with a capital letter and a full stop."""
    message = str(error)
    return f"{message[:1].upper()}{message[1:]}."
