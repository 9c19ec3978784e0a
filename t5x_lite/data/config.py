"""The `Data` config of a run, and `TaskArguments`, the arguments of task functions.

A task is named "module:function". It is imported only when it is used, so that reading a config
never loads TensorFlow:

    Data(task="tasks.glue:sst2", vocabulary="vocab/spiece.model", directory="glue")

`function` takes `TaskArguments` and returns a `seqio.Task`.

`Refresh` searches new hard negatives with the model during training (ANCE).

    Data(..., refresh=Refresh(period=10_000, directory="work/retriever/refresh"))

With the period m, rows of the steps [k m, (k + 1) m) have negatives from the checkpoint of step (k
- lag) m: the passages that are nearest to the query and not positives. If (k - lag) m is 0 or less,
rows have the negatives of the cache, usually from BM25. The negatives of a step therefore do not
depend on the speed of the search: a run with a slow search, or a resumed run, has the same
negatives.

With batches by length (`Bucketed`), the length of a row is the length of its longest sampled
passage, including new negatives. When new negatives take effect, rows that wait for a full batch
are assigned to buckets again.

Source: Xiong et al. 2021, "Approximate Nearest Neighbor Negative Contrastive Learning for Dense
Text Retrieval", section 4. The paper uses the newest available search.

`Augment` adds the best passages of a retrieval run to each input.

    Data(
        task="tasks.squad:closed_book",
        augment=Augment(run="runs/{split}.trec", passages="corpus.jsonl", k=3),
    )

turns the inputs "who wrote Emma" into

    question: who wrote Emma context: Emma Emma is a novel by Jane Austen. Jane Austen An author ...

The query id in the run is the example's "id", or "idx" if "id" is missing: an id of SQuAD, TriviaQA
or RACE, the row number in GLUE, SWAG and your own tables (from 0), or data.columns.id. Passages are
"title text", best first. Passages are truncated until the row fits data.inputs_length; the question
is never truncated.

Source: Lewis et al. 2020, "Retrieval-Augmented Generation", section 2. The text has the form of
Izacard and Grave 2021, "Leveraging Passage Retrieval with Generative Models", section 3, with all
passages in one input.

Batches have one static shape, or one shape for each range of row lengths.

    Data(..., inputs_length=8192, batch_size=4, batches=Bucketed({512: 64, 2048: 12, 8192: 4}))

A row of 300 tokens that is padded to 8192 tokens costs as much as a row of 8192 tokens. `Bucketed`
puts this row into a batch of 64 rows of 512 tokens. Each shape is compiled as a separate program,
so use only a few.

Examples are read in the same order as with one shape. Each example waits in the bucket for its
length, and a full bucket is the next batch. With two rows of 4 tokens and one row of 8 tokens per
batch:

    lengths of the examples    3   7   4   2   8   1
    batches                    [7]  [3 4]  [8]  [2 1]

The order of batches therefore depends only on the order of examples. No example is dropped:
examples that wait at the end of an epoch go into batches of the next epoch. BGE-M3 is trained with
batches by length (Chen et al. 2024, "Efficient Batching"); in its code the last batch of a group
has a different shape.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
from jaxtyping import Int

from t5x_lite.core.errors import InputError
from t5x_lite.core.options import Count, Whole, check_bounds
from t5x_lite.data.mixing import Mixing, split_rate
from t5x_lite.data.preprocessors import Columns, fill, places
from t5x_lite.data.vocabularies.loading import Vocabulary
from t5x_lite.layouts.base import Layout
from t5x_lite.layouts.groups import Groups
from t5x_lite.layouts.text import Seq2Seq


@dataclasses.dataclass(frozen=True, kw_only=True)
class Refresh:
    """Configuration of the hard negatives that `t5x-lite refresh` searches during training.

    Attributes:
      period: number of steps between two searches; 0 disables searches. Checkpoints must be saved
        at these steps.
      lag: number of periods between a checkpoint and the first use of the negatives found with it.
        With 0, training waits for each search.
      top: number of passages kept per query, from which data.layout.negatives are sampled.
      directory: directory of the search results, usually WORKDIR/refresh.
    """

    period: Whole = 0
    lag: Whole = 1
    top: Count = 200
    directory: str = ""

    def __post_init__(self):
        check_bounds(self, prefix="data.refresh.")
        if self.period and not self.directory:
            raise InputError(
                "data.refresh.period is set, but data.refresh.directory is not; give the "
                "directory that `t5x-lite refresh` writes, usually --data.refresh.directory "
                "WORKDIR/refresh"
            )

    def searched_by(self, number: int) -> int:
        """Return the step of the checkpoint used to find a batch's hard negatives; 0 for none.

        Args:
          number: index of the batch, from 0.
        """
        return max(0, (number // self.period - self.lag) * self.period)

    def identity(self) -> dict[str, Any]:
        return {"refresh": [self.period, self.lag, self.top]} if self.period else {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Augment:
    """Configuration of retrieval augmentation: retrieved passages are added to each input.

    Attributes:
      run: path of the retrieval run, a ranking file in TREC, MS MARCO or JSON lines format
        (`data.formats.rankings`), with example ids as query ids. "{split}" in the path is replaced
        by train, validation or test. "" adds no passages.
      passages: path of the file with the passages that the run ranks (`data.formats.passages`);
        several paths are separated by commas.
      k: maximum number of passages per example.
      template: text of the inputs; {inputs} is replaced by the task's text, {passages} by all
        passages.
      passage: text of one passage; {title} and {text} are replaced.
      missing: action for examples without passages in the run: "error" raises InputError; "keep"
        keeps the examples without passages, and logs their number.
    """

    run: str = ""
    passages: str = ""
    k: Count = 3
    template: str = "question: {inputs} context: {passages}"
    passage: str = "{title} {text}"
    missing: Literal["error", "keep"] = "error"

    def __post_init__(self):
        check_bounds(self, prefix="data.augment.")
        if bool(self.run) != bool(self.passages):
            raise InputError(
                "data.augment.run and data.augment.passages belong together; set both, or neither"
            )
        for name, needed, known in (
            ("template", ("inputs", "passages"), ("inputs", "passages")),
            ("passage", ("text",), ("title", "text")),
        ):
            template = getattr(self, name)
            fill(template, dict.fromkeys(known, ""))
            if absent := [place for place in needed if place not in places(template)]:
                raise InputError(
                    f"data.augment.{name} must contain {{{absent[0]}}}, but is {template!r}"
                )

    def identity(self) -> dict[str, Any]:
        return {"augment": dataclasses.asdict(self)} if self.run else {}


@dataclasses.dataclass(frozen=True)
class Batches:
    """Configuration for dividing rows into batches, such as `Fixed()` or `Bucketed(...)`."""

    def buckets(self) -> tuple[tuple[int, int], ...]:
        """Return the static shapes (row length, rows), shortest first; () for a single shape."""
        return ()

    def identity(self) -> dict[str, Any]:
        return {}


@dataclasses.dataclass(frozen=True)
class Fixed(Batches):
    """Batches of one static shape: data.batch_size rows of the same length."""


@dataclasses.dataclass(frozen=True, init=False)
class Bucketed(Batches):
    """Batches of several static shapes: rows are grouped by length.

    The length of a row is the length of its longest text; with the layout Groups, of its longest
    passage. A row belongs to the first shape that is long enough. The last shape must have
    data.batch_size rows and the length data.inputs_length (with Groups, data.targets_length),
    because longer texts are truncated and metrics are computed in batches of this shape.

    Attributes:
      shapes: pairs of the row length in tokens and the number of rows of the global batch, shortest
        length first.
    """

    shapes: tuple[tuple[int, int], ...]

    def __init__(self, shapes: Mapping[int, int] | Iterable[tuple[int, int]]):
        """Create the config from {row length: number of rows}, or from pairs (row length, rows).

        Raises:
          InputError: if shapes is empty, a value is below 1, or row lengths do not increase.
        """
        pairs = shapes.items() if isinstance(shapes, Mapping) else shapes
        object.__setattr__(self, "shapes", tuple((length, rows) for length, rows in pairs))
        if not self.shapes:
            raise InputError(
                "data.batches.shapes is empty; give row lengths and numbers of rows, such as 512 64"
            )
        for length, rows in self.shapes:
            if type(length) is not int or type(rows) is not int or length < 1 or rows < 1:
                raise InputError(
                    "data.batches.shapes: a row length and its number of rows must be integers "
                    f"of at least 1, but are {length} and {rows}"
                )
        lengths = [length for length, _ in self.shapes]
        if lengths != sorted(set(lengths)):
            raise InputError(
                "data.batches.shapes: row lengths must increase, but are "
                f"{', '.join(map(str, lengths))}"
            )

    def buckets(self) -> tuple[tuple[int, int], ...]:
        return self.shapes

    def identity(self) -> dict[str, Any]:
        return {"batches": [list(shape) for shape in self.shapes]}


@dataclasses.dataclass(frozen=True, init=False)
class Scheduled(Bucketed):
    """Batches of several static shapes with a separate order for each epoch; only for caches.

    Rows are grouped by length as in `Bucketed`. All examples of a batch come from the same cache
    and have similar lengths, so in-batch negatives come from one cache. The order of batches is
    a function of (seed, epoch). Examples that do not fill a batch are skipped in that epoch. With
    the layout Groups, the length of a row is the length of the longest passage that may be sampled
    for the row.

    Attributes:
      small: minimum number of examples of a cache per shape; if there are fewer, these examples are
        moved to the next longer shape.
      drop: minimum number of examples per cache and shape, after moving examples; if there are
        fewer, these examples are never used.
    """

    small: Whole
    drop: Whole

    def __init__(
        self,
        shapes: Mapping[int, int] | Iterable[tuple[int, int]],
        small: int = 0,
        drop: int = 0,
    ):
        """Create the config from {row length: number of rows}, or from pairs (row length, rows).

        Raises:
          InputError: if shapes are invalid, a longer shape has more rows than a shorter shape, or
            `small` or `drop` is negative.
        """
        super().__init__(shapes)
        object.__setattr__(self, "small", small)
        object.__setattr__(self, "drop", drop)
        rows = [rows for _, rows in self.shapes]
        if rows != sorted(rows, reverse=True):
            raise InputError(
                "data.batches.shapes: a longer shape may not have more rows than a shorter "
                f"shape, but the numbers of rows are {', '.join(map(str, rows))}"
            )
        check_bounds(self, prefix="data.batches.")

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "schedule": [self.small, self.drop]}


def bucket_of(
    lengths: Int[np.ndarray, " n"], buckets: tuple[tuple[int, int], ...]
) -> Int[np.ndarray, " n"]:
    """Return the index of each row's shape: the first shape that is long enough, or the last.

    Args:
      lengths: number of tokens of each row.
      buckets: static shapes, the result of `Batches.buckets`.
    """
    edges = np.array([length for length, _ in buckets])
    return np.minimum(np.searchsorted(edges, lengths), len(edges) - 1)


TRUNCATIONS = ("first_documents", "first_tokens")
"""Fields of `Data` that limit training to the first examples."""


_NO_IN_BATCH = "no_in_batch_neg"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """Configuration of the data of one run.

    Attributes:
      task: name of a task or mixture: "module:function" of a function that maps TaskArguments to a
        seqio.Task, "module:name" of a `mixtures.Mixture`, or "seqio:module:name" of a task or
        mixture in seqio's registry, registered by the module. With a cache, the task is only needed
        for its metrics, and may be "".
      vocabulary: path of a vocabulary: a SentencePiece .model file, a tokenizer.json, WordPiece's
        vocab.txt, DeBERTa's spm.model, XLM-R's sentencepiece.bpe.model, RoBERTa's vocab.json next
        to merges.txt, or a directory that contains one of these files, sentencepiece.model or
        bytes.json. "bytes" and "bytes-hf" are byte vocabularies (ByT5).
      directory: directory of the task's files; "" for a task without files. For unlabelled text
        also a file, a glob pattern, hf://NAME or tfds://NAME (`data.tasks.text_files`).
      languages: languages to read from multilingual text such as mC4, or "all"; several languages
        are mixed at the rates of `mixing`. () for text that is not divided into languages.
      cache: directory that `t5x-lite cache` wrote, which is read instead of the task's files,
        without TensorFlow. Several caches are mixed at their rates, written as "DIRECTORY=RATE", or
        by `mixing` if no rates are given. "" tokenizes the task during training.
      mixing: rates of the tasks of a mixture, or of several caches without rates.
      columns: columns of the inputs and targets in your own files (tasks/files.py); for unlabelled
        text, columns.inputs is the text, "{text}" by default.
      template: text of the inputs with column names in braces, such as "premise: {premise}
        hypothesis: {hypothesis}", instead of the task's text; "" keeps the task's text. `prefix` is
        added before the text.
      prefix: beginning of the inputs, such as "mnli", instead of the task's prefix; "" removes the
        task's prefix, and None keeps it.
      augment: passages of a retrieval run that are added to each input (`Augment`).
      layout: form of the rows (`layouts`): Seq2Seq() for an encoder-decoder; LM(),
        PrefixLM() or ConcatLM() for a decoder-only model; for an encoder Encoder(), Groups() to
        compare queries with passages, Labelled() to classify or score texts, Choices() for multiple
        choice, Tokens() to label each token, and Windows() to find spans.
      batches: the static shapes of batches: Fixed() for one shape, Bucketed(...) or Scheduled(...)
        for several shapes, chosen by the length of the rows.
      refresh: search of new hard negatives during training (`Refresh`), for Groups() and Ranked()
        with one cache.
      batch_size: number of rows of the global batch; with Bucketed, rows of a batch of the longest
        shape.
      inputs_length: number of tokens of an encoder row, including EOS; with Groups(), of a query.
        Rows of a decoder-only model have inputs_length plus targets_length tokens; rows of LM()
        have targets_length tokens.
      targets_length: number of tokens of a decoder row, including EOS; with Groups(), of a passage.
      pack: True to pack several short examples into one row.
      shuffle: True to shuffle the training examples.
      shuffle_buffer: number of examples in the shuffle buffer of a streamed task; caches and data
        in memory are permuted completely instead.
      first_documents: number of documents to train on, from the beginning of the training split;
        None uses all documents. A document is a raw example, such as a page of C4 or a pair of
        sentences. Held-out splits do not change.
      first_tokens: number of tokens to train on, from the beginning of the training split, counted
        before corruption; None uses all tokens. Only complete examples are used.
      extra_ids: number of sentinel ids after the ids of a SentencePiece or byte vocabulary.
      final_sentinel: True to end the targets of span corruption and `iid_replace_spans` always in a
        sentinel, as in figure 2 of the T5 paper. The released T5 code adds no final sentinel if the
        text ends in noise. Labelled tasks ignore this field.
      adapter_of: index of the child adapter of MultiTask for each cache of data.cache, as
        "CACHE=INDEX", such as "mnli=0"; CACHE is the cache's directory or its last path component.
        Rows then have the feature `adapter_ids`.
      own_negatives: caches of data.cache, named as in `adapter_of`, that do not use in-batch
        negatives: a query is compared only with passages in the same row, for example in
        classification or clustering data. Directories with names ending in no_in_batch_neg, as in
        FlagEmbedding's files, are always included. Rows of Groups() then have the feature
        `own_negatives`.
    """

    task: str = ""
    vocabulary: str
    directory: str = ""
    languages: tuple[str, ...] = ()
    cache: str | tuple[str, ...] = ""
    mixing: Mixing = dataclasses.field(default_factory=Mixing)
    columns: Columns = dataclasses.field(default_factory=Columns)
    template: str = ""
    prefix: str | None = None
    augment: Augment = dataclasses.field(default_factory=Augment)
    layout: Layout = dataclasses.field(default_factory=Seq2Seq)
    batches: Batches = dataclasses.field(default_factory=Fixed)
    refresh: Refresh = dataclasses.field(default_factory=Refresh)
    batch_size: Count = 128
    inputs_length: Count = 512
    targets_length: Count = 114
    pack: bool = True
    shuffle: bool = True
    shuffle_buffer: Count = 1000
    first_documents: Count | None = None
    first_tokens: Count | None = None
    extra_ids: Whole = 100
    final_sentinel: bool = False
    adapter_of: tuple[str, ...] = ()
    own_negatives: tuple[str, ...] = ()

    def __post_init__(self):
        if not isinstance(self.layout, Layout):
            raise InputError(
                "data.layout must be a layout of t5x_lite.layouts, such as layouts.Encoder(), "
                f"but is {self.layout!r}"
            )
        if not self.task and not self.cache:
            raise InputError(
                "neither data.task nor data.cache is set; give --data.task module:function, or "
                "--data.cache DIRECTORY"
            )
        check_bounds(self, prefix="data.")
        if self.first_documents is not None and self.first_tokens is not None:
            raise InputError("data.first_documents and data.first_tokens are both set; unset one")
        if self.languages and self.cache:
            raise InputError(
                "data.languages and data.cache are both set, but each language has a separate "
                "cache; unset data.languages and name the caches in data.cache"
            )
        if len({*self.languages}) < len(self.languages):
            raise InputError(f"data.languages names a language twice: {', '.join(self.languages)}")
        if self.pack and not self.layout.packs:
            raise InputError(
                f"data.layout {self.layout.name} has one example per row, but data.pack is True; "
                "set data.pack to False"
            )
        _check_batches(self)
        _check_refresh(self)
        if self.adapter_of and (self.pack or not self.cache):
            raise InputError(
                "data.adapter_of needs caches with one example per row; give --data.cache and "
                "--data.pack False"
            )
        _ = adapter_numbers(self), own_negative_caches(self)


def adapter_numbers(data: Data) -> dict[str, int]:
    """Return the adapter index that data.adapter_of gives to each cache, by cache name.

    Raises:
      InputError: if an entry of data.adapter_of is not NAME=NUMBER, or a cache has two numbers.
    """
    found: dict[str, int] = {}
    for line in data.adapter_of:
        name, equals, number = line.rpartition("=")
        if not (name and equals and number.isascii() and number.isdigit()):
            raise InputError(
                "data.adapter_of: each entry must be CACHE=NUMBER, such as mnli=0, but one is "
                f"{line!r}"
            )
        if found.setdefault(name, int(number)) != int(number):
            raise InputError(
                f"data.adapter_of gives two different numbers to the cache {name}; keep only one"
            )
    return found


def own_negative_caches(data: Data) -> list[str]:
    """Return the directories of the caches that do not use in-batch negatives.

    Raises:
      InputError: if the layout is not Groups(), or data.cache lacks a named cache.
    """
    if isinstance(data.layout, Groups) and data.cache:
        texts = [data.cache] if isinstance(data.cache, str) else data.cache
        directories = [split_rate(text)[0] for text in texts]
    elif data.own_negatives:
        raise InputError(
            "data.own_negatives requires data.cache and data.layout Groups(); set both, or "
            "disable in-batch negatives in all rows with --objective.candidates group"
        )
    else:
        return []
    unknown = {*data.own_negatives}.difference(*(names_of(path) for path in directories))
    if unknown:
        raise InputError(
            f"data.own_negatives names {min(unknown)}, but data.cache has only "
            f"{', '.join(directories)}"
        )
    return [
        path.rstrip("/")
        for path in directories
        if {*names_of(path)} & {*data.own_negatives} or path.rstrip("/").endswith(_NO_IN_BATCH)
    ]


def names_of(directory: str) -> tuple[str, str]:
    """Return the names by which options may refer to a cache: its path and the path's last part."""
    return directory, directory.rstrip("/").rpartition("/")[2]


