"""The `Data` config of a run, and the arguments that every task function gets.

A task is named "module:function" and imported late, so that reading a config never loads
TensorFlow:

    Data(task="tasks.glue:sst2", vocabulary="vocab/spiece.model", directory="glue")

`function` takes `TaskArguments` and returns a `seqio.Task`.

Hard negatives can be searched again with the model in training (ANCE).

    Data(..., refresh=Refresh(period=10_000, directory="work/retriever/refresh"))

The period is m. Rows of the steps [k m, (k + 1) m) have negatives from an index of the checkpoint
of step (k - lag) m: the passages nearest to their queries, without the positives. If that step is 0
or less, they have the negatives of the cache, usually from BM25. So the negatives of a step do not
depend on the speed of the search: a run that is killed, or has a slow search, gets the same ones.

With batches by length (`Bucketed`), the longest passage that is sampled for a row sets its length,
new negatives included. Rows that wait for a full batch when a new search takes effect are sorted
into buckets again.

Source: Xiong et al. 2021, "Approximate Nearest Neighbor Negative Contrastive Learning for Dense
Text Retrieval", section 4. There the newest available search is used.

Retrieval augmentation adds the first passages of a run to each input.

    Data(
        task="tasks.squad:closed_book",
        augment=Augment(run="runs/{split}.trec", passages="corpus.jsonl", k=3),
    )

turns the inputs "who wrote Emma" into

    question: who wrote Emma context: Emma Emma is a novel by Jane Austen. Jane Austen An author ...

The query id in the run is the example's "id", or else its "idx": an id of SQuAD, TriviaQA or RACE,
the row number in GLUE, SWAG and your own tables (from 0), or data.columns.id. Passages are "title
text", best first. Words are removed from their ends until the row fits data.inputs_length, so the
question is never truncated, wherever the template has it.

Source: Lewis et al. 2020, "Retrieval-Augmented Generation", section 2. The text has the form of
Izacard and Grave 2021, "Leveraging Passage Retrieval with Generative Models", section 3, with all
passages in one input.

Batches have one static shape, or a few that are chosen by the length of the rows.

    Data(..., inputs_length=8192, batch_size=4, batches=Bucketed({512: 64, 2048: 12, 8192: 4}))

A row of 300 tokens that is padded to 8192 costs as much as a full one. `Bucketed` puts it into a
batch of 64 rows of 512 tokens. Each shape is compiled as a separate program, so use only a few.

Examples come in the same order as with one shape. Each waits in the bucket for its length, and a
full bucket is the next batch. With two rows of 4 tokens and one row of 8 tokens per batch:

    lengths of the examples    3   7   4   2   8   1
    batches                    [7]  [3 4]  [8]  [2 1]

So the order of batches depends only on the order of examples. No example is dropped: examples that
wait when the data end go into batches of the next epoch. BGE-M3 is trained with batches by length
(Chen et al. 2024, "Efficient Batching"); in its code the last batch of a group has a different
shape.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
from jaxtyping import Int

from t5x_lite.core.errors import InputError
from t5x_lite.core.options import Count, Whole, check_bounds
from t5x_lite.data.columns import Columns
from t5x_lite.data.mixing import Mixing, split_rate
from t5x_lite.data.preprocessors import fill, places
from t5x_lite.data.vocabularies.loading import Vocabulary
from t5x_lite.layouts.base import Layout
from t5x_lite.layouts.groups import Groups
from t5x_lite.layouts.text import Seq2Seq


@dataclasses.dataclass(frozen=True, kw_only=True)
class Refresh:
    """Hard negatives that `t5x-lite refresh` searches during training.

    Attributes:
      period: steps between two searches; 0 disables them. Checkpoints must be saved at these steps.
      lag: periods between the checkpoint that searches and the steps that use its negatives; with 0
        training waits for each search.
      top: passages kept per query; data.layout.negatives of them are sampled.
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
                "data.refresh.period needs --data.refresh.directory, where `t5x-lite refresh` "
                "writes: WORKDIR/refresh as a rule"
            )

    def searched_by(self, number: int) -> int:
        """Return the step of the checkpoint that searches for a batch, or 0 for the cache.

        Args:
          number: index of the batch, from 0.
        """
        return max(0, (number // self.period - self.lag) * self.period)

    def identity(self) -> dict[str, Any]:
        """Return the settings that a saved data position depends on, as JSON."""
        return {"refresh": [self.period, self.lag, self.top]} if self.period else {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Augment:
    """Passages of a run that are added to each input.

    Attributes:
      run: a run in TREC or MS MARCO format, or as JSON lines (`data.formats.rankings`), with the
        example ids as queries; "{split}" in its path is train, validation or test. "" adds no
        passages.
      passages: the file with the passages that the run ranks (`data.formats.passages`); separate
        several files with commas.
      k: maximum passages per example.
      template: the text of the inputs; {inputs} is the task's text, {passages} all passages.
      passage: the text of one passage, with {title} and {text}.
      missing: "error" rejects examples that the run lacks; "keep" keeps them without passages, and
        logs their number.
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
                    f"data.augment.{name} {template!r} must have the place {{{absent[0]}}}"
                )

    def identity(self) -> dict[str, Any]:
        """Return the settings that a saved data position depends on, as JSON."""
        return {"augment": dataclasses.asdict(self)} if self.run else {}


@dataclasses.dataclass(frozen=True)
class Batches:
    """Rule by which rows are divided into batches: `Fixed()` or `Bucketed(...)`."""

    def buckets(self) -> tuple[tuple[int, int], ...]:
        """Return the static shapes (row length, rows), shortest first; () if there is only one."""
        return ()

    def identity(self) -> dict[str, Any]:
        """Return the settings that a saved data position depends on, as JSON."""
        return {}


@dataclasses.dataclass(frozen=True)
class Fixed(Batches):
    """All batches have data.batch_size rows of the same length."""


@dataclasses.dataclass(frozen=True, init=False)
class Bucketed(Batches):
    """Rows grouped by length; each group has its own row length and number of rows.

    The length of a row is the length of its longest text, with `Groups` of its longest passage. A
    row goes to the shortest group that holds it. The longest length and its rows must equal
    data.inputs_length (data.targets_length with `Groups`, where all queries have
    data.inputs_length) and data.batch_size: texts are truncated to that length, and metrics other
    than the loss are computed in batches of that shape.

    Attributes:
      shapes: (row length in tokens, rows of the global batch), shortest first.
    """

    shapes: tuple[tuple[int, int], ...]

    def __init__(self, shapes: Mapping[int, int] | Iterable[tuple[int, int]]):
        """Take a mapping {row length in tokens: rows of the global batch}, or pairs of them.

        Raises:
          InputError: if shapes is empty, a value is below 1, or the lengths do not increase.
        """
        pairs = shapes.items() if isinstance(shapes, Mapping) else shapes
        object.__setattr__(self, "shapes", tuple((length, rows) for length, rows in pairs))
        if not self.shapes:
            raise InputError("data.batches.shapes needs a length and its rows, such as 512 64")
        for length, rows in self.shapes:
            if type(length) is not int or type(rows) is not int or length < 1 or rows < 1:
                raise InputError(
                    "data.batches.shapes: a length and its rows must be whole numbers of at least "
                    f"1, got {length} and {rows}"
                )
        lengths = [length for length, _ in self.shapes]
        if lengths != sorted(set(lengths)):
            raise InputError(
                "data.batches.shapes: each length must be above the one before it, got "
                f"{', '.join(map(str, lengths))}"
            )

    def buckets(self) -> tuple[tuple[int, int], ...]:
        """Return the static shapes, as `Batches.buckets` does."""
        return self.shapes

    def identity(self) -> dict[str, Any]:
        """Return the settings that a saved data position depends on, as `Batches.identity` does."""
        return {"batches": [list(shape) for shape in self.shapes]}


@dataclasses.dataclass(frozen=True, init=False)
class Scheduled(Bucketed):
    """Batches by length as in `Bucketed`, in an order computed per epoch; only for caches.

    All examples of a batch have one length group and one cache, so each set of pairs has its own
    in-batch negatives. The order of batches is a function of (seed, epoch) and needs no queue.
    Examples that do not fill a batch are skipped in that epoch (`data.scheduled`). The longest text
    of a row of `Groups` sets its length, counting all passages that it may sample.

    Attributes:
      small: minimum examples of a cache in a length group; a smaller group joins the next longer.
      drop: minimum examples of a group after joining; a smaller group, or one that does not fill a
        batch, is never used.
    """

    small: Whole
    drop: Whole

    def __init__(
        self,
        shapes: Mapping[int, int] | Iterable[tuple[int, int]],
        small: int = 0,
        drop: int = 0,
    ):
        """Take a mapping {row length in tokens: rows of the global batch}, or pairs of them.

        Raises:
          InputError: as in `Bucketed`; or if a longer length has more rows than a shorter one, or a
            number is negative.
        """
        super().__init__(shapes)
        object.__setattr__(self, "small", small)
        object.__setattr__(self, "drop", drop)
        rows = [rows for _, rows in self.shapes]
        if rows != sorted(rows, reverse=True):
            raise InputError(
                "data.batches.shapes: a longer row length may not have more rows per batch, got "
                f"{', '.join(map(str, rows))}"
            )
        check_bounds(self, prefix="data.batches.")

    def identity(self) -> dict[str, Any]:
        """See `Batches.identity`."""
        return {**super().identity(), "schedule": [self.small, self.drop]}


def bucket_of(
    lengths: Int[np.ndarray, " n"], buckets: tuple[tuple[int, int], ...]
) -> Int[np.ndarray, " n"]:
    """Return the bucket of each row: the first that holds its length, else the last.

    Args:
      lengths: tokens of each row.
      buckets: static shapes, as `Batches.buckets` returns them.
    """
    edges = np.array([length for length, _ in buckets])
    return np.minimum(np.searchsorted(edges, lengths), len(edges) - 1)


TRUNCATIONS = ("first_documents", "first_tokens")
"""Fields of `Data` that limit training to the first examples."""


_NO_IN_BATCH = "no_in_batch_neg"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """The data of one run.

    Attributes:
      task: "module:function" of a function TaskArguments -> seqio.Task, or "module:name" of a
        `mixtures.Mixture` of tasks, or "seqio:module:name" of a task or a mixture that the module
        adds to seqio's registry. With a cache it is only needed for the task's metrics, and may be
        "".
      vocabulary: a SentencePiece .model file, a tokenizer.json, WordPiece's vocab.txt, DeBERTa's
        spm.model, XLM-R's sentencepiece.bpe.model, RoBERTa's vocab.json next to merges.txt, or a
        directory that holds one of them, sentencepiece.model or bytes.json; "bytes" and "bytes-hf"
        are byte vocabularies (ByT5).
      directory: directory of the task's files; "" for a task that needs none. For unlabelled text
        also a file, a pattern, hf://NAME or tfds://NAME (`data.tasks.text_files`).
      languages: languages to read from multilingual text such as mC4, or "all"; several form a
        mixture at the rates of `mixing`. () is text without languages.
      cache: a directory that `t5x-lite cache` wrote, read instead of the task's files and without
        TensorFlow. Several are mixed at the rates of "DIRECTORY=RATE", or without rates by
        `mixing`. "" runs the task on the fly.
      mixing: mixing of the tasks of a mixture, or of several caches that are given without rates.
      columns: for your own files (tasks/files.py), the columns of inputs and targets; for
        unlabelled text columns.inputs is the text, "{text}" by default.
      template: the text of the inputs, instead of the task's text, with columns in braces:
        "premise: {premise} hypothesis: {hypothesis}"; "" keeps the task's text. `prefix` comes
        before it.
      prefix: beginning of the inputs, such as "mnli", instead of the task's prefix; "" removes it,
        and None keeps it.
      augment: passages of a run that are added to each input (`Augment`).
      layout: form of the rows (`layouts`): Seq2Seq() for an encoder-decoder; LM(),
        PrefixLM() or ConcatLM() for a decoder-only model; for an encoder Encoder(), Groups() to
        compare queries with passages, Labelled() to classify or score texts, Choices() for multiple
        choice, Tokens() to label each token, and Windows() to find spans.
      batches: the static shapes of batches: Fixed() is one, Bucketed(...) are a few, by the length
        of the rows.
      refresh: hard negatives that are searched during training (`Refresh`); for Groups() and
        Ranked() from one cache.
      batch_size: rows of the global batch; with Bucketed, rows of the batches of the longest rows.
      inputs_length: tokens of an encoder row, EOS included; of groups, tokens of a query. Rows of a
        decoder-only model have inputs_length plus targets_length tokens, rows of LM()
        targets_length.
      targets_length: tokens of a decoder row, EOS included; of groups, tokens of a passage.
      pack: if True, several short examples share a row.
      shuffle: if True, training examples are shuffled.
      shuffle_buffer: examples that the shuffle of a stream holds at a time; data in memory and
        caches are permuted completely.
      first_documents: number of documents to train on, the first ones, which are repeated; None
        uses all. A document is a raw example: a page of C4, a pair of sentences. Held-out splits do
        not change.
      first_tokens: as first_documents, but limited by the tokens of the text: the first examples
        with no more than so many tokens in total, before corruption.
      extra_ids: sentinels above the pieces of a SentencePiece vocabulary, or above bytes.
      final_sentinel: if True, the targets of span corruption, and of i.i.d. noise with a sentinel
        for each span, always end in a sentinel, as in figure 2 of the T5 paper. The released code
        writes no sentinel if the text ends in noise. Labelled tasks ignore it.
      adapter_of: the child of MultiTask for the rows of each cache of data.cache, as "mnli=0",
        "rte=1": the name of a cache's directory, or the directory. Rows then have the feature
        `adapter_ids`.
      own_negatives: caches of data.cache that compare a query only with passages of the same row,
        such as class or cluster data, named as in `adapter_of`. A directory with a name ending
        in no_in_batch_neg, as in FlagEmbedding's files, is included without being named. Rows of
        Groups() then have the feature `own_negatives`.
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
                f"got {self.layout!r}"
            )
        if not self.task and not self.cache:
            raise InputError(
                "there is nothing to read: give --data.task module:function, or "
                "--data.cache DIRECTORY"
            )
        check_bounds(self, prefix="data.")
        if self.first_documents is not None and self.first_tokens is not None:
            raise InputError("data.first_documents and data.first_tokens are both set: unset one")
        if self.languages and self.cache:
            raise InputError(
                "data.languages chooses among files, but each language has a separate cache: "
                "name the caches in data.cache"
            )
        if len({*self.languages}) < len(self.languages):
            raise InputError(f"data.languages names a language twice: {', '.join(self.languages)}")
        if self.pack and not self.layout.packs:
            raise InputError(
                f"data.layout {self.layout.name} has one example a row: set data.pack to False"
            )
        _check_batches(self)
        _check_refresh(self)
        if self.adapter_of and (self.pack or not self.cache):
            raise InputError(
                "data.adapter_of is for caches with one example per row: give --data.cache, and "
                "--data.pack False"
            )
        _ = adapter_numbers(self), own_negative_caches(self)


def adapter_numbers(data: Data) -> dict[str, int]:
    """Return the child of MultiTask for each cache of `adapter_of`.

    Raises:
      InputError: if an entry is not NAME=NUMBER, or a cache has two numbers.
    """
    found: dict[str, int] = {}
    for line in data.adapter_of:
        name, equals, number = line.rpartition("=")
        if not (name and equals and number.isascii() and number.isdigit()):
            raise InputError(f"data.adapter_of: {line!r} must be CACHE=NUMBER, such as mnli=0")
        if found.setdefault(name, int(number)) != int(number):
            raise InputError(f"data.adapter_of gives {name} two numbers")
    return found


def own_negative_caches(data: Data) -> list[str]:
    """Return the directories of `own_negatives`, and directories that are included by their name.

    Raises:
      InputError: if rows have no negatives, or a name is not in data.cache.
    """
    if isinstance(data.layout, Groups) and data.cache:
        texts = [data.cache] if isinstance(data.cache, str) else data.cache
        directories = [split_rate(text)[0] for text in texts]
    elif data.own_negatives:
        raise InputError(
            "data.own_negatives needs caches of the layout Groups(): read --data.cache, or set "
            "--objective.candidates group for all rows"
        )
    else:
        return []
    unknown = {*data.own_negatives}.difference(*(names_of(path) for path in directories))
    if unknown:
        raise InputError(
            f"data.own_negatives names {min(unknown)}, and data.cache has {', '.join(directories)}"
        )
    return [
        path.rstrip("/")
        for path in directories
        if {*names_of(path)} & {*data.own_negatives} or path.rstrip("/").endswith(_NO_IN_BATCH)
    ]


def names_of(directory: str) -> tuple[str, str]:
    """Return the names of a cache in options: its directory, and the last part of its path."""
    return directory, directory.rstrip("/").rpartition("/")[2]


def _check_batches(data: Data) -> None:
    """Raise InputError unless the batches fit the layout, the lengths and the batch size."""
    batches, layout = data.batches, data.layout
    if not isinstance(batches, Batches):
        raise InputError(
            "data.batches must be Fixed() or Bucketed(...) of t5x_lite.data.config, got "
            f"{batches!r}"
        )
    if not batches.buckets():
        return
    if not layout.grouped:
        raise InputError(
            f"data.batches Bucketed does not group rows of data.layout {layout.name}: use it with "
            "Encoder(), Labelled(), Choices(), Tokens(), Windows() or Groups(), or use Fixed()"
        )
    if data.pack:
        raise InputError(
            "data.batches Bucketed has one example a row: set data.pack to False, or use Fixed()"
        )
    longest, rows = batches.buckets()[-1]
    length = getattr(data, layout.grouped)
    if (length, data.batch_size) != (longest, rows):
        option = layout.grouped.replace("_", "-")
        raise InputError(
            f"data.{layout.grouped} {length} and data.batch_size {data.batch_size} differ from "
            f"the longest of data.batches, {longest} and {rows}: set --data.{option} {longest} "
            f"--data.batch-size {rows}, or change data.batches"
        )


def _check_refresh(data: Data) -> None:
    """Raise InputError for new negatives that the layout, the batches or the features rule out."""
    if not data.refresh.period:
        return
    if "negatives" not in data.layout.features:
        raise InputError(
            f"data.refresh needs rows with negatives, and data.layout is {data.layout.name}: use "
            "Groups() or Ranked()"
        )
    if isinstance(data.batches, Scheduled):
        raise InputError(
            "data.refresh changes the lengths of rows, and data.batches Scheduled works out an "
            "order from them for a whole epoch; use Bucketed() or Fixed(), or set "
            "data.refresh.period to 0"
        )
    identity = data.layout.identity()
    if identity.get("teacher") or identity.get("known_positives"):
        raise InputError(
            "data.refresh has no scores and no ids of the passages that it finds: unset "
            "data.layout.teacher and data.layout.known_positives"
        )


def shapes_of(data: Data) -> tuple[Data, ...]:
    """Return one config per static shape, as if it were the only one, short rows first."""
    if not data.batches.buckets():
        return (data,)
    return tuple(
        dataclasses.replace(data, batches=Fixed(), batch_size=rows, **{data.layout.grouped: length})
        for length, rows in data.batches.buckets()
    )


def truncation_of(data: Data) -> dict[str, int]:
    """Return the fields that limit training to the first examples; {} if all are read."""
    values = {name: getattr(data, name) for name in TRUNCATIONS}
    return {name: value for name, value in values.items() if value is not None}


def rows_named(data: Data, shape: Data) -> str:
    """Return the name of a shape's rows for messages.

    Args:
      data: the config.
      shape: one of its `shapes_of`.
    """
    if not data.batches.buckets():
        return f"data.batch_size {shape.batch_size}"
    length = getattr(shape, shape.layout.grouped)
    return f"data.batches of {shape.batch_size} rows of {length} tokens"


def wording_of(data: Data) -> dict[str, str]:
    """Return the "template" and "prefix" of a config, each if it is set."""
    template = {"template": data.template} if data.template else {}
    return template if data.prefix is None else {**template, "prefix": data.prefix}


def words_of_inputs(data: Data) -> dict[str, str]:
    """Return the settings of the input text that a cache keeps: `wording_of` and data.augment."""
    augment = data.augment
    if not augment.run:
        return wording_of(data)
    own = {name: str(getattr(augment, name)) for name in ("run", "k", "template", "passage")}
    return wording_of(data) | {f"augment.{name}": value for name, value in own.items()}


def lengths_of(data: Data) -> dict[str, int]:
    """Return the maximum tokens of each feature of the layout, or of each text if it is joined."""
    return data.layout.lengths(inputs=data.inputs_length, targets=data.targets_length)


def text_lengths(data: Data) -> dict[str, int]:
    """Return the maximum tokens of a "query" and a "document"; {} if texts do not differ."""
    return data.layout.text_lengths(inputs=data.inputs_length, targets=data.targets_length)


def trimmed_lengths(data: Data) -> dict[str, int]:
    """Return the lengths to which seqio trims features; features that a task lacks are ignored."""
    lengths = {"inputs": data.inputs_length, "targets": data.targets_length, **lengths_of(data)}
    return {name: size for name, size in lengths.items() if name not in data.layout.joined}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskArguments:
    """Arguments of a task function, which returns a seqio.Task.

    Attributes:
      vocabulary: the vocabulary of inputs and targets.
      directory: the user's data.directory, "" if not given.
      inputs_length: tokens of an encoder row, EOS included.
      targets_length: tokens of a decoder row, EOS included.
      seed: seed of all randomness within single examples, such as the choice of corrupted spans.
      columns: columns of the user's own files.
      languages: the language that is read; () for text without languages.
      layout: layout of the examples; a task may have one form as text to text, and another for a
        layout with labels.
      final_sentinel: the user's data.final_sentinel.
      template: the user's data.template, "" if not given.
      prefix: the user's data.prefix, None if not given.
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
