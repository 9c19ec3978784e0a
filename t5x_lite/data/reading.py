"""Examples of seqio tasks, tokenized during training, in memory or streamed; and as text.

    sources = training_sources(data, vocabulary, seed=0)       # for `stream.Stream`
    sources = held_out_sources(data, vocabulary, split="validation")

tf.data and seqio read the files of a task, tokenize and shuffle. Examples are then read in small
blocks, and all later steps are the same as for a cache. The preprocessors before the task's
CacheDatasetPlaceholder run in tf.data; the preprocessors after it become a `cache.recipe.Recipe`.

- Training data up to `text_source.IN_MEMORY_BYTES` are tokenized at the start. Every epoch permutes
  the examples completely, and the batches are equal to batches from a cache of the task.
- Larger data are streamed: parts of files in a different order for each pass (`stages.FileSource`),
  or in the order of their source, then through a shuffle buffer of data.shuffle_buffer examples.
- A task without the placeholder, or with custom steps after it, is streamed through all of its
  steps; small data are permuted completely before them.

Examples as text, for metrics and as few-shot examples (`data.few_shot`):

    demonstrations(data, vocabulary, split="train", pool=None)
    # [Demonstration(inputs="sst2 sentence: a gem", targets="positive"), ...]
"""

import copy
import itertools
import json
import logging
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from t5x_lite.core.errors import InputError
from t5x_lite.core.object_store import BucketError
from t5x_lite.core.workers import counting
from t5x_lite.data import elements
from t5x_lite.data.cache.making import features_of
from t5x_lite.data.cache.recipe import Recipe, examples_of_block, recipe_of
from t5x_lite.data.config import Data, truncation_of
from t5x_lite.data.elements import as_numpy, closed_at_exit, deterministic, seqio, tf
from t5x_lite.data.loading import (
    Present,
    dataset_of,
    examples_of,
    held_out_members,
    load_task,
    no_example,
    rates_of,
    trained_members,
)
from t5x_lite.data.mixing import CACHE_PERIOD, UnknownSize, cache_rates
from t5x_lite.data.preprocessors import UNKNOWN
from t5x_lite.data.sources import Held, Running, Shuffled, Source
from t5x_lite.data.tasks import stages, text_source
from t5x_lite.data.tasks.labelled import task_form
from t5x_lite.data.tasks.questions import questions
from t5x_lite.data.vocabularies.loading import Vocabulary

_logger = logging.getLogger(__name__)

Dataset = tf.data.Dataset


# Sources.


def training_sources(
    data: Data, vocabulary: Vocabulary, *, seed: int, tells: bool = False
) -> list[Source]:
    """Return endless sources of training examples: one source for each task of a mixture.

    Args:
      data: the data config.
      vocabulary: vocabulary of the tokens.
      seed: random seed for the order of streamed examples.
      tells: True to log unknown tokens and constant rates.
    """
    trained = trained_members(data, vocabulary, seed=seed, tells=tells)
    rates = rates_of(data, trained, anew=True, tells=tells)
    return [
        _training_source(one, vocabulary, rate=rate, seed=seed)
        for one, rate in zip(trained, _fractions(trained, rates), strict=True)
    ]


def held_out_sources(data: Data, vocabulary: Vocabulary, *, split: str) -> list[Source]:
    """Return sources for one ordered pass over a split: one source for each task with the split."""
    chosen, rates = held_out_members(data, vocabulary, split=split)
    found = []
    for one, rate in zip(chosen, _fractions(chosen, rates), strict=True):
        recipe, is_whole = _recipe(one, vocabulary, split=split)
        examples = (
            dataset_of(one.data, one.task, split=split, shuffle=False)
            if is_whole
            else stages.stored(one.task, split, seed=0)
        )
        names = features_of(examples, recipe, one.member.task)
        feed = Feed(stages.in_blocks(examples, names, _AT_A_TIME), names)
        running = Running(feed, recipe.stored)
        if not running.available(1):
            raise no_example(data, split=split)
        found.append(_source(one, recipe, running, rate=rate, size=None))
    return found