def _check_batches(data: Data) -> None:
    """Raise InputError if data.batches does not fit the layout, the lengths and the batch size."""
    batches, layout = data.batches, data.layout
    if not isinstance(batches, Batches):
        raise InputError(
            "data.batches must be Fixed() or Bucketed(...) of t5x_lite.data.config, but is "
            f"{batches!r}"
        )
    if not batches.buckets():
        return
    if not layout.grouped:
        raise InputError(
            f"data.batches Bucketed does not support data.layout {layout.name}; use it with "
            "Encoder(), Labelled(), Choices(), Tokens(), Windows() or Groups(), or use Fixed()"
        )
    if data.pack:
        raise InputError(
            "data.batches Bucketed has one example per row, but data.pack is True; set "
            "data.pack to False, or use Fixed()"
        )
    longest, rows = batches.buckets()[-1]
    length = getattr(data, layout.grouped)
    if (length, data.batch_size) != (longest, rows):
        option = layout.grouped.replace("_", "-")
        raise InputError(
            f"data.{layout.grouped} is {length} and data.batch_size is {data.batch_size}, but the "
            f"longest shape in data.batches has {rows} rows of {longest} tokens; set "
            f"--data.{option} {longest} --data.batch-size {rows}, or change data.batches"
        )


def _check_refresh(data: Data) -> None:
    """Raise InputError if data.refresh is set but the layout or the batches do not support it."""
    if not data.refresh.period:
        return
    if "negatives" not in data.layout.features:
        raise InputError(
            f"data.refresh needs rows with negatives, but data.layout is {data.layout.name}; use "
            "Groups() or Ranked()"
        )
    if isinstance(data.batches, Scheduled):
        raise InputError(
            "data.refresh changes the lengths of rows during an epoch, which data.batches "
            "Scheduled does not support; use Bucketed() or Fixed(), or set data.refresh.period "
            "to 0"
        )
    identity = data.layout.identity()
    if identity.get("teacher") or identity.get("known_positives"):
        raise InputError(
            "data.refresh provides neither teacher scores nor passage ids; unset "
            "data.layout.teacher and data.layout.known_positives"
        )


