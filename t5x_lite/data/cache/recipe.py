"""Conversion of cached tokens to examples: the preprocessors after CacheDatasetPlaceholder.

    tokens -> corruption, with the example's own (seed, epoch, index) -> trim -> EOS -> trim

A layout may end the inputs with other tokens instead of EOS (`Layout.ending`).

A cache is read without seqio, so its index contains these steps as JSON:

    {"stored": ["tokens"], "corruption": "span_corruption", "options": {"sentinel_start": 399, ...},
     "outputs": {"inputs": true, "targets": true}, "eos": "after_trim", "eos_id": 1,
     "lengths": {"inputs": 512, "targets": 114}}

The steps, and the order of trimming and EOS, follow seqio's Task and its preprocessors
append_eos_after_trim and append_eos.

`recipe_of` converts the steps of a seqio task to a recipe; only these steps are supported:

    stages.count_epochs, stages.corrupt with a function of `denoising.CORRUPTIONS`,
    seqio.preprocessors.append_eos or append_eos_after_trim, stages.append_ending
"""

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float32, Int, Int32

from t5x_lite.core.errors import InputError
from t5x_lite.data.config import Data, lengths_of, trimmed_lengths
from t5x_lite.data.denoising import CORRUPTIONS, LENGTHS
from t5x_lite.data.vocabularies.loading import Vocabulary

Eos = Literal["after_trim", "before_trim", "none"]