def num_examples(data: Data, vocabulary: Vocabulary, *, seed: int) -> int:
    """Count the training examples of data.task, which may be a mixture.

    The raw examples are counted if each becomes one training example. Otherwise all examples are
    tokenized.

    Raises:
      UnknownSize: if a task is streamed and makes several examples of a raw example.
    """
    total = 0
    for one in trained_members(data, vocabulary, seed=seed):
        source = one.task.source
        if isinstance(source, stages.Source) and source.one_to_one and not one.data.first_tokens:
            raw = source.get_dataset("train", shuffle=False)
            number = int(raw.cardinality())
            if number < 0:
                _logger.info("counting the training examples of task %s", one.member.named_task)
                number = sum(1 for _ in as_numpy(raw))
            total += number
            continue
        found = _training_source(one, vocabulary, rate=Fraction(1), seed=seed).size
        if found is None:
            raise UnknownSize(
                f"task {one.member.task} is streamed, so its number of examples is unknown; write "
                "a cache with `t5x-lite cache` and give --data.cache, or give --steps"
            )
        total += found
    return total


def _fractions(members: Sequence[Present], rates: Sequence[float]) -> list[Fraction]:
    if len(members) == 1:
        return [Fraction(1)]
    features = {tuple(one.task.output_features) for one in members}
    if len(features) > 1:
        raise InputError(
            f"the tasks of the mixture {members[0].data.task!r} have different features: "
            f"{' and '.join(sorted(map(str, features)))}"
        )
    return [Fraction(rate, CACHE_PERIOD) for rate in cache_rates(rates)]


def _source(
    one: Present, recipe: Recipe, split: Held | Running, *, rate: Fraction, size: int | None
) -> Source:
    return Source(name=one.member.named_task, recipe=recipe, split=split, rate=rate, size=size)


def _training_source(one: Present, vocabulary: Vocabulary, *, rate: Fraction, seed: int) -> Source:
    recipe, is_whole = _recipe(one, vocabulary, split="train")
    if not is_whole and (held := _held(one, recipe, seed=seed)) is not None:
        return _source(one, recipe, held, rate=rate, size=held.size)
    feed = _whole(one, recipe, seed=seed) if is_whole else _stored(one, recipe, seed=seed)
    running = Running(feed, recipe.stored, identity=_files(one, seed=seed))
    return _source(one, recipe, running, rate=rate, size=None)


def _recipe(one: Present, vocabulary: Vocabulary, *, split: str) -> tuple[Recipe, bool]:
    one.data.layout.of_task(tuple(one.task.output_features))  # raises if it does not fit the task
    try:
        recipe = recipe_of(one.data, vocabulary, one.task, bake=False)
        raw = one.task.source.get_dataset(split, shuffle=False)
        features_of(one.task.preprocess_precache(raw), recipe, one.member.task)
    except InputError:
        return recipe_of(one.data, vocabulary, one.task, bake=True), True
    return recipe, False


# In memory.


def _held(one: Present, recipe: Recipe, *, seed: int) -> Held | None:
    source, cut_off = one.task.source, truncation_of(one.data)
    if not cut_off and not (isinstance(source, stages.Source) and source.fits_in_memory("train")):
        return None
    examples = stages.stored(one.task, "train", seed=seed)
    names = features_of(examples, recipe, one.member.task)
    limit = text_source.IN_MEMORY_BYTES if cut_off else None
    found: list[list[np.ndarray]] = []
    size = 0
    feed = Feed(stages.in_blocks(examples, names, _AT_A_TIME), names)
    with counting(f"tokenizing {one.member.named_task}", unit="examples") as advance:
        for block, _ in feed:
            found += block
            size += sum(part.nbytes for parts in block for part in parts)
            if limit is not None and size > limit:
                feed.close()
                return None
            advance(len(block))
    if (number := one.data.first_documents) is not None:
        there = int(source.get_dataset("train", shuffle=False).reduce(0, lambda n, _: n + 1))
        if there < number:
            _logger.warning(
                "data.first_documents is %d, but the task has only %d documents", number, there
            )
    return Held(recipe.stored, found)


# Streamed.

EPOCH = "epoch_of_example"
"""Name of the feature with the number of earlier passes over the data."""
_AT_A_TIME = 64


