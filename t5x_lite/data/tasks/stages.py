"""What tasks are made of: tf.data stages between raw text and seqio's "inputs" and "targets".

The words, as in seqio: a source yields raw examples, a preprocessor is a function from dataset to
dataset, and `seqio.CacheDatasetPlaceholder` divides the preprocessors in those whose output an
offline cache may hold and those that run anew in every epoch. Unsupervised text goes this way:

    text_lines -> chunk_documents -> number -> CacheDatasetPlaceholder -> count_epochs
        -> corrupt -> append_eos_after_trim

`unsupervised_task` is all of it; how text is cut and corrupted is said by an `Objective`.

Every iterator over these stages can be saved: sources are files or tensors, and NumPy code enters
through `map_numpy` only, as a pure function of the example. What an example gets at random depends
on its own (seed, epoch, index): `number` attaches the index before seqio repeats the data, and
`count_epochs` the epoch after it.
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
"""Documents that are concatenated before they are split into chunks, as in T5."""

_CORRUPTED_AT_A_TIME = 64


def map_numpy(
    dataset: tf.data.Dataset,
    function: Callable[[dict[str, np.ndarray]], Example],
    signature: Mapping[str, tf.TensorSpec],
    *,
    parallel: bool = True,
) -> tf.data.Dataset:
    """Maps a pure NumPy function over examples: the one way for Python code into the graph.

    Args:
      dataset: examples as flat dicts.
      function: example -> example, a pure function of its argument (else a saved iterator would not
        go on as it was). An InputError that it raises reaches the user as it is.
      signature: names, shapes and dtypes of what the function returns.
      parallel: whether it may be called for several examples at a time.

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
    """A split's examples at the CacheDatasetPlaceholder, once and in order."""
    raw = task.source.get_dataset(split, shuffle=False)
    return task.preprocess_precache(raw, seed=seed)


def in_blocks(
    dataset: tf.data.Dataset, names: Sequence[str], size: int, *, scalars: Sequence[str] = ()
) -> tf.data.Dataset:
    """Examples some at a time, as one array of each feature and where each example ends.

    Args:
      dataset: examples as flat dicts.
      names: features that are sequences.
      size: examples of a block.
      scalars: features that are numbers.
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


# Preprocessors. seqio passes `output_features` and `sequence_length` to those that name them.


def chunk_documents(
    dataset: tf.data.Dataset,
    output_features: Mapping[str, Any],
    *,
    length: int,
    join: bool = True,
    eos: bool = False,
) -> tf.data.Dataset:
    """Tokenises documents, and splits them into chunks, 128 of them as if they were one.

    Nothing is put between documents by default, as in T5. A last chunk is shorter than the others;
    one of a single token, which no objective can use, is dropped. T5 first cuts documents of more
    than 65536 tokens to a random part of that length: here they stay whole.

    Args:
      dataset: examples with "text".
      output_features: from seqio; the vocabulary is that of "targets".
      length: tokens of a chunk.
      join: whether a chunk may have tokens of several documents.
      eos: whether each document ends in EOS.

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
    """Adds "index", int64: the example's position in its pass."""
    return dataset.enumerate().map(lambda index, example: {**example, "index": index})


