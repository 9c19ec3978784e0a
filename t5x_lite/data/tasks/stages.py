"""Parts of tasks: tf.data stages from raw text to seqio's features, and retrieved passages.

Parts of tasks: tf.data stages between raw text and seqio's "inputs" and "targets".

As in seqio, a source yields raw examples, and a preprocessor is a function from dataset to dataset.
An offline cache may hold the output of the preprocessors before `seqio.CacheDatasetPlaceholder`.
The preprocessors after it run again in every epoch. The stages of unsupervised text are:

    text_lines -> chunk_documents -> number -> CacheDatasetPlaceholder -> count_epochs
        -> corrupt -> append_eos_after_trim

`unsupervised_task` combines them. An `Objective` defines the chunks and their corruption.

Every iterator over these stages can be saved: sources are files or tensors, and NumPy code runs
only in `map_numpy`, as a pure function of the example. All randomness of an example depends on its
(seed, epoch, index). `number` adds the index before seqio repeats the data, and `count_epochs` adds
the epoch afterwards.

Retrieved passages (`data.augment`) added to the inputs of a task's raw examples.

    source -> + passages, by id -> template, as many words of the passages as fit -> tokens -> ...

The run and its top-ranked passages are read into memory when a split is read. The template is
filled in before the task's first preprocessor, so a cache holds the passages.
"""

import dataclasses
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from t5x_lite.core.errors import InputError
from t5x_lite.core.object_store import BucketError
from t5x_lite.data.config import Augment, TaskArguments
from t5x_lite.data.elements import BEGIN, BEGIN_BUCKET, END, as_numpy, deterministic, seqio, tf
from t5x_lite.data.formats.pairs import read_passages
from t5x_lite.data.formats.rankings import read_run
from t5x_lite.data.preprocessors import fill
from t5x_lite.data.tasks import labelled, names, text_source
from t5x_lite.data.tasks.names import seqio_vocabulary
from t5x_lite.data.tasks.unsupervised import Corruption, Objective
from t5x_lite.data.vocabularies.encoder_tokens import encoder_tokens, separators, without_special
from t5x_lite.data.vocabularies.loading import Vocabulary
from t5x_lite.layouts.base import KEY

_logger = logging.getLogger(__name__)


Example = Mapping[str, Any]

DOCUMENTS_PER_GROUP = 128
"""Number of documents that are concatenated before they are split into chunks, as in T5."""

_CORRUPTED_AT_A_TIME = 64


def map_numpy(
    dataset: tf.data.Dataset,
    function: Callable[[dict[str, np.ndarray]], Example],
    signature: Mapping[str, tf.TensorSpec],
    *,
    parallel: bool = True,
) -> tf.data.Dataset:
    """Map a pure NumPy function over the examples of a tf.data.Dataset.

    Args:
      dataset: examples as flat dicts.
      function: pure function from an example to an example. An InputError of the function reaches
        the user unchanged.
      signature: names, shapes and dtypes of the results.
      parallel: True to process several examples at a time.

    Returns:
      The dataset of the function's results, in the same order.
    """
    elements: Any = dataset.element_spec
    names = sorted(elements)

    def call(*values):
        try:
            outputs = function(dict(zip(names, values, strict=True)))
        except InputError as error:
            raise ValueError(f"{BEGIN}{error}{END}") from error
        except BucketError as error:
            raise ValueError(f"{BEGIN_BUCKET}{error}{END}") from error
        return [np.asarray(outputs[k], v.dtype.as_numpy_dtype) for k, v in signature.items()]

    @tf.autograph.experimental.do_not_convert
    def apply(example):
        dtypes = [spec.dtype for spec in signature.values()]
        values = tf.numpy_function(call, [example[name] for name in names], dtypes, stateful=False)
        return {
            name: tf.ensure_shape(value, spec.shape)
            for (name, spec), value in zip(signature.items(), values, strict=True)
        }

    return dataset.map(apply, num_parallel_calls=tf.data.AUTOTUNE if parallel else None)


