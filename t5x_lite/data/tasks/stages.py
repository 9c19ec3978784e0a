"""Parts of tasks: tf.data stages between raw text and seqio's "inputs" and "targets".

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
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from t5x_lite.core.errors import InputError
from t5x_lite.core.object_store import BucketError
from t5x_lite.data.config import TaskArguments
from t5x_lite.data.elements import BEGIN, BEGIN_BUCKET, END, seqio, tf
from t5x_lite.data.seqio_vocabularies import seqio_vocabulary
from t5x_lite.data.tasks import shuffling
from t5x_lite.data.tasks.unsupervised import Corruption, Objective
from t5x_lite.data.vocabularies.loading import Vocabulary
from t5x_lite.layouts.base import KEY

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

    All Python code runs in the graph by this function.

    Args:
      dataset: examples as flat dicts.
      function: pure function from an example to an example; a resumed iterator calls it again. An
        InputError that the function raises reaches the user unchanged.
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
    """Return one ordered pass over a split's examples, as they are stored in a cache."""
    raw = task.source.get_dataset(split, shuffle=False)
    return task.preprocess_precache(raw, seed=seed)


def in_blocks(
    dataset: tf.data.Dataset, names: Sequence[str], size: int, *, scalars: Sequence[str] = ()
) -> tf.data.Dataset:
    """Batch examples into blocks, with one flat array per feature and the ends of the examples.

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
    """Tokenize documents and split each concatenation of 128 documents into chunks.

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
    """Add the feature "index", int64: the position of the example in its pass."""
    return dataset.enumerate().map(lambda index, example: {**example, "index": index})


