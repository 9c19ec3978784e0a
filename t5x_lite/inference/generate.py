"""Predictions of a text-to-text model: generation, ranking, scoring, and the task's metrics.

An evaluation can be stopped between two batches.

    with stopping_on(lambda: stop.requested(mesh) is not None):
        evaluator.run(params)       # raises Stopped between two batches, if stop is requested

Evaluators call `between_batches` in their loops. If there are several processes, each of them calls
the function equally often, and it must return the same value in all of them.

Rank classification predicts the most likely of given candidates (t5/evaluation/metrics.py).

    ranker = Ranker(Scorer(bind, batch_size=32))
    ranker.run(params, inputs, candidates)      # [[-0.4, -1.1], [-2.0, -0.1]]: 2 inputs x 2

Every prediction is one of the candidates, while decoding may generate any text. The score of a
candidate is its log-likelihood, including EOS and not divided by its length.
"""

import contextlib
import contextvars
import dataclasses
import functools
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Int

from t5x_lite.core import devices as memory
from t5x_lite.core.sharding import data_parallelism, jit_rows, rounded_rows
from t5x_lite.core.trees import Array, Params
from t5x_lite.core.workers import step
from t5x_lite.decoding.generate import decode
from t5x_lite.decoding.sampling import Decoding, request_keys
from t5x_lite.decoding.search import Preparation, prepared
from t5x_lite.layouts.base import ADAPTER_IDS
from t5x_lite.metrics.benchmarks import interval
from t5x_lite.objectives.likelihood import cross_entropy

_logger = logging.getLogger(__name__)

_requested: contextvars.ContextVar[Callable[[], bool] | None] = contextvars.ContextVar(
    "requested", default=None
)


class Stopped(Exception):
    """Exception of an evaluation that was stopped on request and has no result."""


@contextlib.contextmanager
def stopping_on(requested: Callable[[], bool]) -> Iterator[None]:
    """Return a context in which an evaluation raises `Stopped` if `requested` returns True."""
    token = _requested.set(requested)
    try:
        yield
    finally:
        _requested.reset(token)


def between_batches() -> None:
    """Raise Stopped if the evaluation was requested to stop."""
    requested = _requested.get()
    if requested is not None and requested():
        raise Stopped


BOOTSTRAP_ROUNDS = 12
"""Maximum number of random tie-breaks (`untied`) in each bootstrap sample of an interval."""

Bind = Callable[[Params], Any]
"""Function from a parameter tree to the model's module, in the compute dtype."""


@runtime_checkable
class Vocabulary(Protocol):
    """Protocol of a vocabulary that decodes predicted token ids into text."""

    def decode(self, ids: Iterable[int]) -> str: ...


@runtime_checkable
class Example(Protocol):
    """Protocol of an evaluation example with a target, such as `data.pipeline.Example`."""

    @property
    def inputs_text(self) -> str: ...
    @property
    def targets_text(self) -> str: ...
    @property
    def inputs(self) -> np.ndarray: ...
    @property
    def target(self) -> Any: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prediction:
    """Prediction of a model for one input.

    Attributes:
      text: text of the new tokens (the tokens after the prompt).
      ids: ids of the new tokens, including EOS if it was generated.
      score: score of the prediction, as defined by `t5x_lite.decoding.generate.decode`.
      null_odds: score of "no answer" minus the score of the best answer, or None.
    """

    text: str
    ids: tuple[int, ...]
    score: float
    null_odds: float | None = None


def _check_memory(
    rows: int, decoding: Decoding, vocabulary_size: int, position_bytes: int, mesh: Mesh | None
) -> None:
    """Raise InputError if the outputs of a batch need more memory than a device has."""
    devices = jax.devices()[:1] if mesh is None else list(mesh.devices.flat)
    parts = 1 if mesh is None else data_parallelism(mesh)
    outputs = rows // parts * max(decoding.num_beams, decoding.num_return)
    memory.check_fits(
        {
            "tokens": 4 * outputs * decoding.max_decode_length,
            "keys and values": outputs * decoding.max_decode_length * position_bytes,
            "logits": 4 * outputs * vocabulary_size,
        },
        devices,
        remedy=f"reduce the batch size ({rows}), num_beams ({decoding.num_beams}), num_return "
        f"({decoding.num_return}) or max_decode_length ({decoding.max_decode_length})",
    )


