"""Layouts over tf.data: rows, the first part of a task, and epochs.

Layouts over tf.data: a task's dataset becomes one of rows.

Rows of text to text are made by seqio's feature converters, those of encoders by the layout itself,
of up to 256 examples at a time. Rows that are grouped by length (`data.config`) are made a batch at
a time; the examples that wait for theirs are a part of what tf.data saves. What rows are, with
pictures, stands in the layouts' own files.

The first documents or tokens of a task, to be repeated (Raffel et al. 2020, table 9).

    data = Data(task="tasks.c4:iid_15_u_u", first_tokens=2**23, ...)
    task = truncated(data, load_task(data, vocabulary, seed=0), seed=0)

Documents are the raw examples of the source. Tokens are counted before corruption: of the examples
at the task's CacheDatasetPlaceholder those are taken, from the first on, that together have no more
of them. A cache of the task begins with the same examples. Other splits than "train" stay whole.

What is left is read at the start where it has `shuffling.IN_MEMORY_BYTES` at most, and permuted as
a whole at each pass. More comes in its own order, which is the same at each pass, through the
shuffle buffer.

How often a task's data were read, told by the batches themselves.

    counted = counting(task)                # the same examples, with the epoch of each as a feature
    dataset = counted.get_dataset(..., num_epochs=None)
    ...                                     # layout (`live.rows`), batches
    batch, epoch = unmark(batch)            # 0 while the data are read for the first time

seqio repeats a task's data after its CacheDatasetPlaceholder and does not say so. What comes out
of shuffling, packing and saved buffers is no longer in step with what was read, so the epoch goes
with each example as a feature. Rows have no place for it: seqio's feature converters hand tokens on
and nothing else, and a row more of numbers would make what earlier versions saved of tf.data
another program's (docs/adr/0020). So the tokens of rows carry it in bits that no vocabulary
reaches, from the layout to the batch; layouts see plain tokens. Token 17 of an example in its third
epoch:

    17 + (2 << 24)
"""

import copy
import functools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from t5x_lite.core.errors import InputError
from t5x_lite.data import elements
from t5x_lite.data.config import Data, bucket_of, lengths_of
from t5x_lite.data.elements import seqio, tf
from t5x_lite.data.tasks import shuffling, stages
from t5x_lite.layouts import base
from t5x_lite.layouts.base import KEY, EncoderTokens, Layout

_logger = logging.getLogger(__name__)

Dataset = tf.data.Dataset


def truncated(data: Data, task: seqio.Task, *, seed: int) -> seqio.Task:
    """The task with the training examples that data.first_documents or data.first_tokens leaves."""
    if "train" not in task.splits:
        return task
    if data.first_documents is not None:
        return _first_documents(task, data.first_documents)
    if data.first_tokens is not None:
        return _first_tokens(data, task, data.first_tokens, seed=seed)
    return task


def _first_documents(task: seqio.Task, number: int) -> seqio.Task:
    source = task.source

    @functools.cache
    def train() -> Dataset:
        return _held(source.get_dataset("train", shuffle=False).take(number), at_least=number)

    def dataset_of(split: str) -> Dataset:
        return train() if split == "train" else source.get_dataset(split, shuffle=False)

    found = stages.source(task.splits, dataset_of)
    if isinstance(source, stages.Source):
        found.one_to_one, found.counts = source.one_to_one, source.counts
    return task.replace(source=found)


def _first_tokens(data: Data, task: seqio.Task, number: int, *, seed: int) -> seqio.Task:
    steps = list(task.preprocessors)
    places = [i for i, step in enumerate(steps) if isinstance(step, seqio.CacheDatasetPlaceholder)]

    def stored(split: str) -> Dataset:
        raw = task.source.get_dataset(split, shuffle=False)
        return task.preprocess_precache(raw, seed=seed)

    spec: Any = stored("train").element_spec
    names = _counted_names(task, spec) if places else []
    if not names:
        raise InputError(
            f"data.first_tokens counts tokens at a CacheDatasetPlaceholder, and data.task "
            f"{data.task!r} has none after its tokenization: put one there, or set "
            "--data.first-documents"
        )

    @functools.cache
    def train() -> Dataset:
        return _held(_no_more_tokens(unnumbered("train"), names, number), none=_no_example(number))

    def unnumbered(split: str) -> Dataset:
        return stored(split).map(lambda example: {k: example[k] for k in example if k != "index"})

    def dataset_of(split: str) -> Dataset:
        return train() if split == "train" else unnumbered(split)

    # An index is a place in a pass: what is permuted is numbered behind it.
    numbered = [stages.number] if "index" in spec else []
    return task.replace(
        source=stages.source(task.splits, dataset_of, one_to_one=True),
        preprocessors=[*numbered, *steps[places[0] :]],
    )


