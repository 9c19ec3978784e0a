"""The table of what `t5x-lite serve` answers: predict, score, embed, rerank.

    ENDPOINTS["predict"](model, Asked(decoding=Decoding(num_beams=4)))

An endpoint makes rows of a request's texts, and outcomes of rows, in static shapes: a batch of
`size` rows whose tokens are padded to `lengths`. To add one, write its class and put it into
ENDPOINTS; the routes, the batches, the warm-up, the metrics and the page follow.
"""

import dataclasses
import functools
import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from t5x_lite.decoding.config import NUM_SEEDS, Decoding
from t5x_lite.errors import InputError
from t5x_lite.heads.dense import Role
from t5x_lite.models.pooling import Pooling
from t5x_lite.run.cross_encoder import CrossEncoder
from t5x_lite.run.long_texts import LongInputs
from t5x_lite.run.text_to_text import TextToText, check_finite
from t5x_lite.serve import requests
from t5x_lite.serve.batching import Row
from t5x_lite.serve.limits import Refused
from t5x_lite.serve.shapes import fit, lengths


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """How a server answers; the same for all requests, because each choice is a program.

    Attributes:
      decoding: of predictions.
      lengths: tokens that inputs are padded to, ascending; None is three powers of two or so.
      targets_length: tokens of a target or a candidate at most, its end included.
      long_inputs: whether longer inputs are cut, which the result says, or refused.
      max_rows: texts of a request at most.
      pooling: of vectors; None is what the checkpoint says.
      normalize: whether vectors have length 1; None is what the checkpoint says, or else True.
      role: of the texts that are embedded, for a retriever with two encoders or two projections.
    """

    decoding: Decoding = dataclasses.field(default_factory=Decoding)
    lengths: tuple[int, ...] | None = None
    targets_length: int = 64
    long_inputs: LongInputs = "cut"
    max_rows: int = 128
    pooling: Pooling | None = None
    normalize: bool | None = None
    role: Role = "query"

    def static_lengths(self, longest: int) -> tuple[int, ...]:
        """Those that hold a row of so many tokens, and no longer ones than needed."""
        if self.lengths is None:
            return lengths(longest)
        shorter = [one for one in self.lengths if one < longest]
        return (*shorter, *lengths(longest)[-1:])