def shapes_of(data: Data) -> tuple[Data, ...]:
    """Return one config per static batch shape, shortest shape first."""
    if not data.batches.buckets():
        return (data,)
    return tuple(
        dataclasses.replace(data, batches=Fixed(), batch_size=rows, **{data.layout.grouped: length})
        for length, rows in data.batches.buckets()
    )


def truncation_of(data: Data) -> dict[str, int]:
    """Return the fields of a config that limit the number of training examples, by name."""
    values = {name: getattr(data, name) for name in TRUNCATIONS}
    return {name: value for name, value in values.items() if value is not None}


def rows_named(data: Data, shape: Data) -> str:
    """Describe the rows of one static batch shape, for error messages.

    Args:
      data: the config.
      shape: an element of `shapes_of(data)`.
    """
    if not data.batches.buckets():
        return f"data.batch_size {shape.batch_size}"
    length = getattr(shape, shape.layout.grouped)
    return f"data.batches of {shape.batch_size} rows of {length} tokens"


def wording_of(data: Data) -> dict[str, str]:
    """Return the config's fields "template" and "prefix" by name, if they are set."""
    template = {"template": data.template} if data.template else {}
    return template if data.prefix is None else {**template, "prefix": data.prefix}


def words_of_inputs(data: Data) -> dict[str, str]:
    """Return the options that change the input text: template, prefix and augmentation, by name."""
    augment = data.augment
    if not augment.run:
        return wording_of(data)
    own = {name: str(getattr(augment, name)) for name in ("run", "k", "template", "passage")}
    return wording_of(data) | {f"augment.{name}": value for name, value in own.items()}