def _counted_names(task: seqio.Task, spec: Any) -> list[str]:
    """The features of tokens of an example at the placeholder."""
    known = ("tokens", *task.output_features)
    return [
        name
        for name, one in (spec.items() if isinstance(spec, Mapping) else ())
        if name in known and one.dtype.is_integer and one.shape.rank == 1
    ]


def _no_more_tokens(dataset: Dataset, names: Sequence[str], number: int) -> Dataset:
    """The first examples that together have so many tokens at most."""

    @tf.autograph.experimental.do_not_convert
    def step(before: Any, example: Any) -> Any:
        tokens = tf.add_n([tf.size(example[name], tf.int64) for name in names])
        return before + tokens, (before + tokens, example)

    counted: Any = dataset.scan(tf.constant(0, tf.int64), step)
    return counted.take_while(lambda total, _: total <= number).map(lambda _, example: example)


def _no_example(number: int) -> str:
    return f"data.first_tokens {number} is less than the first training example has"


def _held(dataset: Dataset, *, at_least: int = 1, none: str = "") -> Dataset:
    """The same examples, in memory so that they can be permuted, unless they are too large."""
    spec: Any = dataset.element_spec
    if shuffling.can_be_permuted(dataset):
        _tell_of_few(int(dataset.cardinality()), at_least)
        return dataset
    if not isinstance(spec, Mapping) or any(
        not isinstance(one, tf.TensorSpec) or one.shape.rank not in (0, 1) for one in spec.values()
    ):
        return dataset
    found, size = [], 0
    for example in elements.as_numpy(elements.deterministic(dataset)):
        found.append(example)
        size += sum(len(v) if isinstance(v, bytes) else v.nbytes for v in example.values())
        if size > shuffling.IN_MEMORY_BYTES:
            return dataset
    if none and not found:
        raise InputError(none)
    _tell_of_few(len(found), at_least)
    features = {name: _feature(one, [e[name] for e in found]) for name, one in spec.items()}

    @tf.autograph.experimental.do_not_convert
    def example_at(place: Any) -> dict[str, Any]:
        return {name: feature(place) for name, feature in features.items()}

    return Dataset.range(len(found)).map(example_at)


def _feature(spec: Any, values: Sequence[Any]) -> Callable[[Any], Any]:
    """From a place to the value of a feature there: a scalar, or a sequence of any length."""
    if spec.shape.rank == 0:
        column = tf.constant(values, spec.dtype, shape=[len(values)])
        return lambda place: column[place]
    ends = tf.constant(np.cumsum([0, *map(len, values)]), tf.int64)
    flat = tf.constant(
        np.concatenate([*values, np.zeros(0, spec.dtype.as_numpy_dtype)]), spec.dtype
    )
    return lambda place: tf.ensure_shape(flat[ends[place] : ends[place + 1]], spec.shape)


def _tell_of_few(number: int, at_least: int) -> None:
    if number < at_least:
        _logger.warning("data.first_documents is %d, and there are %d", at_least, number)


FIELD = "epoch_of_example"
_BITS = 24
_PLAIN = (1 << _BITS) - 1
_MOST = (1 << (31 - _BITS)) - 1
"""The last epoch that is told: the 128th and all later ones are one."""


def counting(task: Any) -> Any:
    """The task with `FIELD` in its examples, int64: how often the data were read before.

    An example is without it where a preprocessor drops what it does not know, or where the task's
    raw examples have no names.
    """

    def precache(dataset: Any, seed: int | None = None) -> Any:
        return _first_marked(task.preprocess_precache(dataset, seed))

    def postcache(dataset: Any, sequence_length: Any, seed: int | None = None) -> Any:
        return task.preprocess_postcache(_counted(dataset), sequence_length, seed)

    # Steps of their own in the task's list would shift the seeds that seqio gives to the others.
    counted = copy.copy(task)
    counted.preprocess_precache, counted.preprocess_postcache = precache, postcache
    return counted


def _first_marked(dataset: Any) -> Any:
    """Of one pass: `FIELD` is 1 in the first example, 0 in the others."""
    from t5x_lite.data.elements import tf

    if not isinstance(dataset.element_spec, Mapping):
        return dataset
    return dataset.enumerate().map(
        lambda index, example: {**example, FIELD: tf.cast(tf.equal(index, 0), tf.int64)}
    )