class Generator:
    """Generator of predictions in batches of one size and of lengths rounded up to powers of two.

    Args:
      bind: function that builds the module from the parameters.
      vocabulary: vocabulary that decodes the predictions.
      batch_size: number of inputs per batch, rounded up to a multiple of the mesh's devices.
      decoding: decoding options.
      mesh: device mesh that divides the inputs; None uses the devices of the parameters.
      preparation: preparation of the parameters for decoding, shared by several generators with the
        same `bind`; None makes a new one.
      position_bytes: size in bytes of the keys and values of one position, over all layers.

    Raises:
      InputError: if a batch needs more memory than a device has.
    """

    ranks: ClassVar[bool] = False
    """True if predictions come from a closed set, so that equal scores are a tie."""

    def __init__(
        self,
        bind: Bind,
        vocabulary: Vocabulary,
        *,
        batch_size: int,
        decoding: Decoding,
        mesh: Mesh | None = None,
        preparation: Preparation | None = None,
        position_bytes: int = 0,
    ):
        def generate(
            weights: Any,
            inputs: Array,
            prompt: Array | None,
            seeds: Array,
            numbers: Array,
            ended: Array,
            adapter_ids: Array | None,
        ) -> tuple[Array, Array]:
            model = weights if mesh is None else prepared(bind(weights))
            return decode(
                model if adapter_ids is None else model.with_adapter_ids(adapter_ids),
                inputs,
                prompt=prompt,
                keys=request_keys(seeds, numbers),
                ended=ended,
                decoding=decoding,
            )

        rows = rounded_rows(batch_size, mesh)
        _check_memory(rows, decoding, getattr(vocabulary, "size", 0), position_bytes, mesh)
        self._generate = jit_rows(generate, mesh)
        self._prepare = (preparation or Preparation(bind)) if mesh is None else None
        self._vocabulary = vocabulary
        self._batch_size = rows
        self._decoding = decoding

    def run(
        self,
        params: Params,
        inputs: Sequence[np.ndarray],
        *,
        prompts: Sequence[np.ndarray] | None = None,
        seeds: Sequence[int | None] | None = None,
        offset: int = 0,
        adapter_ids: Sequence[int] | None = None,
    ) -> list[list[Prediction]]:
        """Return the `num_return` best predictions of each input, best first.

        Args:
          params: parameters of the model.
          inputs: token ids of each input, int32, including EOS.
          prompts: token ids that each output begins with, int32, without EOS; or None.
          seeds: random seed of each input, in [0, 2**32), or None. Sampling depends on
            this seed; or for None, on decoding.seed and the input's index.
          offset: index of the first input. Sampling depends on this index and not on the batch, so
            reading a file in several calls gives the same results.
          adapter_ids: adapter id of each input; None if all inputs use the same adapters.
        """
        if adapter_ids is not None:
            params = {**params, ADAPTER_IDS: _ANY_ROW}
        weights = params if self._prepare is None else self._prepare(params)
        given = [np.zeros(0, np.int32)] * len(inputs) if prompts is None else prompts
        order = sorted(
            range(len(inputs)),
            key=lambda row: (padded_length(len(given[row]), minimum=1), len(inputs[row])),
        )
        predictions: list[list[Prediction]] = [[] for _ in inputs]
        for rows in batched(order, self._batch_size):
            size = self._batch_size
            prompt = None
            if any(len(given[row]) for row in rows):
                prompt = pad([given[row] for row in rows], rows=size, minimum=4)
            keys = np.zeros((2, size), np.uint32)  # seed and number
            for place, row in enumerate(rows):
                own = None if seeds is None else seeds[row]
                keys[:, place] = (self._decoding.seed, offset + row) if own is None else (own, 0)
            tokens, scores = self._generate(
                weights,
                pad([inputs[row] for row in rows], rows=size),
                prompt,
                *keys,
                np.arange(size) >= len(rows),
                ids_of_batch(adapter_ids, rows, size=size),
            )
            tokens, scores = np.asarray(tokens), np.asarray(scores)
            for place, row in enumerate(rows):
                predictions[row] = [
                    self._prediction(*output)
                    for output in zip(tokens[place].tolist(), scores[place].tolist(), strict=True)
                ]
        return predictions

    def _prediction(self, ids: list[int], score: float) -> Prediction:
        eos_id = self._decoding.eos_id
        said = ids[: ids.index(eos_id)] if eos_id in ids else ids
        return Prediction(
            text=self._vocabulary.decode(said), ids=tuple(ids[: len(said) + 1]), score=score
        )