def stored(task: Any, split: str, *, seed: int) -> tf.data.Dataset:
    """Return the examples of a task's split in order, as stored in a cache."""
    raw = task.source.get_dataset(split, shuffle=False)
    return task.preprocess_precache(raw, seed=seed)


def in_blocks(
    dataset: tf.data.Dataset, names: Sequence[str], size: int, *, scalars: Sequence[str] = ()
) -> tf.data.Dataset:
    """Batch examples into blocks with one flat array per feature.

    Args:
      dataset: examples as flat dicts.
      names: names of the features that are sequences.
      size: number of examples in a block.
      scalars: names of the features that are numbers.
    """
    ragged: Any = tf.RaggedTensor

    @tf.autograph.experimental.do_not_convert
    def flat(block):
        found = {name: block[name] for name in scalars}
        for name in names:
            feature = block[name]
            if isinstance(feature, tf.Tensor):  # all of one length
                feature = ragged.from_tensor(feature)
            found |= {name: feature.flat_values, f"{name}/ends": feature.row_limits()}
        return found

    return dataset.ragged_batch(size).map(flat)


# Preprocessors. seqio passes `output_features` and `sequence_length` if they are parameters.


def chunk_documents(
    dataset: tf.data.Dataset,
    output_features: Mapping[str, Any],
    *,
    length: int,
    join: bool = True,
    eos: bool = False,
) -> tf.data.Dataset:
    """Tokenize documents, concatenate groups of 128 documents, and split each group into chunks.

    By default documents have no separator, as in T5. The last chunk is shorter than the other
    chunks. A chunk of a single token is dropped, because no objective can use it. T5 first
    truncates documents of more than 65536 tokens to a random part of that length; this function
    keeps them complete.

    Args:
      dataset: examples with "text".
      output_features: output features, from seqio; the vocabulary of "targets" is used.
      length: number of tokens in a chunk.
      join: True to allow tokens of several documents in a chunk.
      eos: True to end each document in EOS.

    Returns:
      Examples {"tokens": int32 [2..length]}.
    """
    vocabulary = output_features["targets"].vocabulary

    @tf.autograph.experimental.do_not_convert
    def chunks(documents):
        encoded = vocabulary.encode_tf(documents["text"])
        if eos:
            ends = tf.fill([encoded.nrows(), 1], tf.cast(vocabulary.eos_id, encoded.dtype))
            encoded = tf.concat([encoded, ends], axis=1)
        tokens = tf.cast(encoded.flat_values, tf.int32)
        sizes = tf.size(tokens)[None] if join else tf.cast(encoded.row_lengths(), tf.int32)
        counts = (sizes + length - 1) // length
        before = tf.cumsum(counts, exclusive=True)  # chunks of the documents that come before
        places = tf.range(tf.reduce_sum(counts)) - tf.repeat(before, counts)
        lengths = tf.minimum(tf.repeat(sizes, counts) - places * length, length)
        ragged: Any = tf.RaggedTensor
        rows = ragged.from_row_lengths(tokens, lengths, validate=False)
        padded = tf.ensure_shape(rows.to_tensor(shape=[None, length]), [None, length])
        usable = lengths > 1
        return {"tokens": padded[usable], "length": lengths[usable]}

    dataset = dataset.batch(DOCUMENTS_PER_GROUP).map(chunks, num_parallel_calls=tf.data.AUTOTUNE)
    return dataset.unbatch().map(lambda chunk: {"tokens": chunk["tokens"][: chunk["length"]]})