def count_epochs(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Adds "epoch", int64 from 0: an index that is not above the one before it begins a new one."""

    @tf.autograph.experimental.do_not_convert
    def step(state, example):
        previous, epoch = state
        epoch += tf.cast(example["index"] <= previous, tf.int64)
        return (example["index"], epoch), {**example, "epoch": epoch}

    return dataset.scan((tf.constant(tf.int64.max, tf.int64), tf.constant(-1, tf.int64)), step)


def corrupt(dataset: tf.data.Dataset, function: Corruption, *, seed: int) -> tf.data.Dataset:
    """Makes inputs and targets of "tokens", with the example's own (seed, epoch, index).

    Args:
      dataset: examples with "tokens", "epoch" and "index", and perhaps other scalars.
      function: one of corruption/recipes.py, its options bound.
      seed: the run's seed.

    Returns:
      Examples {"inputs", "targets"}: int32 [_] without EOS; other features stay.
    """
    elements: Any = dataset.element_spec
    others = {k: v for k, v in elements.items() if k not in ("tokens", "epoch", "index")}

    # A call of NumPy code costs more than a corruption: hence by blocks.
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
    """Adds `layouts.base.KEY`, of the seed and of an example's "epoch" and "index", for draws."""

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
    """Trims inputs and ends them in words, as `append_eos_after_trim` does in EOS.

    Args:
      dataset: examples with "inputs", tokens without EOS.
      sequence_length: from seqio; tokens of the inputs at most, the ending included.
      ending: `Layout.ending`.
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
    """Sequences as [n, longest] of their dtype, padded with 0, and their lengths, int32 [n].

    There is a column at least: tf.data's unbatch reads freed memory where there is none.
    """
    sizes = np.array([len(sequence) for sequence in sequences], np.int32)
    dtype = sequences[0].dtype if sequences else np.int32
    rows = np.zeros((len(sequences), int(sizes.max(initial=1))), dtype)
    rows[np.arange(rows.shape[1]) < sizes[:, None]] = np.concatenate(sequences)
    return rows, sizes


# Parts of a seqio.Task.


def features(vocabulary: Vocabulary) -> dict[str, Any]:
    """The output features of a text-to-text task: "inputs" and "targets", each ended by EOS."""
    feature = seqio.Feature(vocabulary=seqio_vocabulary(vocabulary), add_eos=True, dtype=tf.int32)
    return {"inputs": feature, "targets": feature}


def ended_by(task: Any, ending: Sequence[int]) -> Any:
    """The same seqio.Task, whose inputs end in these tokens in place of EOS.

    Args:
      task: of text to text.
      ending: `Layout.ending`.
    """
    inputs = dataclasses.replace(task.output_features["inputs"], add_eos=False)
    return task.replace(
        output_features={**task.output_features, "inputs": inputs},
        preprocessors=[*task.preprocessors, partial(append_ending, ending=tuple(ending))],
    )


class Source(seqio.FunctionDataSource):
    """A source from a function of the split, in an order that is always the same.

    Attributes:
      one_to_one: whether a task makes one example of each, so that their number is known.
    """

    def __init__(
        self,
        splits: Sequence[str],
        dataset_of: Callable[[str], tf.data.Dataset],
        *,
        one_to_one: bool = False,
        made_of: Callable[[str], tf.data.Dataset] | None = None,
    ):
        """A source.

        Args:
          splits: their names.
          dataset_of: gives the examples of one.
          one_to_one: whether a task makes one example of each.
          made_of: what those examples are made of, where that is not themselves.
        """
        self.one_to_one = one_to_one
        self._made_of = made_of or dataset_of

        def dataset_fn(split, shuffle_files, seed=None):
            return dataset_of(split)

        super().__init__(dataset_fn, splits=splits)

    def fits_in_memory(self, split: str) -> bool:
        """Whether training may hold the examples of a split, and permute them as a whole."""
        return shuffling.can_be_permuted(self._made_of(split))

    def passes(self, split: str, *, seed: int) -> shuffling.Passes | None:
        """A split's examples in an order of their own at each pass, of what is streamed.

        Args:
          split: its name.
          seed: of the orders.

        Returns:
          None where the examples can be read from the front alone.
        """
        del split, seed


def source(
    splits: Sequence[str],
    dataset_of: Callable[[str], tf.data.Dataset],
    *,
    one_to_one: bool = False,
    made_of: Callable[[str], tf.data.Dataset] | None = None,
) -> Source:
    """A `Source`: a seqio source from a function of the split."""
    return Source(splits, dataset_of, one_to_one=one_to_one, made_of=made_of)


class FileSource(Source):
    """A source of files that can be read one by one, in an order that is always the same.

    Attributes:
      language: of multilingual text, the one that is read.

    A cache that several workers write has the files as its shards (cache/making_beam.py).
    `list_shards` does not: processes that train would divide the files among them, and repeat those
    of the process with the fewest more often than others. So they divide the examples.
    """

    def __init__(
        self,
        splits: Sequence[str],
        files_of: Callable[[str], Sequence[Any]],
        dataset_of: Callable[[str, Sequence[Any]], tf.data.Dataset],
        *,
        shuffled: Callable[..., tf.data.Dataset] | None = None,
    ):
        """A source from two functions of the split.

        Args:
          splits: their names.
          files_of: gives a split's files, or whatever stands for them.
          dataset_of: gives the examples of some of them.
          shuffled: as `dataset_of` with `shuffle`, a `shuffling.Shuffle` that says the order; None
            where there is no such order. It is called while tf.data traces a function.
        """
        self._files_of, self._of_files, self._shuffled = files_of, dataset_of, shuffled
        self.language = ""
        super().__init__(splits, lambda split: dataset_of(split, files_of(split)))

    def files(self, split: str) -> tuple[str, ...]:
        """The names of a split's files, in order."""
        return tuple(str(file) for file in self._files_of(split))

    def fits_in_memory(self, split: str) -> bool:
        """See `Source.fits_in_memory`."""
        return shuffling.fit_in_memory(self._files_of(split))

    def passes(self, split: str, *, seed: int) -> shuffling.Passes | None:
        """See `Source.passes`: the parts of the files in an order of their own."""
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
        """The examples of all files, or of those of one shard: each file of so many."""
        if shard_info is None or shard_info.num_shards == 1:
            return super().get_dataset(split, shuffle, seed, **options)
        files = self._files_of(split)[shard_info.index :: shard_info.num_shards]
        if not files:
            raise ValueError(f"split {split} has no {shard_info.num_shards} files to divide")
        return self._of_files(split, files)


def text_documents(texts: Sequence[str]) -> tf.data.Dataset:
    """Examples {"text"}, held in memory."""
    encoded = tf.constant([text.encode() for text in texts], tf.string, shape=[len(texts)])
    return tf.data.Dataset.from_tensor_slices(encoded).map(lambda text: {"text": text})


def text_pairs(inputs: Sequence[str], targets: Sequence[str]) -> tf.data.Dataset:
    """Examples {"inputs", "targets"} of text, held in memory."""
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
"""From text under "inputs" and "targets" to tokens."""


def unsupervised_preprocessors(
    objective: Objective, *, seed: int
) -> list[Callable[..., tf.data.Dataset]]:
    """From "text" to what an objective makes of it: the whole list for a seqio.Task.

    Args:
      objective: how text is cut, and what is made of each piece.
      seed: the run's seed.
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
    """A task that makes an objective's examples of raw text.

    Args:
      name: the task's, for messages of seqio.
      objective: one of unsupervised.py, for these arguments.
      arguments: of the task.
      source: examples with "text".
    """
    both = features(arguments.vocabulary)
    return seqio.Task(
        name,
        source=source,
        preprocessors=unsupervised_preprocessors(objective, seed=arguments.seed),
        output_features=both if objective.corruption else {"targets": both["targets"]},
    )