class Feed:
    """Reader of the examples of a task, with a position that can be saved and restored."""

    def __init__(self, blocks: Dataset, names: Sequence[str]):
        """Create a reader that begins at the first example.

        Args:
          blocks: dataset of blocks of examples, optionally with the feature `EPOCH` for each block
            or example.
          names: names of the features to return.
        """
        there: Any = blocks.element_spec
        self._names, self._counted = tuple(names), EPOCH in there
        self._iterator: Any = iter(deterministic(blocks.prefetch(1)))
        self._checkpoint: Any = tf.train.Checkpoint(iterator=self._iterator)
        closed_at_exit(self)

    def __iter__(self) -> "Feed":
        return self

    def __next__(self) -> tuple[list[list[np.ndarray]], Int[np.ndarray, " n"] | None]:
        try:
            block = next(self._iterator)
        except tf.errors.OpError as error:
            found = elements.let_go(error)
            if isinstance(found, BucketError):
                self.close()
            raise found from error
        values = {name: value.numpy() for name, value in block.items()}
        found = examples_of_block(values, self._names)
        return found, np.broadcast_to(values[EPOCH], len(found)) if self._counted else None

    def state(self) -> bytes:
        with tempfile.TemporaryDirectory() as directory:
            self._checkpoint.write(f"{directory}/position")
            files = {path.name: path.read_bytes() for path in sorted(Path(directory).iterdir())}
        sizes = {name: len(content) for name, content in files.items()}
        return json.dumps(sizes).encode() + b"\n" + b"".join(files.values())

    def restore(self, state: bytes) -> None:
        header, _, content = state.partition(b"\n")
        with tempfile.TemporaryDirectory() as directory:
            for name, size in json.loads(header).items():
                Path(directory, name).write_bytes(content[:size])
                content = content[size:]
            try:
                self._checkpoint.read(f"{directory}/position").assert_consumed()
            except (tf.errors.OpError, AssertionError) as error:
                raise InputError(
                    "the saved data position cannot be restored, because it does not fit the "
                    f"current task: {str(error).splitlines()[0]}"
                ) from error

    def close(self) -> None:
        """Release prefetched data; the reader then has no further examples."""
        self._iterator, self._checkpoint = iter(()), None


def _passes(one: Present, *, seed: int) -> text_source.Passes | None:
    source = one.task.source
    if not one.data.shuffle or not isinstance(source, stages.Source):
        return None
    return source.passes("train", seed=seed)


def _files(one: Present, *, seed: int) -> str | None:
    found = _passes(one, seed=seed)
    return None if found is None else found.size


def _stored(one: Present, recipe: Recipe, *, seed: int) -> Feed | Shuffled:
    data, task = one.data, one.task
    names = recipe.stored

    def blocks(raw: Dataset, seed: int) -> Dataset:
        examples = task.preprocess_precache(raw, seed)
        features_of(examples, recipe, one.member.task)
        return stages.in_blocks(examples, names, _AT_A_TIME)

    passes = _passes(one, seed=seed)
    if passes is not None:
        found = text_source.endless(passes, blocks, seed=seed, epoch=EPOCH)
    else:
        raw = task.source.get_dataset("train", shuffle=data.shuffle, seed=seed)
        found = _counted(_first_marked(blocks(raw, seed)).repeat())
    feed = Feed(found, names)
    return Shuffled(feed, size=data.shuffle_buffer, seed=seed) if data.shuffle else feed


def _whole(one: Present, recipe: Recipe, *, seed: int) -> Feed:
    data, task = one.data, one.task
    source = task.source
    permuted = data.shuffle and isinstance(source, stages.Source) and source.fits_in_memory("train")

    def precache(dataset: Any, seed: int | None = None) -> Any:
        if permuted:
            dataset = dataset.shuffle(max(1, int(dataset.cardinality())), seed=seed)
        return _first_marked(task.preprocess_precache(dataset, seed))

    def postcache(dataset: Any, sequence_length: Any, seed: int | None = None) -> Any:
        return task.preprocess_postcache(_counted(dataset), sequence_length, seed)

    # Additional steps in the task's list would shift the seeds that seqio gives to the others.
    counted = copy.copy(task)
    counted.preprocess_precache, counted.preprocess_postcache = precache, postcache
    examples = dataset_of(
        data,
        counted,
        split="train",
        shuffle=data.shuffle,
        shuffle_buffer_size=data.shuffle_buffer,
        seed=seed,
        num_epochs=None,
    )
    names = features_of(examples, recipe, one.member.task)
    there: Any = examples.element_spec
    scalars = (EPOCH,) if EPOCH in there else ()
    return Feed(stages.in_blocks(examples, names, _AT_A_TIME, scalars=scalars), names)