def number(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Add the feature "index", int64: the position of the example in the dataset."""
    return dataset.enumerate().map(lambda index, example: {**example, "index": index})


def count_epochs(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Add the feature "epoch", int64: the number of earlier passes over the data."""

    @tf.autograph.experimental.do_not_convert
    def step(state, example):
        previous, epoch = state
        epoch += tf.cast(example["index"] <= previous, tf.int64)
        return (example["index"], epoch), {**example, "epoch": epoch}

    return dataset.scan((tf.constant(tf.int64.max, tf.int64), tf.constant(-1, tf.int64)), step)


def corrupt(dataset: tf.data.Dataset, function: Corruption, *, seed: int) -> tf.data.Dataset:
    """Replace "tokens" by randomly corrupted "inputs" and "targets".

    Args:
      dataset: examples with "tokens", "epoch" and "index", and optional other scalars.
      function: corruption function of `data.denoising` with its options bound.
      seed: seed of the run.

    Returns:
      Examples {"inputs", "targets"}: int32 [_] without EOS. Other features are kept.
    """
    elements: Any = dataset.element_spec
    others = {k: v for k, v in elements.items() if k not in ("tokens", "epoch", "index")}

    # A call of NumPy code costs more than a corruption, so blocks are corrupted.
    def corrupted(block):
        keys = zip(block["epoch"].tolist(), block["index"].tolist(), strict=True)
        texts = np.split(block["tokens"], block["ends"][:-1])
        made = [
            function(tokens, seed=seed, epoch=epoch, index=index)
            for tokens, (epoch, index) in zip(texts, keys, strict=True)
        ]
        sides = [[example[side] for example in made] for side in ("inputs", "targets")]
        return dict(zip(sides_spec, (*padded(sides[0]), *padded(sides[1])), strict=True)) | {
            name: block[name] for name in others
        }

    @tf.autograph.experimental.do_not_convert
    def flat(block):
        tokens: Any = block["tokens"]
        if isinstance(tokens, tf.Tensor):  # all of one length
            ragged: Any = tf.RaggedTensor
            tokens = ragged.from_tensor(tokens)
        return {**block, "tokens": tokens.flat_values, "ends": tokens.row_limits()}

    @tf.autograph.experimental.do_not_convert
    def example_of(row):
        sides = {side: row[side][: row[f"{side}_size"]] for side in ("inputs", "targets")}
        return {**{name: row[name] for name in others}, **sides}

    rows, sizes = tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None], tf.int32)
    sides_spec = {"inputs": rows, "inputs_size": sizes, "targets": rows, "targets_size": sizes}
    others_spec = {name: tf.TensorSpec([None], spec.dtype) for name, spec in others.items()}
    blocks = dataset.ragged_batch(_CORRUPTED_AT_A_TIME).map(flat)
    return map_numpy(blocks, corrupted, sides_spec | others_spec).unbatch().map(example_of)


def keyed(dataset: tf.data.Dataset, *, seed: int) -> tf.data.Dataset:
    """Add a feature (seed, epoch, index), the random seed of an example."""

    @tf.autograph.experimental.do_not_convert
    def with_key(example):
        others = {name: v for name, v in example.items() if name not in ("epoch", "index")}
        seeded = tf.constant(seed, tf.int64)
        return {**others, KEY: tf.stack([seeded, example["epoch"], example["index"]])}

    return dataset.map(with_key)


def append_ending(
    dataset: tf.data.Dataset,
    sequence_length: Mapping[str, int] | None = None,
    *,
    ending: Sequence[int],
) -> tf.data.Dataset:
    """Truncate "inputs", and append the given token ids instead of EOS.

    Args:
      dataset: examples with "inputs", tokens without EOS.
      sequence_length: maximum tokens by feature, from seqio, including the ending.
      ending: token ids to append.
    """
    length = (sequence_length or {}).get("inputs")
    last = tf.constant(ending, tf.int32)

    def ended(example):
        inputs = example["inputs"]
        if length is not None:
            inputs = inputs[: length - len(ending)]
        return {**example, "inputs": tf.concat([inputs, tf.cast(last, inputs.dtype)], axis=0)}

    return dataset.map(
        tf.autograph.experimental.do_not_convert(ended), num_parallel_calls=tf.data.AUTOTUNE
    )