def lengths_of(data: Data) -> dict[str, int]:
    """Return the maximum number of tokens of each feature of the layout, by the feature's name.

    If a row has several texts of a feature, the maximum applies to each text.
    """
    return data.layout.lengths(inputs=data.inputs_length, targets=data.targets_length)


def text_lengths(data: Data) -> dict[str, int]:
    """Return the maximum tokens of a "query" and a "document"; {} for layouts without retrieval."""
    return data.layout.text_lengths(inputs=data.inputs_length, targets=data.targets_length)


def trimmed_lengths(data: Data) -> dict[str, int]:
    """Return the number of tokens to which seqio trims each feature, by the feature's name."""
    lengths = {"inputs": data.inputs_length, "targets": data.targets_length, **lengths_of(data)}
    return {name: size for name, size in lengths.items() if name not in data.layout.joined}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskArguments:
    """Arguments of a task function, which returns a seqio.Task.

    Attributes:
      vocabulary: the vocabulary of inputs and targets.
      directory: value of data.directory; "" if not given.
      inputs_length: number of tokens of an encoder row, including EOS.
      targets_length: number of tokens of a decoder row, including EOS.
      seed: seed of all randomness within single examples, such as the choice of corrupted spans.
      columns: configuration of the columns of custom files.
      languages: value of data.languages; () for text that is not divided into languages.
      layout: layout of the examples. A task may return other examples for a layout with labels than
        for text-to-text.
      final_sentinel: value of data.final_sentinel.
      template: value of data.template; "" if not given.
      prefix: value of data.prefix; None if not given.
    """

    vocabulary: Vocabulary
    directory: str
    inputs_length: int
    targets_length: int
    seed: int = 0
    columns: Columns = dataclasses.field(default_factory=Columns)
    layout: Layout = dataclasses.field(default_factory=Seq2Seq)
    final_sentinel: bool = False
    template: str = ""
    prefix: str | None = None
    languages: tuple[str, ...] = ()