class Predict:
    """{"inputs"} -> "prediction" and "score", and "predictions" where there are several."""

    fields = frozenset({"inputs", "seed"})

    def __init__(self, model: TextToText, asked: Asked):
        self._model, self._asked = model, asked
        self._lengths = asked.static_lengths(model.inputs_length)
        self._generators = _BySize(lambda size: model.generator(asked.decoding, batch_size=size))
        self._generators.get(1)  # an encoder is refused at the start
        self.example = {"inputs": ["Type a text here.", "A second text is answered with it."]}

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The static lengths of rows."""
        return [(length,) for length in self._lengths]

    def warm_row(self, shape: tuple[int, ...]) -> Any:
        """A payload that fills a shape."""
        return np.ones(shape[0], np.int32), 0, False

    def rows(self, record: Mapping[str, Any]) -> list[Row]:
        """One for each input."""
        inputs = requests.texts(record, "inputs", most=self._asked.max_rows)
        seed = requests.optional_number(record, "seed", below=NUM_SEEDS)
        rows, cut = _tokens(self._model, inputs, self._asked)
        return [
            Row(
                (fit(self._lengths, len(row)),),
                (row, random.randrange(NUM_SEEDS) if seed is None else seed, i in cut),
            )
            for i, row in enumerate(rows)
        ]

    def answer(
        self, payloads: Sequence[Any], *, size: int, lengths: tuple[int, ...]
    ) -> list[dict[str, Any] | Refused]:
        """The predictions of a batch."""
        rows, seeds, cut = zip(*payloads, strict=True)
        found = self._model.predictions(
            self._generators.get(size), _filled(rows, lengths[0]), seeds=seeds
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
        """Those of the rows."""
        del record
        return list(outcomes)


class Score:
    """{"inputs", "targets"} -> "log_likelihood"; {"inputs", "candidates"} -> "prediction"."""

    fields = frozenset({"inputs", "targets", "candidates"})

    def __init__(self, model: TextToText, asked: Asked):
        self._model, self._asked = model, asked
        self._lengths = asked.static_lengths(model.inputs_length)
        self._target_lengths = sorted({16, lengths(asked.targets_length)[-1]})
        self._scorers = _BySize(lambda size: model.scorer(batch_size=size))
        self._scorers.get(1)
        self.example = {"inputs": ["Type a text here."], "candidates": ["positive", "negative"]}

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The static lengths of inputs and of targets."""
        return list(itertools.product(self._lengths, self._target_lengths))

    def warm_row(self, shape: tuple[int, ...]) -> Any:
        """A payload that fills a shape."""
        rows = [np.ones(length, np.int32) for length in shape]
        return *rows, False

    def rows(self, record: Mapping[str, Any]) -> list[Row]:
        """One for each input and target, or for each input and each of the candidates."""
        if ("targets" in record) == ("candidates" in record):
            raise Refused(400, 'The request must have either "targets" or "candidates".')
        most = self._asked.max_rows
        inputs = requests.texts(record, "inputs", most=most)
        if "candidates" in record:
            candidates = requests.texts(record, "candidates", most=most)
            requests.check_rows(len(inputs) * len(candidates), most=most)
            targets = self._targets(candidates) * len(inputs)
        else:
            written = requests.texts(record, "targets", most=most)
            if len(written) != len(inputs):
                raise Refused(400, f"There are {len(inputs)} inputs and {len(written)} targets.")
            targets = self._targets(written)
        rows, cut = _tokens(self._model, inputs, self._asked)
        each = len(targets) // len(inputs)
        return [
            Row(
                (fit(self._lengths, len(row)), fit(self._target_lengths, len(target))),
                (row, target, i in cut),
            )
            for i, row in enumerate(rows)
            for target in targets[i * each : (i + 1) * each]
        ]

    def answer(
        self, payloads: Sequence[Any], *, size: int, lengths: tuple[int, ...]
    ) -> list[dict[str, Any] | Refused]:
        """The log-likelihoods of a batch."""
        rows, targets, cut = zip(*payloads, strict=True)
        scores = self._scorers.get(size).run(
            self._model.params, _filled(rows, lengths[0]), _filled(targets, lengths[1])
        )
        return [
            _finite(_with_cut({"log_likelihood": score, "num_tokens": len(target)}, one), score)
            for score, target, one in zip(scores, targets, cut, strict=True)
        ]

    def results(self, record: Mapping[str, Any], outcomes: Sequence[Any]) -> list[Any]:
        """Those of the rows, or the likeliest candidate after each input."""
        if "candidates" not in record:
            return list(outcomes)
        candidates = requests.texts(record, "candidates", most=self._asked.max_rows)
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
                    413, f"Target {i} is longer than {longest} tokens (serve --targets-length)."
                )
        return rows


class Embed:
    """{"texts"} -> "vector"; with "prompt", the name of a prompt, or "prefix", any text."""

    fields = frozenset({"texts", "prompt", "prefix"})

    def __init__(self, model: TextToText, asked: Asked):
        encoder = model.encoder(pooling=asked.pooling, normalize=_normalize(model, asked))
        self._encoder, self._asked = encoder, asked
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
        """The static lengths of rows."""
        return [(length,) for length in self._lengths]

    def warm_row(self, shape: tuple[int, ...]) -> Any:
        """A payload that fills a shape."""
        return np.ones(shape[0], np.int32), False

    def rows(self, record: Mapping[str, Any]) -> list[Row]:
        """One for each text."""
        texts = requests.texts(record, "texts", most=self._asked.max_rows)
        prompt = requests.optional_text(record, "prompt")
        prefix = requests.optional_text(record, "prefix")
        try:
            begins = self._encoder.begins_with(prefix, prompt)
        except InputError as error:
            raise Refused(400, _sentence(error)) from error
        rows, cut = self._encoder.rows([begins + text for text in texts])
        _check_cut(cut, self._asked, length=self._encoder.length)
        return [Row((fit(self._lengths, len(row)),), (row, i in cut)) for i, row in enumerate(rows)]

    def answer(
        self, payloads: Sequence[Any], *, size: int, lengths: tuple[int, ...]
    ) -> list[dict[str, Any] | Refused]:
        """The vectors of a batch."""
        del lengths  # the embedder pads to the first of its own that holds the rows
        rows, cut = zip(*payloads, strict=True)
        embedder = self._embedders.get(size)
        vectors = embedder.run(self._encoder.params, rows, role=self._asked.role)
        return [
            _finite(_with_cut({"vector": vector.tolist()}, one), float(vector.sum()))
            for vector, one in zip(vectors, cut, strict=True)
        ]

    def results(self, record: Mapping[str, Any], outcomes: Sequence[Any]) -> list[Any]:
        """Those of the rows."""
        del record
        return list(outcomes)