def _first_marked(dataset: Any) -> Any:
    """Set the feature `EPOCH` to 1 in the first example of a pass, to 0 in other examples."""
    if not isinstance(dataset.element_spec, Mapping):
        return dataset
    return dataset.enumerate().map(
        lambda index, example: {**example, EPOCH: tf.cast(tf.equal(index, 0), tf.int64)}
    )


def _counted(dataset: Any) -> Any:
    """Set the feature `EPOCH` of each example to the number of its pass, from 0."""
    spec = dataset.element_spec
    if not isinstance(spec, Mapping) or EPOCH not in spec:
        return dataset

    def step(epoch, example):
        epoch += example[EPOCH]
        return epoch, {**example, EPOCH: epoch}

    return dataset.scan(tf.constant(-1, tf.int64), step)


# Examples as text.


@dataclass(frozen=True, kw_only=True)
class Example:
    """Example of a task for the computation of metrics.

    Attributes:
      inputs_text: text that the model reads; "" if the task has only targets.
      targets_text: text that the model should write.
      inputs: int32 [_], token ids of inputs_text, trimmed and with EOS; empty without inputs.
        Several texts, such as choices or windows, are concatenated.
      target: postprocessed target for the metrics.
      raw: all fields of the example; text as str.
    """

    inputs_text: str
    targets_text: str
    inputs: np.ndarray
    target: Any
    raw: dict[str, Any]


def eval_examples(
    data: Data,
    vocabulary: Vocabulary,
    *,
    split: str = "validation",
    max_examples: int | None = None,
) -> list[Example]:
    """Return the examples of a split in order, for metrics and samples."""
    task = load_task(data, vocabulary)
    found = data.layout.whole(examples_of(data, task, split=split))
    form = task_form(task)
    if form is not None and form.candidates:
        found = questions(found)
    return [_example(task, vocabulary, fields) for fields in itertools.islice(found, max_examples)]


def _example(task: seqio.Task, vocabulary: Vocabulary, fields: dict[str, Any]) -> Example:
    raw: dict[str, Any] = {k: v.decode() if isinstance(v, bytes) else v for k, v in fields.items()}
    targets_text = text_of("targets", raw, vocabulary)
    return Example(
        inputs_text=text_of("inputs", raw, vocabulary),
        targets_text=targets_text,
        inputs=raw.get("inputs", raw.get("choices", np.zeros(0, np.int32))),
        target=task.postprocess_fn(targets_text, example=raw, is_target=True)
        if task.postprocessor
        else targets_text,
        raw=raw,
    )


def text_of(name: str, raw: dict[str, Any], vocabulary: Vocabulary) -> str:
    """Return the text of a feature, or "" if the task lacks the feature."""
    if f"{name}_pretokenized" in raw:
        return raw[f"{name}_pretokenized"]
    return vocabulary.decode(raw[name].tolist()) if name in raw else ""


@dataclass(frozen=True, slots=True)
class Demonstration:
    """Inputs and targets of an example that a few-shot prompt can show."""

    inputs: str
    targets: str


def demonstrations(
    data: Data, vocabulary: Vocabulary, *, split: str, pool: int | None
) -> list[Demonstration]:
    """Return the examples of a split that few-shot prompts can show, each with different inputs."""
    task = load_task(data, vocabulary)
    examples = examples_of(data, task, split=split)
    found: dict[str, Demonstration] = {}
    for fields in itertools.islice(examples, pool):
        raw: dict[str, Any] = {
            k: v.decode() if isinstance(v, bytes) else v for k, v in fields.items()
        }
        inputs, targets = (text_of(name, raw, vocabulary) for name in ("inputs", "targets"))
        if targets != UNKNOWN:
            found.setdefault(inputs, Demonstration(inputs, targets))
    if not found:
        raise InputError(
            f"data.task {data.task!r} has no labels in split {split!r} for few-shot examples"
        )
    if pool is not None and next(examples, None) is not None:
        _logger.info(
            "sampling few-shot examples of %s from the first %s examples of split %s; "
            "--evaluation.few-shot.pool changes this number",
            task.name,
            f"{pool:,}",
            split,
        )
    return list(found.values())
