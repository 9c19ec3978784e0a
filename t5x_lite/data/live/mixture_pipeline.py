"""Batches of a mixture of tasks on the fly: the twin of `pipeline` for a data.task with members.

    batches = train_batches(data, vocabulary, seed=0)       # as pipeline.train_batches
    for task in members(data, vocabulary).present: ...      # each to be measured by itself

Every task gives its own examples, tokenised, trimmed and shuffled; for each place a task is drawn
at random by its rate, and what is drawn is packed together. It is what seqio.Mixture does
(tf.data.Dataset.sample_from_datasets), so that equal seeds draw the same.
"""

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from t5x_lite.data.config import Data
from t5x_lite.data.live.mixture_members import (
    Present,
    is_absent,
    members,
    trained_members,
)
from t5x_lite.data.mixtures import Member, find_mixture
from t5x_lite.data.positions import identity_of, share_of_batch
from t5x_lite.errors import InputError
from t5x_lite.vocabulary.loading import Vocabulary

_logger = logging.getLogger(__name__)

_EVAL_SEED = 42
"""seqio's, where nothing is shuffled."""
_PROCESS_SEED = 1 << 32

_counted: dict[str, int] = {}
"""What training has counted, for the held-out losses of the same run."""


def _num_examples(one: Present, *, at_most: int | None) -> int:
    """The examples of a task's training split as its source gives them; at least one.

    Args:
      one: the task, of which nothing says how many it has.
      at_most: counting ends here, since a rate knows no more.
    """
    from t5x_lite.data import elements
    from t5x_lite.data.live import pipeline

    pipeline.check_split(one.data, one.task, split="train")
    source = one.task.source.get_dataset(split="train", shuffle=False)
    number = int(source.cardinality())
    if number < 0:
        _logger.info(
            "counting the examples of %s: its Member in the mixture does not say how many it has",
            one.member.name,
        )
        number = sum(1 for _ in itertools.islice(elements.as_numpy(source), at_most))
    if not number:
        where = f" in {one.data.directory}" if one.data.directory else ""
        raise InputError(f"data.task {one.data.task!r} found no example for split 'train'{where}")
    return number


def _rates(data: Data, trained: Sequence[Present], *, anew: bool) -> list[float]:
    """The rates of tasks that are there; examples are counted where nothing says how many.

    Args:
      data: the data config, of a mixture.
      trained: tasks that are trained on.
      anew: whether earlier counts of this process will not do.
    """
    mixture = find_mixture(data)
    assert mixture is not None
    there = {one.member.name: one for one in trained}
    at_most = data.mixing.maximum

    def count(member: Member) -> int:
        one = there.get(member.name)
        if one is None:
            return 0
        key = repr((one.data, at_most))
        if anew or key not in _counted:
            _counted[key] = _num_examples(one, at_most=at_most)
        return _counted[key]

    names = [member.name for member in mixture.members]
    by_name = dict(zip(names, mixture.rates(data.mixing, count=count), strict=True))
    return [by_name[one.member.name] for one in trained]


def _tell_constants(data: Data) -> None:
    """One line about constant rates that a limit or a temperature leaves as they are."""
    mixture = find_mixture(data)
    assert mixture is not None
    for member in mixture.constants(data.mixing):
        _logger.info(
            "data.mixing.maximum and data.mixing.temperature leave %s at its constant rate of %s",
            member.name,
            f"{member.rate:,.10g}",
        )