def _counted(dataset: Any) -> Any:
    """Of passes that were marked so, one after the other: `FIELD` is the number of the pass."""
    from t5x_lite.data.elements import tf

    spec = dataset.element_spec
    if not isinstance(spec, Mapping) or FIELD not in spec:
        return dataset

    def step(epoch, example):
        epoch += example[FIELD]
        return epoch, {**example, FIELD: epoch}

    return dataset.scan(tf.constant(-1, tf.int64), step)


def bounded(example: Mapping[str, Any]) -> dict[str, Any]:
    """The example with a `FIELD` that bits of tokens hold: late epochs are one."""
    from t5x_lite.data.elements import tf

    return {**example, FIELD: tf.minimum(example[FIELD], _MOST)}


def mark(example: Mapping[str, Any]) -> dict[str, Any]:
    """The example's features without `FIELD`, which their tokens carry; padding stays 0."""
    from t5x_lite.data.elements import tf

    epoch = tf.cast(tf.minimum(example[FIELD], _MOST), tf.int32) * (1 << _BITS)
    return {
        name: tf.where(tf.equal(value, 0), value, value + epoch)
        if value.dtype == tf.int32 and value.shape.rank == 1
        else value
        for name, value in example.items()
        if name != FIELD
    }


def mark_rows(
    rows: Mapping[str, np.ndarray], epochs: np.ndarray, of: np.ndarray
) -> dict[str, np.ndarray]:
    """Rows whose tokens carry the latest epoch of their examples."""
    latest = np.zeros(len(next(iter(rows.values()))), np.int64)
    np.maximum.at(latest, of, epochs)
    marks = (latest << _BITS).astype(np.int32)
    return {
        name: value + marks.reshape(-1, *(1,) * (value.ndim - 1))
        if name.endswith("_tokens")
        else value
        for name, value in rows.items()
    }


def unmark(batch: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], int]:
    """The batch without the marks, and the latest epoch among its examples."""
    tokens = [name for name in batch if name.endswith("_tokens")]
    epoch = max((int(batch[name].max(initial=0)) >> _BITS for name in tokens), default=0)
    plain = {name: batch[name] & _PLAIN for name in tokens}
    return {**batch, **plain}, epoch


_PACKED_AT_A_TIME = 256
_LAID_OUT_AT_A_TIME = 32
_BUCKET = "bucket_of_example"


def rows(
    dataset: tf.data.Dataset,
    layout: Layout,
    *,
    features: Collection[str],
    lengths: Mapping[str, int],
    pack: bool,
    tokens: EncoderTokens | None = None,
) -> tf.data.Dataset:
    """Examples as rows of model features."""
    there: Any = dataset.element_spec
    layout = _of_task(layout, features, there)
    converter = layout.converter(seqio, pack=pack)
    if FIELD in there:
        told = bounded if converter is None else mark
        dataset = dataset.map(tf.autograph.experimental.do_not_convert(told))
    if converter is None:
        names = _names(layout, features)
        return _own_rows(dataset, layout, names, lengths=lengths, pack=pack, tokens=tokens)
    return converter(dataset, {name: lengths[name] for name in layout.features})


def grouped(
    dataset: tf.data.Dataset,
    layout: Layout,
    *,
    features: Collection[str],
    shapes: Sequence[Data],
    part: tuple[int, int] = (0, 1),
    tokens: EncoderTokens | None = None,
) -> tf.data.Dataset:
    """Examples as batches of several shapes, grouped by length as `data.config` says.

    Where the examples end, each bucket's rest is a batch that is filled up with rows of padding.
    """
    there: Any = dataset.element_spec
    layout = _of_task(layout, features, there)
    counted = FIELD in there
    if counted:
        dataset = dataset.map(tf.autograph.experimental.do_not_convert(bounded))
    names = _names(layout, features)
    chosen = (*names, *((FIELD,) if counted else ()))
    buckets = tuple((getattr(shape, layout.grouped), shape.batch_size) for shape in shapes)
    sizes = tf.constant([rows for _, rows in buckets], tf.int64)
    flat = _flat(there, names)

    def measured(example):
        length = np.array([layout.longest({name: example[name] for name in names})])
        return {**example, _BUCKET: bucket_of(length, buckets)[0]}

    def batch_of(bucket, examples):
        return examples.ragged_batch(tf.gather(sizes, bucket)).map(
            lambda block: {**flat(block), _BUCKET: block[_BUCKET]}
        )

    def laid_out(block):
        shape = shapes[block[_BUCKET][0]]
        share = shape.batch_size // part[1]
        own = slice(part[0] * share, (part[0] + 1) * share)
        examples = _examples(block, names)[own]
        taken = np.arange(len(examples))
        made = layout.lay_out(
            examples,
            taken,
            num_rows=share,
            lengths=lengths_of(shape),
            pack=False,
            tokens=tokens,
        )
        return mark_rows(made, block[FIELD][own], taken) if counted else made

    examples = dataset.map(lambda example: {name: example[name] for name in chosen})
    plain: Any = examples.element_spec
    spec = {**plain, _BUCKET: tf.TensorSpec([], tf.int64)}
    batches = stages.map_numpy(examples, measured, spec).group_by_window(
        key_func=lambda example: example[_BUCKET],
        reduce_func=batch_of,
        window_size_func=lambda bucket: tf.gather(sizes, bucket),
    )
    specs = [_row_spec(layout, lengths_of(shape), pack=False) for shape in shapes]
    return stages.map_numpy(batches, laid_out, {name: _common(name, specs) for name in specs[0]})