def _is_number(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_number, value))
    return type(value) in (int, bool) or (type(value) is float and math.isfinite(value))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """Description of how the stored features of a cache become an example.

    Attributes:
      stored: names of the stored features.
      outputs: names of the features of an example, each with True if EOS ends the feature.
      eos: time at which EOS is appended: after trimming, before trimming, or never.
      eos_id: EOS id of the vocabulary.
      corruption: name of a function in `CORRUPTIONS`; "" if the stored features are the outputs.
      options: keyword arguments of the corruption.
      lengths: maximum tokens of each output when the cache was written; None if texts in the cache
        are not truncated, so that any lengths are possible.
      floats: names of the outputs with float32 values. Each value is stored as two integers, its
        lower and its upper 16 bits.
      fixed: settings of the layout that cannot change after the cache was written.
      ending: token ids at the end of the inputs instead of EOS.
    """

    stored: tuple[str, ...]
    outputs: Mapping[str, bool]
    eos: Eos
    eos_id: int
    corruption: str = ""
    options: Mapping[str, int | float | list[int]] = dataclasses.field(default_factory=dict)
    lengths: Mapping[str, int] | None = None
    floats: tuple[str, ...] = ()
    fixed: Mapping[str, str | int] = dataclasses.field(default_factory=dict)
    ending: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        wanted = ("tokens",) if self.corruption else tuple(self.outputs)
        if self.stored != wanted or not wanted:
            raise ValueError(f"the recipe field stored must be {wanted}, but is {self.stored}")
        if self.corruption and self.corruption not in CORRUPTIONS:
            raise ValueError(
                f"the recipe field corruption must be one of {tuple(CORRUPTIONS)}, but is "
                f"{self.corruption!r}"
            )
        known = (
            inspect.signature(CORRUPTIONS[self.corruption]).parameters if self.corruption else ()
        )
        if wrong := [k for k, v in self.options.items() if k not in known or not _is_number(v)]:
            raise ValueError(
                f"the recipe's corruption ({self.corruption or 'no corruption'}) has no option "
                f"{wrong[0]}, or the option has a wrong type"
            )
        flags, lengths = self.outputs.values(), self.lengths or {}
        if not all(type(flag) is bool for flag in flags) or type(self.eos_id) is not int:
            raise ValueError(
                "the recipe field outputs must have boolean values, and eos_id must be an integer"
            )
        if not all(k in self.outputs and type(v) is int and v > 0 for k, v in lengths.items()):
            raise ValueError(
                "the recipe field lengths must have positive integers for names in outputs, but is "
                f"{str(lengths)[:60]}"
            )
        if not {*self.floats} <= {*self.outputs}:
            raise ValueError(
                "the recipe field floats must have only names in outputs, but is "
                f"{str(self.floats)[:60]}"
            )
        if not all(type(value) in (str, int) for value in self.fixed.values()):
            raise ValueError(
                "the recipe field fixed must have only strings and integers, but is "
                f"{str(self.fixed)[:60]}"
            )
        if not all(type(token) is int for token in self.ending):
            raise ValueError(
                f"the recipe field ending must have only token ids, but is {str(self.ending)[:60]}"
            )
        if self.ending and self.outputs.get("inputs", True):
            raise ValueError(
                "the recipe field ending requires inputs without EOS, but the field outputs has "
                "inputs with EOS or no inputs"
            )
        if self.eos not in get_args(Eos):
            raise ValueError(
                f"the recipe field eos must be one of {get_args(Eos)}, but is {self.eos!r}"
            )

    @property
    def can_end_in_sentinel(self) -> bool:
        """True if the corruption has the option `final_sentinel`."""
        function = CORRUPTIONS.get(self.corruption)
        return function is not None and "final_sentinel" in inspect.signature(function).parameters

    def example(
        self,
        stored: Mapping[str, np.ndarray],
        *,
        lengths: Mapping[str, int],
        seed: int,
        epoch: int,
        index: int,
    ) -> dict[str, np.ndarray]:
        """Build an example from its stored features; corruption uses seed, epoch and index."""
        found = stored
        if self.corruption:
            corrupt = CORRUPTIONS[self.corruption]
            key = {"seed": seed, "epoch": epoch, "index": index}
            found = corrupt(stored["tokens"], **key, **self.options)
        return {
            name: as_floats(found[name])
            if name in self.floats
            else self._finished(name, found[name], lengths.get(name))
            for name in self.outputs
        }

    def _finished(self, name: str, tokens: np.ndarray, length: int | None) -> np.ndarray:
        if name == "inputs" and self.ending:
            room = None if length is None else length - len(self.ending)
            return np.append(tokens[:room], np.array(self.ending, np.int32))
        if not self.outputs[name] or self.eos == "none":
            return tokens[:length]
        if self.eos == "after_trim" and length is not None:
            tokens = tokens[: length - 1]
        return np.append(tokens, np.int32(self.eos_id))[:length]

    def example_lengths(
        self,
        counts: Int[np.ndarray, "n F"],
        *,
        lengths: Mapping[str, int],
        seed: int,
        epochs: Int[np.ndarray, " n"],
        indices: Int[np.ndarray, " n"],
    ) -> Int[np.ndarray, "n G"]:
        """Compute the number of tokens of each feature of the examples that `example` builds."""
        found = counts.astype(np.int64)
        if self.corruption:
            keys = {"seed": seed, "epochs": epochs, "indices": indices}
            both = LENGTHS[self.corruption](found[:, 0], **keys, **self.options)
            found = both[:, [("inputs", "targets").index(name) for name in self.outputs]]
        limits = np.array([lengths[name] for name in self.outputs])
        added = [int(add_eos and self.eos != "none") for add_eos in self.outputs.values()]
        if self.ending:
            added[[*self.outputs].index("inputs")] = len(self.ending)
        # EOS, appended before or after, takes one token and is within the limit; so are words.
        return np.minimum(found + np.array(added), limits)

    def to_json(self) -> dict[str, Any]:
        """Return the recipe as a JSON object for the index of a cache."""
        node = dataclasses.asdict(self) | {"stored": list(self.stored)}
        # Earlier versions neither write nor read these fields, so empty ones are not written.
        for name in ("floats", "fixed", "ending"):
            if not node[name]:
                del node[name]
        return node

    @classmethod
    def from_json(cls, node: Mapping[str, Any]) -> "Recipe":
        lists = {name: tuple(node.get(name, ())) for name in ("stored", "floats", "ending")}
        return cls(**{**node, **lists})


def as_numbers(values: Float32[np.ndarray, " n"]) -> Int32[np.ndarray, " _"]:
    """Return float32 values as integers below 2**16, two per value, for storage in a cache."""
    return values.astype("<f4").view("<u2").astype(np.int32)


def as_stored(values: np.ndarray) -> np.ndarray:
    """Return a feature as integers for a cache; each float32 value becomes two integers."""
    return as_numbers(values) if np.issubdtype(values.dtype, np.floating) else values