def train_batches(
    data: Data,
    vocabulary: Vocabulary,
    *,
    seed: int,
    process_index: int = 0,
    process_count: int = 1,
) -> Any:
    """Training batches of a mixture, repeated for ever, as `pipeline.train_batches` of a task.

    Args:
      data: the data config; its task is a mixture.
      vocabulary: of inputs and targets.
      seed: of shuffling, of what is drawn and of the corruption.
      process_index: this process, which reads its own part of every task's examples.
      process_count: processes in all; each gets batch_size / process_count rows.

    Returns:
      `batches.Batches` of int32 arrays [rows, length] under seqio's names.

    Raises:
      InputError: as `pipeline.train_batches`, of any of the tasks.
    """
    from t5x_lite.data.live import pipeline
    from t5x_lite.data.live.batches import Batches
    from t5x_lite.data.quiet_tensorflow import seqio

    share = share_of_batch(data, process_count)
    shard_info = seqio.ShardInfo(process_index, process_count) if process_count > 1 else None
    trained = trained_members(
        data,
        vocabulary,
        seed=seed + process_index * _PROCESS_SEED,
        shard_info=shard_info,
        tells=process_index == 0,
    )
    rates = _rates(data, trained, anew=True)
    if process_index == 0:
        _tell_constants(data)
    passes = {
        one.member.name: pipeline.training_passes(data, one.task, seed=seed) for one in trained
    }

    def examples(one: Present) -> Any:
        of = passes[one.member.name]
        return pipeline.training_examples(data, one.task, of, seed=seed, shard_info=shard_info)

    rows = _rows(data, vocabulary, trained, rates, draw_seed=seed, examples=examples)
    dataset = rows.batch(share, drop_remainder=True)
    identity = {
        **identity_of(data, seed=seed),
        "task": data.task,
        "members": [[one.member.task, rate] for one, rate in zip(trained, rates, strict=True)],
        "vocabulary": vocabulary.digest,
        "shuffle_buffer": data.shuffle_buffer,
        "sizes": [found and found.size for found in passes.values()],
        "process_index": process_index,
        "process_count": process_count,
    }
    return Batches(dataset.prefetch(1), identity=identity)


def eval_batches(
    data: Data,
    vocabulary: Vocabulary,
    *,
    split: str = "validation",
    max_batches: int | None = None,
) -> Iterator[dict[str, np.ndarray]]:
    """Batches for a held-out loss, the same in every run: drawn at the rates of training.

    Tasks that are not there, or lack the split, are passed over; the batches end where a task would
    begin anew. The last one is filled up with rows of padding, whose loss weights are 0.

    Args:
      data: the data config; its task is a mixture.
      vocabulary: of inputs and targets.
      split: the tasks' split.
      max_batches: stop after so many; None reads all.

    Raises:
      InputError: as `train_batches`, or no task that is trained on has the split.
    """
    from t5x_lite.data import elements
    from t5x_lite.data.live import pipeline

    trained = [one for one in members(data, vocabulary).present if one.member.is_trained]
    rates = _rates(data, trained, anew=False)
    pairs = [
        (one, rate)
        for one, rate in zip(trained, rates, strict=True)
        if split in one.task.splits and _is_there(one, split)
    ]
    if not pairs:
        raise InputError(f"no trained task of the mixture {data.task!r} has a split {split!r}")
    chosen, chosen_rates = [one for one, _ in pairs], [rate for _, rate in pairs]
    rows = _rows(
        data,
        vocabulary,
        chosen,
        chosen_rates,
        draw_seed=_EVAL_SEED,
        examples=lambda one: pipeline.held_out_examples(data, one.task, split=split),
    )
    read = elements.as_numpy(rows.batch(data.batch_size))
    batches = itertools.islice(pipeline.padded(read, data, vocabulary), max_batches)
    first = next(batches, None)
    if first is None:
        raise InputError(f"the mixture {data.task!r} found no example for split {split!r}")
    return itertools.chain([first], batches)


def _is_there(one: Present, split: str) -> bool:
    """Whether the files of a split are there."""
    try:
        one.task.source.get_dataset(split=split, shuffle=False)
    except InputError as error:
        if is_absent(error):
            return False
        raise
    return True


def _rows(
    data: Data,
    vocabulary: Vocabulary,
    tasks: Sequence[Present],
    rates: Sequence[float],
    *,
    draw_seed: int,
    examples: Callable[[Present], Any],
) -> Any:
    """The tasks' examples, drawn and laid out as rows of model features."""
    from t5x_lite.data.layouts.base import KEY
    from t5x_lite.data.live import pipeline
    from t5x_lite.data.quiet_tensorflow import tf

    features = {tuple(one.task.output_features) for one in tasks}
    if len(features) > 1:
        raise InputError(
            f"the tasks of the mixture {data.task!r} have different features: "
            f"{' and '.join(sorted(map(str, features)))}"
        )
    (names,) = features
    if data.layout.draws:
        names = (*names, KEY)

    def of(one: Present) -> Any:
        return examples(one).map(lambda example: {name: example[name] for name in names})

    # In seqio's order, so that a seed draws what it draws there.
    pairs = sorted(zip(tasks, rates, strict=True), key=lambda pair: pair[0].task.name)
    drawn = tf.data.Dataset.sample_from_datasets(
        [of(one) for one, _ in pairs],
        weights=[rate for _, rate in pairs],
        seed=draw_seed,
        stop_on_empty_dataset=True,
    )
    return pipeline.laid_out(data, vocabulary, drawn)