class Rerank:
    """{"query", "passages"} -> "score" and "rank"; the score is the cross-encoder's raw logit."""

    fields = frozenset({"query", "passages"})

    def __init__(self, model: TextToText, asked: Asked):
        first, *others = model.members
        if others:
            raise InputError("rerank takes one checkpoint: an ensemble of rankers is not served")
        self._asked = asked
        make = functools.partial(CrossEncoder.of, first, length=model.asked_length)
        self._encoders = _BySize(lambda size: make(batch_size=size))
        self._encoder: CrossEncoder = self._encoders.get(1)  # without its head refused at the start
        longest = self._encoder.length
        static = asked.static_lengths(longest)
        self._lengths = tuple(sorted({min(length, longest) for length in static}))
        passages = ["Type a passage here.", "A passage that answers better gets a lower rank."]
        self.example = {"query": "Type a query here.", "passages": passages}

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The static lengths of rows."""
        return [(length,) for length in self._lengths]

    def warm_row(self, shape: tuple[int, ...]) -> Any:
        """A payload that fills a shape."""
        return np.ones(shape[0], np.int32), False

    def rows(self, record: Mapping[str, Any]) -> list[Row]:
        """One for each passage."""
        query = requests.optional_text(record, "query")
        if not query:
            raise Refused(400, 'The request must have "query", a string with something in it.')
        passages = requests.texts(record, "passages", most=self._asked.max_rows)
        rows = self._encoder.rows_and_cuts([(query, passage) for passage in passages])
        cut = [place for place, (_, is_cut) in enumerate(rows) if is_cut]
        _check_cut(cut, self._asked, length=self._encoder.length)
        return [Row((fit(self._lengths, len(row)),), (row, is_cut)) for row, is_cut in rows]

    def answer(
        self, payloads: Sequence[Any], *, size: int, lengths: tuple[int, ...]
    ) -> list[dict[str, Any] | Refused]:
        """The scores of a batch."""
        rows, cut = zip(*payloads, strict=True)
        encoder = self._encoders.get(size)
        scores = encoder.scorer.of(encoder.loaded.params, rows, static_length=lengths[0])
        return [
            _finite(_with_cut({"score": score}, one), score)
            for score, one in zip(scores.tolist(), cut, strict=True)
        ]

    def results(self, record: Mapping[str, Any], outcomes: Sequence[Any]) -> list[Any]:
        """Those of the passages in their order; the best passage has rank 1."""
        del record
        order = np.argsort([-outcome["score"] for outcome in outcomes], kind="stable")
        ranks = np.argsort(order, kind="stable") + 1
        return [
            {"rank": rank, **outcome}
            for rank, outcome in zip(ranks.tolist(), outcomes, strict=True)
        ]


ENDPOINTS: dict[str, Callable[[TextToText, Asked], Any]] = {
    "predict": Predict,
    "score": Score,
    "embed": Embed,
    "rerank": Rerank,
}


class _BySize:
    """What is made once for each size of a batch."""

    def __init__(self, make: Callable[[int], Any]):
        self._make, self._made = make, {}

    def get(self, size: int) -> Any:
        if size not in self._made:
            self._made[size] = self._make(size)
        return self._made[size]


def _tokens(
    model: TextToText, texts: Sequence[str], asked: Asked
) -> tuple[list[np.ndarray], set[int]]:
    rows, cut = model.inputs(texts)
    _check_cut(cut, asked, length=model.inputs_length)
    return rows, set(cut)


def _check_cut(cut: Sequence[int], asked: Asked, *, length: int) -> None:
    if cut and asked.long_inputs == "refuse":
        raise Refused(413, f"Text {cut[0]} is longer than {length} tokens.")


def _filled(rows: Sequence[np.ndarray], length: int) -> list[np.ndarray]:
    """The rows, of which the first is filled with padding to a static length.

    Args:
      rows: int32 tokens of each.
      length: a power of two; what pads the batch takes the next one from its longest row.
    """
    first, *others = rows
    return [np.pad(first, (0, length - len(first))), *others]


def _normalize(model: TextToText, asked: Asked) -> bool | None:
    from t5x_lite.run.text_encoder import dense_head

    known = dense_head(model.members[0].experiment) is not None
    return True if asked.normalize is None and not known else asked.normalize


def _with_cut(result: dict[str, Any], cut: bool) -> dict[str, Any]:
    """The result, which says where its text was cut."""
    return {**result, "cut": True} if cut else result


def _finite(result: dict[str, Any], *values: float) -> dict[str, Any] | Refused:
    try:
        check_finite("the text", "the result", *values)
    except InputError as error:
        return Refused(500, _sentence(error))
    return result


def _sentence(error: Exception) -> str:
    message = str(error)
    return f"{message[:1].upper()}{message[1:]}."