def batched(items: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """Yield slices of up to `size` items; raise `Stopped` if a stop was requested."""
    for start in range(0, len(items), size):
        between_batches()
        some = items[start : start + size]
        yield some
        step(len(some))


_ANY_ROW = np.zeros(1, np.int32)
"""Adapter ids of a model before its first batch; one array, which `Preparation` recognizes."""


def ids_of_batch(
    adapter_ids: Sequence[int] | None, rows: Sequence[int], *, size: int
) -> Int[np.ndarray, " B"] | None:
    """Return the adapter id of each row of a batch; padding rows have the id 0.

    Args:
      adapter_ids: adapter id of each input, or None.
      rows: indices of the batch's inputs.
      size: number of rows B, padding included.
    """
    if adapter_ids is None:
        return None
    found = np.zeros(size, np.int32)
    found[: len(rows)] = [adapter_ids[row] for row in rows]
    return found


def with_adapter_ids(
    params: Params, adapter_ids: Sequence[int] | None, rows: Sequence[int], *, size: int
) -> Params:
    """Add the adapter ids of a batch to the parameters."""
    ids = ids_of_batch(adapter_ids, rows, size=size)
    return params if ids is None else {**params, ADAPTER_IDS: ids}


def padded_length(length: int, *, minimum: int = 16) -> int:
    """Round a length up to a power of two, which limits the number of compiled shapes."""
    return 1 << (max(minimum, length) - 1).bit_length()


def pad(sequences: Sequence[np.ndarray], *, rows: int, minimum: int = 16) -> np.ndarray:
    """Return token sequences stacked to int32 [rows, length], padded with 0.

    The length is the next power of two, at least `minimum`.
    """
    longest = max(len(sequence) for sequence in sequences)
    result = np.zeros((rows, padded_length(longest, minimum=minimum)), np.int32)
    for row, sequence in enumerate(sequences):
        result[row, : len(sequence)] = sequence
    return result


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """Prediction for an example, with the example's input and target texts."""

    inputs: str
    targets: str
    prediction: str


class TaskEvaluator:
    """Evaluator that predicts for the examples of a split and computes the task's metrics.

    If the generator ranks a closed set and n predictions tie for the largest score, metrics are
    averaged over the n predictions (`untied`). Samples and submission files contain only the first
    of the tied predictions.

    Attributes:
      examples: examples of the split, in order.
      samples: samples of all predictions in the last run.

    Args:
      generator: generator of the predictions.
      examples: examples of the split, in order.
      postprocess: function (text, example=raw, is_target=False) -> value that the metrics compare.
      metrics: functions (targets, predictions) -> dict of metrics.
    """

    def __init__(
        self,
        generator: Generator,
        examples: Sequence[Example],
        *,
        postprocess: Callable[..., Any],
        metrics: Sequence[Callable[[list[Any], list[Any]], Mapping[str, float]]],
    ):
        self._generator = generator
        self.examples = examples
        self._postprocess = postprocess
        self._metrics = metrics
        self.samples: list[Sample] = []
        self._compared: tuple[list[Any], list[Any]] = ([], [])

    def run(self, params: Params) -> dict[str, float]:
        """Return the task's metrics, and set `samples` to all predictions."""
        predicted = self._generator.run(params, [example.inputs for example in self.examples])
        choices = [
            [
                self._predicted(one.text, example, null_odds=one.null_odds)
                for one in (tied(own) if self._generator.ranks else own[:1])
            ]
            for own, example in zip(predicted, self.examples, strict=True)
        ]
        if undecided := sum(len(own) > 1 for own in choices):
            _logger.warning(
                "%s of %s examples have several best predictions with equal scores; metrics "
                "are averaged over these predictions, and samples contain the first of them",
                *(f"{undecided:,}", f"{len(choices):,}"),
            )
        shown = zip(self.examples, predicted, choices, strict=True)
        self.samples = [
            Sample(
                inputs=example.inputs_text,
                targets=example.targets_text,
                prediction=as_text(own[0].text, found[0]),
            )
            for example, own, found in shown
        ]
        self._compared = ([example.target for example in self.examples], choices)
        return self._measure(*self._compared)

    def answers(self) -> Iterator[tuple[Mapping[str, Any], Any]]:
        """Yield the fields and the postprocessed prediction of each example in the last run."""
        _, choices = self._compared
        for example, own in zip(self.examples, choices, strict=True):
            yield getattr(example, "raw", {}), own[0]

    def intervals(self, *, samples: int) -> dict[str, tuple[float, float]]:
        """Return the 95 % bootstrap interval of each metric of the last run, by metric name."""
        measure = functools.partial(self._measure, rounds=BOOTSTRAP_ROUNDS)
        return interval(measure, *self._compared, samples=samples)

    def names(self) -> list[str]:
        """Return the names of the task's metrics, by evaluating some targets as predictions."""
        examples = self.examples[:100]
        choices = [[self._predicted(example.targets_text, example)] for example in examples]
        return list(self._measure([example.target for example in examples], choices))

    def _predicted(self, text: str, example: Example, *, null_odds: float | None = None) -> Any:
        options = {} if null_odds is None else {"null_odds": null_odds}
        raw = getattr(example, "raw", {})
        return self._postprocess(text, example=raw, is_target=False, **options)

    def _measure(
        self, targets: list[Any], choices: list[list[Any]], *, rounds: int | None = None
    ) -> dict[str, float]:
        found: dict[str, list[float]] = {}
        for predictions in untied(choices, rounds=rounds):
            for metric in self._metrics:
                for name, value in metric(targets, predictions).items():
                    found.setdefault(name, []).append(float(value))
        return {name: float(np.mean(values)) for name, values in found.items()}


def tied(predictions: Sequence[Prediction]) -> Sequence[Prediction]:
    """Return the best predictions: all that have the same score as the first prediction."""
    return [
        one for one in predictions if one is predictions[0] or one.score == predictions[0].score
    ]


def untied(choices: Sequence[Sequence[Any]], *, rounds: int | None = None) -> Iterator[list[Any]]:
    """Yield lists of predictions in which each example has one of its tied predictions.

        untied([["yes"], ["no", "yes"]])    # ["yes", "no"] and ["yes", "yes"]

    The mean of a metric over all lists is its expected value if ties are broken at random; for
    accuracy, a tie of n predictions counts 1 / n. The tied predictions of an example occur equally
    often, unless `rounds` limits the number of lists.

    Args:
      choices: tied predictions of each example, at least one per example.
      rounds: maximum number of lists; None is 60, or 1,000,000 / (number of examples) if larger.
    """
    sizes = [len(own) for own in choices]
    most = max(60, 1_000_000 // max(1, len(sizes))) if rounds is None else rounds
    total = min(math.lcm(*sizes), most)
    starts = np.random.default_rng(0).integers(1 << 30, size=len(sizes)).tolist()
    for number in range(total):
        yield [
            own[0] if size == 1 else own[(start + number) % size]
            for own, size, start in zip(choices, sizes, starts, strict=True)
        ]


def as_text(text: str, found: Any) -> str:
    """Return a prediction for a report: its postprocessed value if it is a text, else `text`.

    Args:
      text: predicted text.
      found: postprocessed value, or a mapping that contains it as "value".
    """
    value = found.get("value") if isinstance(found, Mapping) else found
    return value if isinstance(value, str) else text


class Scorer:
    """Scorer of log-likelihoods, which pads inputs and targets to lengths of powers of two.

    Attributes:
      score: compiled function (params, inputs [B, S], targets [B, T]) -> log-likelihoods [B].

    Args:
      bind: function that builds a module with the method `target_logits` from the parameters.
      batch_size: number of examples per batch.
      mesh: device mesh that divides the examples; None uses the first device.
    """

    def __init__(self, bind: Bind, *, batch_size: int, mesh: Mesh | None = None):
        def score(params: Params, inputs: Array, targets: Array) -> Array:
            loss, _ = cross_entropy(bind(params).target_logits(inputs, targets), targets)
            return -jnp.sum(loss * (targets > 0), axis=-1)

        self.score = jit_rows(score, mesh)
        self._batch_size = rounded_rows(batch_size, mesh)

    def run(
        self,
        params: Params,
        inputs: Sequence[np.ndarray],
        targets: Sequence[np.ndarray],
        *,
        adapter_ids: Sequence[int] | None = None,
    ) -> list[float]:
        """Return the natural log-likelihood of each target, including EOS.

        Args:
          params: parameters of the model.
          inputs: token ids of each input, int32, including EOS.
          targets: token ids of each target, int32, including EOS; an empty target is only EOS.
          adapter_ids: adapter id of each input; None if all inputs use the same adapters.
        """
        order = sorted(
            range(len(inputs)), key=lambda row: (padded_length(len(targets[row])), len(inputs[row]))
        )
        scores = [0.0] * len(inputs)
        for rows in batched(order, self._batch_size):
            values = self.score(
                with_adapter_ids(params, adapter_ids, rows, size=self._batch_size),
                pad([inputs[row] for row in rows], rows=self._batch_size),
                pad([targets[row] for row in rows], rows=self._batch_size),
            )
            for row, value in zip(rows, np.asarray(values), strict=False):
                scores[row] = float(value)
        return scores


class Ranker:
    """Scorer of the log-likelihood of every candidate (such as a label) for every input.

    Args:
      scorer: scorer of the log-likelihoods.
    """

    def __init__(self, scorer: Scorer):
        self._scorer = scorer

    def run(
        self,
        params: Params,
        inputs: Sequence[np.ndarray],
        candidates: Sequence[np.ndarray],
        *,
        adapter_ids: Sequence[int] | None = None,
    ) -> list[list[float]]:
        """Return for each input the log-likelihood of each candidate.

        Args:
          params: parameters of the model.
          inputs: token ids of each input, int32, including EOS.
          candidates: token ids of each candidate, int32, including EOS; at least one candidate.
          adapter_ids: adapter id of each input; None if all inputs use the same adapters.
        """
        num = len(candidates)
        scores = self._scorer.run(
            params,
            [row for row in inputs for _ in candidates],
            [*candidates] * len(inputs),
            adapter_ids=None if adapter_ids is None else np.repeat(adapter_ids, num).tolist(),
        )
        return [scores[start : start + num] for start in range(0, len(scores), num)]


class LabelGenerator(Generator):
    """Generator of labels from a closed set, ranked by log-likelihood instead of decoded.

    Args:
      ranker: ranker of the labels.
      labels: texts of the labels.
      tokens: token ids of each label, int32, including EOS.
    """

    ranks = True

    def __init__(self, ranker: Ranker, labels: Sequence[str], tokens: Sequence[np.ndarray]):
        self._ranker = ranker
        self._labels = tuple(labels)
        self._tokens = tuple(tokens)

    def run(
        self,
        params: Params,
        inputs: Sequence[np.ndarray],
        *,
        prompts: Sequence[np.ndarray] | None = None,
        offset: int = 0,
    ) -> list[list[Prediction]]:
        """Return all labels for each input, most likely first; ties keep their order."""
        del prompts, offset  # a label is complete, and nothing is sampled
        return [
            [
                Prediction(text=label, ids=tuple(ids.tolist()), score=score)
                for label, ids, score in sorted(
                    zip(self._labels, self._tokens, scores, strict=True),
                    key=lambda candidate: -candidate[2],
                )
            ]
            for scores in self._ranker.run(params, inputs, self._tokens)
        ]