def _of_task(layout: Layout, features: Collection[str], there: Collection[str]) -> Layout:
    """The layout of a task's examples."""
    layout = layout.of_task(features)
    if layout.draws and KEY not in there:
        raise InputError(
            f"data.layout {layout.name} draws for each example, and the task does not number them: "
            "put stages.number, seqio.CacheDatasetPlaceholder(), stages.count_epochs and "
            "partial(stages.keyed, seed=arguments.seed) after its tokenization"
        )
    return layout


def _names(layout: Layout, features: Collection[str]) -> tuple[str, ...]:
    """The fields of an example that its row is made of."""
    return (*layout.shown(features), *((KEY,) if layout.draws else ()))


def _row_spec(
    layout: Layout, lengths: Mapping[str, int], *, pack: bool
) -> dict[str, tf.TensorSpec]:
    """Rows [_, ...] of a layout."""
    none = np.zeros(0, np.int64)
    row = layout.lay_out([], none, num_rows=1, lengths=lengths, pack=pack)
    return {name: tf.TensorSpec([None, *v.shape[1:]], v.dtype) for name, v in row.items()}


def _common(name: str, specs: Sequence[Mapping[str, tf.TensorSpec]]) -> tf.TensorSpec:
    """A feature of several shapes: the sizes in which they differ are not said."""
    sizes = zip(*(spec[name].shape for spec in specs), strict=True)
    shape = [size[0] if len({*size}) == 1 else None for size in sizes]
    return tf.TensorSpec(shape, specs[0][name].dtype)


def _flat(there: Any, names: Sequence[str]) -> Any:
    """A function of a ragged block of examples: flat values, and where each example ends."""

    def flat(block):
        found = {name: block[name] for name in (FIELD,) if FIELD in there}
        for name in names:
            feature: Any = block[name]
            if isinstance(feature, tf.Tensor):  # all of one length
                ragged: Any = tf.RaggedTensor
                feature = ragged.from_tensor(feature)
            found |= {name: feature.flat_values, f"{name}_ends": feature.row_limits()}
        return found

    return flat


def _examples(block: Mapping[str, np.ndarray], names: Sequence[str]) -> list[dict[str, np.ndarray]]:
    """The examples of a flat block."""
    columns = [np.split(block[name], block[f"{name}_ends"][:-1]) for name in names]
    return [dict(zip(names, parts, strict=True)) for parts in zip(*columns, strict=True)]


def _own_rows(
    dataset: tf.data.Dataset,
    layout: Layout,
    names: Sequence[str],
    *,
    lengths: Mapping[str, int],
    pack: bool,
    tokens: EncoderTokens | None,
) -> tf.data.Dataset:
    """Rows by blocks of examples, of which each block is a pure function."""
    there: Any = dataset.element_spec
    counted = FIELD in there

    def laid_out(block):
        examples = _examples(block, names)
        taken = np.arange(len(examples))
        if pack:
            sizes = np.array(
                [[len(example[name]) for name in layout.features] for example in examples]
            )
            capacity = layout.capacity(lengths)
            taken = base.first_fit(layout.packed_lengths(sizes), capacity=capacity)
        made = layout.lay_out(
            examples,
            taken,
            num_rows=int(taken.max()) + 1,
            lengths=lengths,
            pack=pack,
            tokens=tokens,
        )
        return mark_rows(made, block[FIELD], taken) if counted else made

    chosen = (*names, *((FIELD,) if counted else ()))
    examples = dataset.map(lambda example: {name: example[name] for name in chosen})
    blocks = examples.ragged_batch(_PACKED_AT_A_TIME if pack else _LAID_OUT_AT_A_TIME)
    spec = _row_spec(layout, lengths, pack=pack)
    return stages.map_numpy(blocks.map(_flat(there, names)), laid_out, spec).unbatch()