def count_epochs(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Add the feature "epoch", int64 from 0; an index that does not increase starts a new epoch."""

    @tf.autograph.experimental.do_not_convert
    def step(state, example):
        previous, epoch = state
        epoch += tf.cast(example["index"] <= previous, tf.int64)
        return (example["index"], epoch), {**example, "epoch": epoch}

    return dataset.scan((tf.constant(tf.int64.max, tf.int64), tf.constant(-1, tf.int64)), step)


def corrupt(dataset: tf.data.Dataset, function: Corruption, *, seed: int) -> tf.data.Dataset:
    """Replace "tokens" by corrupted "inputs" and "targets", at random by seed, epoch and index.

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
    """Add `layouts.base.KEY`, a feature (seed, epoch, index) for random choices in the layout."""

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
    """Trim inputs and append the tokens `ending`, as `append_eos_after_trim` does for EOS.

    Args:
      dataset: examples with "inputs", tokens without EOS.
      sequence_length: maximum tokens by feature, from seqio, including the ending.
      ending: tokens of `Layout.ending`.
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
    """Return sequences padded with 0 to one length, [n, longest], and their lengths, int32 [n].

    There is at least one column, because tf.data's unbatch reads freed memory without columns.
    """
    sizes = np.array([len(sequence) for sequence in sequences], np.int32)
    dtype = sequences[0].dtype if sequences else np.int32
    rows = np.zeros((len(sequences), int(sizes.max(initial=1))), dtype)
    rows[np.arange(rows.shape[1]) < sizes[:, None]] = np.concatenate(sequences)
    return rows, sizes


# Parts of a seqio.Task.


def features(vocabulary: Vocabulary) -> dict[str, Any]:
    """Return the output features of a text-to-text task: "inputs" and "targets", ended by EOS."""
    feature = seqio.Feature(vocabulary=seqio_vocabulary(vocabulary), add_eos=True, dtype=tf.int32)
    return {"inputs": feature, "targets": feature}


def ended_by(task: Any, ending: Sequence[int]) -> Any:
    """Return a seqio.Task with inputs that end in the given tokens instead of EOS.

    Args:
      task: text-to-text task.
      ending: tokens of `Layout.ending`.
    """
    inputs = dataclasses.replace(task.output_features["inputs"], add_eos=False)
    return task.replace(
        output_features={**task.output_features, "inputs": inputs},
        preprocessors=[*task.preprocessors, partial(append_ending, ending=tuple(ending))],
    )


class Source(seqio.FunctionDataSource):
    """Seqio source that reads each split by a function, in a fixed order.

    Attributes:
      one_to_one: True if a task makes one example of each raw example, so that the number of
        examples is known.
    """

    def __init__(
        self,
        splits: Sequence[str],
        dataset_of: Callable[[str], tf.data.Dataset],
        *,
        one_to_one: bool = False,
        made_of: Callable[[str], tf.data.Dataset] | None = None,
    ):
        """Create a source.

        Args:
          splits: names of the splits.
          dataset_of: function from a split to its raw examples.
          one_to_one: True if a task makes one example of each raw example.
          made_of: function from a split to the dataset that the raw examples are made from; None
            for `dataset_of`.
        """
        self.one_to_one = one_to_one
        self._made_of = made_of or dataset_of

        def dataset_fn(split, shuffle_files, seed=None):
            return dataset_of(split)

        super().__init__(dataset_fn, splits=splits)

    def fits_in_memory(self, split: str) -> bool:
        """Return True if training may hold the examples of a split in memory."""
        return shuffling.can_be_permuted(self._made_of(split))

    def passes(self, split: str, *, seed: int) -> shuffling.Passes | None:
        """Return passes over a streamed split, each in a new order.

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
    """Create a seqio source that reads each split by a function; see `Source`."""
    return Source(splits, dataset_of, one_to_one=one_to_one, made_of=made_of)


class FileSource(Source):
    """Seqio source of files that can be read one by one, in a fixed order.

    If several workers write a cache, the files of the source are the shards of the cache
    (cache/making_beam.py). `list_shards` does not list the files: training processes would divide
    them, and a process with few files would repeat its examples more often. Training processes
    divide the examples instead.

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
        """Create a source from functions of the split.

        Args:
          splits: names of the splits.
          files_of: function from a split to its files, or to objects that represent them.
          dataset_of: function from a split and some of its files to their examples.
          shuffled: `dataset_of` with the argument `shuffle`, a `shuffling.Shuffle` that determines
            the order; None if shuffling is not supported. It is called while tf.data traces a
            function.
        """
        self._files_of, self._of_files, self._shuffled = files_of, dataset_of, shuffled
        self.language = ""
        super().__init__(splits, lambda split: dataset_of(split, files_of(split)))

    def files(self, split: str) -> tuple[str, ...]:
        """Return the names of a split's files, in order."""
        return tuple(str(file) for file in self._files_of(split))

    def fits_in_memory(self, split: str) -> bool:
        return shuffling.fit_in_memory(self._files_of(split))

    def passes(self, split: str, *, seed: int) -> shuffling.Passes | None:
        shuffled = self._shuffled
        if shuffled is None:
            return None
        files = self._files_of(split)
        return shuffling.Passes(
            lambda epoch: shuffled(split, files, shuffle=shuffling.Shuffle(seed, epoch)),
            size=shuffling.sizes_of(files),
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
                f"split {split} has fewer files than {shard_info.num_shards}, the number of shards"
            )
        return self._of_files(split, files)


def text_documents(texts: Sequence[str]) -> tf.data.Dataset:
    """Return a dataset of examples {"text"} in memory."""
    encoded = tf.constant([text.encode() for text in texts], tf.string, shape=[len(texts)])
    return tf.data.Dataset.from_tensor_slices(encoded).map(lambda text: {"text": text})


def text_pairs(inputs: Sequence[str], targets: Sequence[str]) -> tf.data.Dataset:
    """Return a dataset of text examples {"inputs", "targets"} in memory."""
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
    """Return all preprocessors of a seqio.Task, from "text" to the objective's examples.

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
    """Make a seqio.Task of an unsupervised objective's examples from raw text.

    Args:
      name: name of the task, for messages of seqio.
      objective: objective of `unsupervised` for these arguments.
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
