"""Predictions of a text-to-text model, and the task metrics computed from them."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from t5x_lite.decoding.generate import greedy
from t5x_lite.types import Array, Params

Bind = Callable[[Params], Any]
"""The model's own parameters -> the module, in the compute dtype."""


@runtime_checkable
class Vocabulary(Protocol):
    """What decoding needs of a vocabulary."""

    def decode(self, ids: Iterable[int]) -> str: ...


@runtime_checkable
class Example(Protocol):
    """What a task metric needs of an example; `data.pipeline.Example` is one."""

    @property
    def inputs_text(self) -> str: ...
    @property
    def targets_text(self) -> str: ...
    @property
    def inputs(self) -> np.ndarray: ...
    @property
    def target(self) -> Any: ...


class Generator:
    """Greedy predictions in batches of one size; lengths are rounded up to powers of two.

    Args:
      bind: puts the model together.
      vocabulary: decodes.
      batch_size: rows decoded at once.
      max_decode_length: tokens decoded at most.
    """

    def __init__(
        self, bind: Bind, vocabulary: Vocabulary, *, batch_size: int, max_decode_length: int
    ):
        def generate(params: Params, tokens: Array) -> Array:
            model = bind(params)
            cache = model.init_cache(tokens, max_length=max_decode_length)
            return greedy(
                model.step,
                cache,
                batch_size=tokens.shape[0],
                max_length=max_decode_length,
                ended=jnp.all(tokens == 0, axis=-1),
            )

        self._generate = jax.jit(generate)
        self._vocabulary = vocabulary
        self._batch_size = batch_size

    def run(self, params: Params, inputs: Sequence[np.ndarray]) -> list[str]:
        """Predicted texts, in the order of the inputs (each int32 tokens, EOS included)."""
        order = sorted(range(len(inputs)), key=lambda index: len(inputs[index]))
        predictions = [""] * len(inputs)
        for rows in batched(order, self._batch_size):
            tokens = pad([inputs[row] for row in rows], rows=self._batch_size)
            decoded = np.asarray(self._generate(params, tokens))
            for row, ids in zip(rows, decoded, strict=False):
                predictions[row] = self._vocabulary.decode(ids.tolist())
        return predictions


def batched(items: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """Consecutive slices of at most `size` items."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def pad(sequences: Sequence[np.ndarray], *, rows: int) -> np.ndarray:
    """Stacks token sequences to int32 [rows, length], filled with 0.

    The length is the next power of two, at least 16, so that few shapes are compiled.
    """
    longest = max(16, *(len(sequence) for sequence in sequences))
    result = np.zeros((rows, 1 << (longest - 1).bit_length()), np.int32)
    for row, sequence in enumerate(sequences):
        result[row, : len(sequence)] = sequence
    return result


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """One prediction beside its target."""

    inputs: str
    targets: str
    prediction: str


class TaskEvaluator:
    """A task's own metrics over decoded predictions.

    Args:
      generator: makes the predictions.
      examples: of the split, in order.
      postprocess: (text, example=raw, is_target=False) -> what the metrics compare.
      metrics: functions (targets, predictions) -> dict.
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
        self._examples = examples
        self._postprocess = postprocess
        self._metrics = metrics
        self.samples: list[Sample] = []

    def run(self, params: Params) -> dict[str, float]:
        """The task's metrics; `samples` then holds every prediction."""
        texts = self._generator.run(params, [example.inputs for example in self._examples])
        self.samples = [
            Sample(inputs=example.inputs_text, targets=example.targets_text, prediction=prediction)
            for example, prediction in zip(self._examples, texts, strict=True)
        ]
        targets = [example.target for example in self._examples]
        predictions = [
            self._predicted(text, example)
            for text, example in zip(texts, self._examples, strict=True)
        ]
        return self._measure(targets, predictions)

    def names(self) -> list[str]:
        """The names of the metrics, found by comparing the first targets with themselves."""
        examples = self._examples[:100]
        predictions = [self._predicted(example.targets_text, example) for example in examples]
        return list(self._measure([example.target for example in examples], predictions))

    def _predicted(self, text: str, example: Example) -> Any:
        return self._postprocess(text, example=getattr(example, "raw", {}), is_target=False)

    def _measure(self, targets: list[Any], predictions: list[Any]) -> dict[str, float]:
        result: dict[str, float] = {}
        for metric in self._metrics:
            result |= {name: float(v) for name, v in metric(targets, predictions).items()}
        return result