def padded(sequences: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Pad sequences with 0 to equal lengths; return the array [n, longest] and the lengths [n].

    There is at least one column, even if all sequences are empty.
    """
    sizes = np.array([len(sequence) for sequence in sequences], np.int32)
    dtype = sequences[0].dtype if sequences else np.int32
    rows = np.zeros((len(sequences), int(sizes.max(initial=1))), dtype)
    rows[np.arange(rows.shape[1]) < sizes[:, None]] = np.concatenate(sequences)
    return rows, sizes


# Parts of a seqio.Task.


def features(vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the output features of a text-to-text task: "inputs" and "targets", each with EOS."""
    feature = seqio.Feature(vocabulary=seqio_vocabulary(vocabulary), add_eos=True, dtype=tf.int32)
    return {"inputs": feature, "targets": feature}


def ended_by(task: Any, ending: Sequence[int]) -> Any:
    """Return a seqio.Task with inputs that end in the given tokens instead of EOS.

    Args:
      task: text-to-text task.
      ending: token ids at the end of the inputs.
    """
    inputs = dataclasses.replace(task.output_features["inputs"], add_eos=False)
    return task.replace(
        output_features={**task.output_features, "inputs": inputs},
        preprocessors=[*task.preprocessors, partial(append_ending, ending=tuple(ending))],
    )


class Source(seqio.FunctionDataSource):
    """Seqio source that returns each split by calling a function, in a fixed order.

    Attributes:
      one_to_one: True if a task makes exactly one example of each raw example.
    """

    def __init__(
        self,
        splits: Sequence[str],
        dataset_of: Callable[[str], tf.data.Dataset],
        *,
        one_to_one: bool = False,
        made_of: Callable[[str], tf.data.Dataset] | None = None,
    ):
        """Create a seqio source from a function that reads a split.

        Args:
          splits: names of the splits.
          dataset_of: function from a split to its raw examples.
          one_to_one: True if a task makes one example of each raw example.
          made_of: function from a split to the dataset that `dataset_of` converts to raw
            examples; None uses `dataset_of`.
        """
        self.one_to_one = one_to_one
        self._made_of = made_of or dataset_of

        def dataset_fn(split, shuffle_files, seed=None):
            return dataset_of(split)

        super().__init__(dataset_fn, splits=splits)

    def fits_in_memory(self, split: str) -> bool:
        return text_source.can_be_permuted(self._made_of(split))

    def passes(self, split: str, *, seed: int) -> text_source.Passes | None:
        """Return the passes over a streamed split, each in a new random order.

        Args:
          split: name of the split.
          seed: seed of the orders.

        Returns:
          The passes, or None if the examples can only be read from the start.
        """
        del split, seed


def source(
    splits: Sequence[str],
    dataset_of: Callable[[str], tf.data.Dataset],
    *,
    one_to_one: bool = False,
    made_of: Callable[[str], tf.data.Dataset] | None = None,
) -> Source:
    """Create a seqio source that returns each split by calling a function."""
    return Source(splits, dataset_of, one_to_one=one_to_one, made_of=made_of)


class FileSource(Source):
    """Seqio source of files that can be read one by one, in a fixed order.

    Training processes divide the examples, not the files, among each other.

    Attributes:
      language: language to read from multilingual text.
    """

    def __init__(
        self,
        splits: Sequence[str],
        files_of: Callable[[str], Sequence[Any]],
        dataset_of: Callable[[str, Sequence[Any]], tf.data.Dataset],
        *,
        shuffled: Callable[..., tf.data.Dataset] | None = None,
    ):
        """Create a seqio source of files that can be read one by one.

        Args:
          splits: names of the splits.
          files_of: function from a split to its files.
          dataset_of: function from a split and a list of files to the examples in these files.
          shuffled: function like `dataset_of` with another argument, `shuffle`, which determines
            the order; None if shuffling is not supported.
        """
        self._files_of, self._of_files, self._shuffled = files_of, dataset_of, shuffled
        self.language = ""
        super().__init__(splits, lambda split: dataset_of(split, files_of(split)))

    def files(self, split: str) -> tuple[str, ...]:
        """Return the names of a split's files, in order."""
        return tuple(str(file) for file in self._files_of(split))

    def fits_in_memory(self, split: str) -> bool:
        return text_source.fit_in_memory(self._files_of(split))

    def passes(self, split: str, *, seed: int) -> text_source.Passes | None:
        shuffled = self._shuffled
        if shuffled is None:
            return None
        files = self._files_of(split)
        return text_source.Passes(
            lambda epoch: shuffled(split, files, shuffle=text_source.Shuffle(seed, epoch)),
            size=text_source.sizes_of(files),
        )

    def get_dataset(
        self,
        split: str = "train",
        shuffle: bool = True,
        seed: int | None = None,
        shard_info: Any = None,
        **options: Any,
    ) -> tf.data.Dataset:
        """Return the examples of all files, or of one shard of the files."""
        if shard_info is None or shard_info.num_shards == 1:
            return super().get_dataset(split, shuffle, seed, **options)
        files = self._files_of(split)[shard_info.index :: shard_info.num_shards]
        if not files:
            raise ValueError(
                f"split {split} cannot be divided into {shard_info.num_shards} shards, because it "
                "has fewer files"
            )
        return self._of_files(split, files)


def text_documents(texts: Sequence[str]) -> tf.data.Dataset:
    """Return texts as an in-memory dataset of examples {"text"}."""
    encoded = tf.constant([text.encode() for text in texts], tf.string, shape=[len(texts)])
    return tf.data.Dataset.from_tensor_slices(encoded).map(lambda text: {"text": text})


def text_pairs(inputs: Sequence[str], targets: Sequence[str]) -> tf.data.Dataset:
    """Return pairs of texts as an in-memory dataset of examples {"inputs", "targets"}."""
    columns: Any = {
        name: tf.constant([text.encode() for text in texts], tf.string, shape=[len(texts)])
        for name, texts in (("inputs", inputs), ("targets", targets))
    }
    return tf.data.Dataset.from_tensor_slices(columns)


SUPERVISED_PREPROCESSORS = (
    seqio.preprocessors.tokenize,
    seqio.CacheDatasetPlaceholder(),
    seqio.preprocessors.append_eos_after_trim,
)
"""Preprocessors that tokenize the texts "inputs" and "targets"."""


def unsupervised_preprocessors(
    objective: Objective, *, seed: int
) -> list[Callable[..., tf.data.Dataset]]:
    """Return the preprocessors that turn texts into examples of an unsupervised objective.

    Args:
      objective: objective that defines the chunks and their corruption.
      seed: seed of the run.
    """
    chunk = partial(
        chunk_documents,
        length=objective.chunk_length,
        join=objective.join_documents,
        eos=objective.eos_of_documents,
    )
    end = [] if objective.eos_of_documents else [seqio.preprocessors.append_eos_after_trim]
    if objective.corruption is None:
        return [chunk, _tokens_as_targets, seqio.CacheDatasetPlaceholder(), *end]
    return [
        chunk,
        number,
        seqio.CacheDatasetPlaceholder(),
        count_epochs,
        partial(corrupt, function=objective.corruption, seed=seed),
        *end,
    ]


def _tokens_as_targets(dataset: tf.data.Dataset) -> tf.data.Dataset:
    return dataset.map(lambda chunk: {"targets": chunk["tokens"]})


def unsupervised_task(
    name: str,
    objective: Objective,
    arguments: TaskArguments,
    *,
    source: seqio.FunctionDataSource,
) -> seqio.Task:
    """Make a seqio.Task that applies an unsupervised objective to raw text.

    Args:
      name: name of the task, for messages of seqio.
      objective: objective, such as span corruption.
      arguments: arguments of the task function.
      source: seqio source of examples with "text".
    """
    both = features(arguments.vocabulary)
    return seqio.Task(
        name,
        source=source,
        preprocessors=unsupervised_preprocessors(objective, seed=arguments.seed),
        output_features=both if objective.corruption else {"targets": both["targets"]},
    )


PASSAGES = "augment_passages"
"""Field of a raw example with its retrieved passages."""
_SPLIT = "{split}"
_IDS = ("id", "idx")
_LOOKED_AT = 100


def augmented(
    task: seqio.Task, augment: Augment, *, vocabulary: Vocabulary, length: int, is_encoder: bool
) -> Any:
    """Return a seqio.Task that adds retrieved passages to its inputs."""
    form = labelled.task_form(task)
    if form is not None and form.head == "span":
        raise InputError(
            f"data.augment does not support task {task.name}, because its answers are spans of its "
            "inputs; unset data.augment.run"
        )
    room = _Room(vocabulary, length=length, is_encoder=is_encoder)
    made = task.replace(
        source=_Source(task, _Join(task, augment)),
        preprocessors=[partial(_compose, augment=augment, room=room), *task.preprocessors],
    )
    if names.is_marked(task):
        made = names.mark(made)
    return made if form is None else labelled.with_form(made, form)


class _Source(Source):
    def __init__(self, task: seqio.Task, join: "_Join"):
        self._inner, self._join = task.source, join
        one_to_one = isinstance(self._inner, Source) and self._inner.one_to_one
        # `get_dataset` is overridden below and calls the inner source.
        super().__init__(tuple(task.splits), task.source.get_dataset, one_to_one=one_to_one)

    def get_dataset(self, split: str = "train", *arguments: Any, **options: Any) -> tf.data.Dataset:
        return self._join.add(self._inner.get_dataset(split, *arguments, **options), split)

    def fits_in_memory(self, split: str) -> bool:
        return isinstance(self._inner, Source) and self._inner.fits_in_memory(split)

    def passes(self, split: str, *, seed: int) -> text_source.Passes | None:
        inner, join = self._inner, self._join
        found = inner.passes(split, seed=seed) if isinstance(inner, Source) else None
        if found is None:
            return None
        join.load(split)  # now, as a pass is built while tf.data traces a function
        of_epoch = found.of_epoch
        return dataclasses.replace(found, of_epoch=lambda epoch: join.add(of_epoch(epoch), split))


class _Join:
    """Retrieved passages for a task's examples, loaded separately for each split."""

    def __init__(self, task: Any, augment: Augment):
        self._task, self._augment = task, augment
        self._found: dict[str, dict[str, str]] = {}

    def load(self, split: str) -> dict[str, str]:
        """Return the retrieved passages of each example of a split, by the example's id."""
        if split not in self._found:
            self._found[split] = self._loaded(split)
        return self._found[split]

    def add(self, dataset: Any, split: str) -> Any:
        by_id, name = self.load(split), _id_field(dataset.element_spec, self._task.name)

        def joined(example: Mapping[str, Any]) -> dict[str, Any]:
            return {**example, PASSAGES: by_id.get(_as_id(example[name]), "").encode()}

        spec = {**dataset.element_spec, PASSAGES: tf.TensorSpec([], tf.string)}
        return map_numpy(dataset, joined, spec)

    def _loaded(self, split: str) -> dict[str, str]:
        augment = self._augment
        run = augment.run.replace(_SPLIT, split)
        ids = dict.fromkeys(self._ids(split))
        if _SPLIT not in augment.run and len(self._task.splits) > 1:
            first = [*itertools.islice(ids, _LOOKED_AT)]
            if first and first == [*map(str, range(len(first)))]:
                raise InputError(
                    f"data.augment.run {augment.run}: the example ids of task {self._task.name} "
                    "are row numbers, which are equal in all splits; write {split} into the path, "
                    "or set data.columns.id"
                )
        ranked = {
            ranking.query: [one.document for one in ranking.documents[: augment.k]]
            for ranking in read_run(run)
            if ranking.query in ids
        }
        absent = [one for one in ids if not ranked.get(one)]
        if absent and (augment.missing == "error" or len(absent) == len(ids)):
            raise InputError(
                f"run {run}: {len(absent)} of the {len(ids)} examples of the split {split} have no "
                f"passages in the run, such as example {absent[0]!r}; rank passages for the ids of "
                "the examples, or set data.augment.missing keep"
            )
        if absent:
            _logger.warning(
                "run %s: %d of the %d examples of the split %s have no passages in the run and "
                "stay unchanged",
                *(run, len(absent), len(ids), split),
            )
        texts = self._texts({name for names in ranked.values() for name in names}, run)
        return {query: " ".join(texts[name] for name in names) for query, names in ranked.items()}

    def _ids(self, split: str) -> Iterator[str]:
        dataset = self._task.source.get_dataset(split, shuffle=False)
        name = _id_field(dataset.element_spec, self._task.name)
        batches = _only(dataset, [name]).batch(1024)
        for batch in as_numpy(deterministic(batches)):
            yield from map(_as_id, batch[name].tolist())

    def _texts(self, names: set[str], run: str) -> dict[str, str]:
        files = [file.strip() for file in self._augment.passages.split(",")]
        found = {
            passage.id: " ".join(
                fill(self._augment.passage, {"title": passage.title, "text": passage.text}).split()
            )
            for file in files
            for passage in read_passages(file)
            if passage.id in names
        }
        if lost := names - found.keys():
            raise InputError(
                f"run {run}: {len(lost)} passages of the run are not in {', '.join(files)}, such "
                f"as {min(lost)!r}; data.augment.passages must have the passages of the run"
            )
        return found


def _id_field(spec: Any, task: str) -> str:
    """Return the name of the field with the example's id in raw examples."""
    inputs = spec.get("inputs") if isinstance(spec, Mapping) else None
    if inputs is None or inputs.dtype != tf.string or inputs.shape.rank != 0:
        raise InputError(
            f"data.augment: the inputs of the task {task} are not a single text; unset "
            "data.augment.run"
        )
    for name in _IDS:
        if name in spec and spec[name].shape.rank == 0:
            return name
    raise InputError(
        f"data.augment finds the passages of an example by its id, but the examples of task {task} "
        "have no id; use tasks.files with data.columns.id"
    )


def _only(dataset: Any, names: Sequence[str]) -> Any:
    @tf.autograph.experimental.do_not_convert
    def some(example: Mapping[str, Any]) -> dict[str, Any]:
        return {name: example[name] for name in names}

    return dataset.map(some)


def _as_id(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


class _Room:
    """Helper that truncates passages so that a row fits its maximum length."""

    def __init__(self, vocabulary: Vocabulary, *, length: int, is_encoder: bool):
        self._vocabulary = vocabulary
        self._tokens = encoder_tokens(vocabulary) if is_encoder else None
        self._length = length - (2 if is_encoder else 1)
        self._between = separators(vocabulary) if is_encoder else 0

    def counts(self, texts: Sequence[str]) -> list[int]:
        encoded = self._vocabulary.encode_batch(list(texts))
        if self._tokens is None:
            return [len(ids) for ids in encoded]
        return [len(without_special(ids, self._tokens)) for ids in encoded]

    def beside(self, others: Sequence[str]) -> int:
        used = [count + self._between for count in self.counts(others)] if others else [0]
        return self._length - max(used)

    def fitted(self, write: Callable[[str], str], passages: str, *, room: int) -> str:
        whole = write(passages)
        if not passages or self.counts([whole])[0] <= room:
            return whole
        ends = [place for place, sign in enumerate(passages) if sign == " "]
        fits, breaks = 0, len(ends) + 1  # numbers of words: 0 fit, and all of them do not fit
        while breaks - fits > 1:
            middle = (fits + breaks) // 2
            enough = self.counts([write(passages[: ends[middle - 1]])])[0] <= room
            fits, breaks = (middle, breaks) if enough else (fits, middle)
        return write(passages[: ends[fits - 1]] if fits else "")


def _compose(dataset: Any, *, augment: Augment, room: _Room) -> Any:
    spec = dict(dataset.element_spec)
    others = [name for name in ("second", "choices") if name in spec]

    def composed(example: Mapping[str, Any]) -> dict[str, Any]:
        inputs, passages = (example[name].decode() for name in ("inputs", PASSAGES))
        beside = [one for name in others for one in np.atleast_1d(example[name]).tolist()]
        left = room.beside([one.decode() for one in beside if one])

        def write(words: str) -> str:
            return fill(augment.template, {"inputs": inputs, "passages": words}).strip()

        return {**example, "inputs": room.fitted(write, passages, room=left).encode()}

    del spec[PASSAGES]
    return map_numpy(dataset, composed, spec)