def examples_of_block(
    block: Mapping[str, np.ndarray], names: Sequence[str]
) -> list[list[np.ndarray]]:
    """Return the stored features of each example, given a block of concatenated examples."""
    columns = [np.split(block[name], block[f"{name}/ends"][:-1]) for name in names]
    return [[as_stored(part) for part in parts] for parts in zip(*columns, strict=True)]


def as_floats(numbers: Int[np.ndarray, " n"]) -> Float32[np.ndarray, " _"]:
    """Return the float32 values that `as_numbers` converted to integers."""
    return numbers.astype("<u2").view("<f4").astype(np.float32)


def recipe_of(data: Data, vocabulary: Vocabulary, task: Any, *, bake: bool) -> Recipe:
    """Return the `Recipe` of a task; raise InputError if the task cannot be cached."""
    from t5x_lite.data.elements import seqio

    known = {**trimmed_lengths(data), **lengths_of(data)}
    features = task.output_features
    floats = tuple(name for name in features if features[name].dtype.is_floating)
    lengths = {name: length for name, length in known.items() if name in features}
    outputs = {name: bool(features[name].add_eos) for name in (*lengths, *floats)}
    if bake:
        return Recipe(
            stored=tuple(outputs),
            outputs=dict.fromkeys(outputs, False),
            eos="none",
            eos_id=vocabulary.eos_id,
            lengths=lengths,
            floats=floats,
            fixed=data.layout.fixed(),
        )
    steps = list(task.preprocessors)
    places = [i for i, step in enumerate(steps) if isinstance(step, seqio.CacheDatasetPlaceholder)]
    if not places:
        raise InputError(
            f"data.task {data.task!r} has no CacheDatasetPlaceholder, so the features to store "
            "are unknown; put a seqio.CacheDatasetPlaceholder() after its tokenization, or give "
            "--bake"
        )
    eos, corruption, options, ending = _after(steps[places[0] + 1 :], data.task)
    whole = not corruption and all(_is_free_of_lengths(step) for step in steps[: places[0]])
    return Recipe(
        stored=("tokens",) if corruption else tuple(outputs),
        outputs=outputs,
        eos=eos,
        eos_id=vocabulary.eos_id,
        corruption=corruption,
        options=options,
        lengths=None if whole else lengths,
        floats=floats,
        fixed=data.layout.fixed(),
        ending=ending,
    )


def _after(
    steps: Sequence[Callable[..., Any]], task: str
) -> tuple[Any, str, Mapping[str, int | float | list[int]], tuple[int, ...]]:
    from t5x_lite.data.elements import seqio
    from t5x_lite.data.tasks import stages

    eos, corruption, options, ending = "none", "", {}, ()
    for step in steps:
        if step is seqio.preprocessors.append_eos_after_trim:
            eos = "after_trim"
        elif step is seqio.preprocessors.append_eos:
            eos = "before_trim"
        elif isinstance(step, partial) and step.func is stages.corrupt and eos == "none":
            function = step.keywords["function"]
            bound = isinstance(function, partial)
            corruption = _name(function)
            options = dict(function.keywords) if bound else {}
            if CORRUPTIONS.get(corruption) is not (function.func if bound else function):
                raise _unknown(f"the corruption {corruption}", task)
        elif isinstance(step, partial) and step.func is stages.append_ending:
            ending = tuple(step.keywords["ending"])
        elif step is not stages.count_epochs and _name(step) != stages.keyed.__name__:
            raise _unknown(_name(step), task)
    return eos, corruption, options, ending


def _unknown(what: str, task: str) -> InputError:
    return InputError(
        f"data.task {task!r} uses {what} after its CacheDatasetPlaceholder, but this "
        "preprocessor cannot run when a cache is read; move it before the placeholder, or give "
        "--bake"
    )


def _name(step: Callable[..., Any]) -> str:
    function = step.func if isinstance(step, partial) else step
    return getattr(function, "__name__", type(function).__name__)


def _is_free_of_lengths(step: Callable[..., Any]) -> bool:
    from t5x_lite.data.elements import seqio

    function = step.func if isinstance(step, partial) else step
    return function in (seqio.preprocessors.tokenize, seqio.preprocessors.rekey)
