"""What a run reads: the `Data` config and its parts.

What a run reads: the `Data` config, and the arguments that every task function gets.

A task is named "module:function" and imported late, so that reading a config never loads
TensorFlow:

    Data(task="tasks.glue:sst2", vocabulary="vocab/spiece.model", directory="glue")

`function` takes `TaskArguments` and returns a `seqio.Task`.

When hard negatives are looked for again, with the model that is being trained (ANCE).

    Data(..., refresh=Refresh(period=10_000, directory="work/retriever/refresh"))

Rows of the steps [k m, (k + 1) m), m the period, have negatives of the index of the checkpoint of
step (k - lag) m: the passages nearest to their queries, without the answers. Where that is 0 or
less they have those that the cache holds, of BM25 as a rule. So which negatives a step has does not
depend on how fast the search is: a run that is killed, or whose search is slow, has the same ones.

With batches by length (`shapes.Bucketed`) a row goes by the longest of the passages that are drawn
for it, new negatives included. Rows that wait for a full batch when a search takes effect are
sorted into buckets again.

Source: Xiong et al. 2021, "Approximate Nearest Neighbor Negative Contrastive Learning for Dense
Text Retrieval", section 4; there negatives are as new as the search just is.

Retrieval augmentation: the first passages of a run stand behind each input.

    Data(
        task="tasks.squad:closed_book",
        augment=Augment(run="runs/{split}.trec", passages="corpus.jsonl", k=3),
    )

turns the inputs "who wrote Emma" into

    question: who wrote Emma context: Emma Emma is a novel by Jane Austen. Jane Austen An author ...

A query of the run is the example's "id", or else its "idx": an id of SQuAD, TriviaQA or RACE, the
number of a row of GLUE, of SWAG and of your own tables (from 0), or data.columns.id. Passages are
"title text", best first. They lose words at their end until the whole row fits into
data.inputs_length, so that the question is never cut, wherever the template has it.

Source: Lewis et al. 2020, "Retrieval-Augmented Generation", section 2; the form of the text is that
of Izacard and Grave 2021, "Leveraging Passage Retrieval with Generative Models", section 3, with
all passages in one input.

Static shapes of batches: one, or a few by the length of the rows.

    Data(..., inputs_length=8192, batch_size=4, batches=Bucketed({512: 64, 2048: 12, 8192: 4}))

A row of 300 tokens that is padded to 8192 costs as much as a full one. With `Bucketed` it goes to a
batch of 64 rows of 512 tokens. Each shape is a compiled program of its own, so that there should be
few.

Examples come in the order that they have with one shape. Each waits in the bucket of its length,
and a bucket that is full is the next batch. With two rows of 4 and one of 8 tokens a batch:

    lengths of the examples    3   7   4   2   8   1
    batches                    [7]  [3 4]  [8]  [2 1]

So the order of batches follows from the order of examples alone. No example is dropped: those that
wait when the data end go into batches of the next epoch. BGE-M3 is trained with batches by length
(Chen et al. 2024, "Efficient Batching"); in its code the last batch of a group has a shape of its
own.
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
    """Negatives that `t5x-lite refresh` looks for while training goes on.

    Attributes:
      period: steps between two searches; 0 has none. Checkpoints must be saved at these steps.
      lag: so many periods are between the checkpoint that searches and the steps that use what it
        finds; with 0 training waits for each search.
      top: passages of a query that are kept; data.layout.negatives of them are drawn.
      directory: where the searches stand, WORKDIR/refresh as a rule.
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
        """The step of the checkpoint that searches for a batch; 0 is the cache's own negatives.

        Args:
          number: of the batch, from 0.
        """
        return max(0, (number // self.period - self.lag) * self.period)

    def identity(self) -> dict[str, Any]:
        """What must be equal for a saved position in the data to fit, as JSON."""
        return {"refresh": [self.period, self.lag, self.top]} if self.period else {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Augment:
    """Passages of a run behind each input.

    Attributes:
      run: a run of TREC's form, of MS MARCO's, or of JSON lines (`data.formats.rankings`), whose
        queries are the ids of the examples; "{split}" in its path is train, validation or test. ""
        adds no passages.
      passages: the file with the passages that the run ranks (`data.formats.passages`); several
        with commas between.
      k: passages of an example at most.
      template: the text of the inputs; {inputs} is the task's own, {passages} all passages.
      passage: the text of one passage, with {title} and {text}.
      missing: "error" refuses examples that the run lacks; "keep" shows them without passages, and
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
        """The settings that a saved position in the data depends on, as JSON."""
        return {"augment": dataclasses.asdict(self)} if self.run else {}


@dataclasses.dataclass(frozen=True)
class Batches:
    """How rows are divided into batches: `Fixed()` or `Bucketed(...)`."""

    def buckets(self) -> tuple[tuple[int, int], ...]:
        """The static shapes, (tokens of a row, rows), shortest first; () where there is one."""
        return ()

    def identity(self) -> dict[str, Any]:
        """What must be equal for a saved position in the data to fit, as JSON."""
        return {}


@dataclasses.dataclass(frozen=True)
class Fixed(Batches):
    """All batches have data.batch_size rows of the same length."""


@dataclasses.dataclass(frozen=True, init=False)
class Bucketed(Batches):
    """Rows are grouped by their length; each group has a length and a number of rows of its own.

    A row's length is that of its longest text, of `Groups` the longest passage. It goes to the
    shortest length that holds it. The longest length and its rows must be data.inputs_length
    (data.targets_length with `Groups`, whose queries all have data.inputs_length) and
    data.batch_size: texts are cut to it, and what is measured besides the loss has that shape.

    Attributes:
      shapes: (tokens of a row, rows of the global batch), shortest first.
    """

    shapes: tuple[tuple[int, int], ...]

    def __init__(self, shapes: Mapping[int, int] | Iterable[tuple[int, int]]):
        """Takes {tokens of a row: rows of the global batch}, or pairs of them.

        Raises:
          InputError: there is none, one is below 1, or the lengths do not grow.
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
        """See `Batches.buckets`."""
        return self.shapes

    def identity(self) -> dict[str, Any]:
        """See `Batches.identity`."""
        return {"batches": [list(shape) for shape in self.shapes]}


@dataclasses.dataclass(frozen=True, init=False)
class Scheduled(Bucketed):
    """As `Bucketed`, in an order that is worked out for each epoch, of caches alone.

    A batch has examples of one length and of one cache, so that each set of pairs has its own
    in-batch negatives. The order of batches is a function of (seed, epoch); it needs no queue, and
    what does not fill a batch is not seen in that epoch (`data.scheduled`). A row of `Groups`
    goes by the longest of its query and of all passages that it may draw.

    Attributes:
      small: where fewer examples of a cache have a length, they go with the next longer ones.
      drop: where fewer are left, they are never seen.
    """

    small: Whole
    drop: Whole

    def __init__(
        self,
        shapes: Mapping[int, int] | Iterable[tuple[int, int]],
        small: int = 0,
        drop: int = 0,
    ):
        """Takes {tokens of a row: rows of the global batch}, or pairs of them.

        Raises:
          InputError: as `Bucketed`; or long rows are more than short ones, or a number is negative.
        """
        super().__init__(shapes)
        object.__setattr__(self, "small", small)
        object.__setattr__(self, "drop", drop)
        rows = [rows for _, rows in self.shapes]
        if rows != sorted(rows, reverse=True):
            raise InputError(
                "data.batches.shapes: of longer rows there may not be more in a batch, got "
                f"{', '.join(map(str, rows))}"
            )
        check_bounds(self, prefix="data.batches.")

    def identity(self) -> dict[str, Any]:
        """See `Batches.identity`."""
        return {**super().identity(), "schedule": [self.small, self.drop]}


def bucket_of(
    lengths: Int[np.ndarray, " n"], buckets: tuple[tuple[int, int], ...]
) -> Int[np.ndarray, " n"]:
    """The bucket of each row: the first whose length holds it, else the last.

    Args:
      lengths: tokens of each row.
      buckets: see `Batches.buckets`.
    """
    edges = np.array([length for length, _ in buckets])
    return np.minimum(np.searchsorted(edges, lengths), len(edges) - 1)


TRUNCATIONS = ("first_documents", "first_tokens")
"""Fields of `Data` that leave the first of the training data."""


_NO_IN_BATCH = "no_in_batch_neg"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """The data of one run.

    Attributes:
      task: "module:function" of a function TaskArguments -> seqio.Task, or "module:name" of a
        `mixtures.Mixture` of tasks, or "seqio:module:name" of a task or a mixture that the module
        adds to seqio's registry. With a cache it serves the task's own metrics alone, and may be
        "".
      vocabulary: a SentencePiece .model file, a tokenizer.json, WordPiece's vocab.txt, DeBERTa's
        spm.model, XLM-R's sentencepiece.bpe.model, RoBERTa's vocab.json beside merges.txt, or a
        directory that holds one of them, sentencepiece.model or bytes.json; "bytes" and "bytes-hf"
        are byte vocabularies (ByT5).
      directory: directory of the task's files; "" for a task that needs none. Of unlabelled text
        also a file, a pattern, hf://NAME or tfds://NAME (`data.tasks.text_files`).
      languages: of multilingual text, such as mC4, the languages to read, or "all"; several are a
        mixture, of which `mixing` makes the rates. () is text without languages.
      cache: a directory that `t5x-lite cache` wrote, to be read in place of the task's files, and
        without TensorFlow; several as "DIRECTORY=RATE" are mixed, and without rates as `mixing`
        says. "" runs the task on the fly.
      mixing: how the tasks of a mixture are mixed, or several caches that are given without rates.
      columns: for your own files (tasks/files.py), the columns of inputs and targets; of unlabelled
        text columns.inputs is the text, "{text}" if it is not given.
      template: the text of the inputs in place of the task's own, with columns in braces:
        "premise: {premise} hypothesis: {hypothesis}"; "" is the task's own. `prefix` comes before
        it.
      prefix: beginning of the inputs in place of the task's own, "mnli"; "" is nothing, and
        None the task's own.
      augment: passages of a run behind each input (`data.augment`).
      layout: how examples become rows (`layouts`): Seq2Seq() of an encoder-decoder; LM(),
        PrefixLM() or ConcatLM() of a decoder alone; Encoder() of an encoder alone, Groups() of one
        that compares queries with passages, Labelled() of one with a head that answers, Choices(),
        Tokens() and Windows() of one whose head chooses, labels each token or finds spans.
      batches: the static shapes of batches (`data.config`): Fixed() is one, Bucketed(...) are a
        few, by the length of the rows.
      refresh: hard negatives that are looked for while training goes on (`data.refresh`); of
        Groups() and Ranked() from one cache.
      batch_size: rows of the global batch; with Bucketed, of that of the longest rows.
      inputs_length: tokens of an encoder row, EOS included; of groups, tokens of a query. Rows of a
        decoder alone have inputs_length plus targets_length tokens, those of LM() targets_length.
      targets_length: tokens of a decoder row, EOS included; of groups, tokens of a passage.
      pack: whether several short examples share a row.
      shuffle: whether training examples are shuffled.
      shuffle_buffer: examples that the shuffle of a stream holds at a time; data in memory and
        caches are permuted as a whole.
      first_documents: documents that are trained on, the first of all, which are repeated; None is
        all. A document is a raw example: a page of C4, a pair of sentences. Held-out splits stay.
      first_tokens: the same by the tokens of the text: the first examples that together have no
        more of them, before corruption.
      extra_ids: sentinels above the own pieces of a SentencePiece vocabulary, or above bytes.
      final_sentinel: whether the targets of span corruption, and of i.i.d. noise with a sentinel
        for each span, always end in a sentinel, as in figure 2 of the T5 paper. The released code
        writes none where the text ends in noise. Labelled tasks pass over it.
      adapter_of: caches of data.cache and the child of MultiTask that their rows have, as "mnli=0",
        "rte=1": the name of a cache's directory, or the directory. Rows have the feature
        `adapter_ids` then.
      own_negatives: caches of data.cache whose queries are compared with their own row's passages
        alone, as those of classes or of clusters are, named as in `adapter_of`; a directory whose
        name ends in no_in_batch_neg, as FlagEmbedding's files are called, is one without being
        named. Rows of Groups() have the feature `own_negatives` then.
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
                "data.languages chooses among files, and each language has a cache of its own: "
                "name the caches in data.cache"
            )
        if len({*self.languages}) < len(self.languages):
            raise InputError(f"data.languages has one twice: {', '.join(self.languages)}")
        if self.pack and not self.layout.packs:
            raise InputError(
                f"data.layout {self.layout.name} has one example a row: set data.pack to False"
            )
        _check_batches(self)
        _check_refresh(self)
        if self.adapter_of and (self.pack or not self.cache):
            raise InputError(
                "data.adapter_of is of caches whose rows have one example: give --data.cache, and "
                "--data.pack False"
            )
        _ = adapter_numbers(self), own_negative_caches(self)


def adapter_numbers(data: Data) -> dict[str, int]:
    """The children of MultiTask by the caches of `adapter_of`.

    Raises:
      InputError: a line is no NAME=NUMBER, or a cache has two.
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
    """The directories of `own_negatives`, and those that are ones by their name.

    Raises:
      InputError: rows have no negatives, or a name is of none of data.cache.
    """
    if isinstance(data.layout, Groups) and data.cache:
        texts = [data.cache] if isinstance(data.cache, str) else data.cache
        directories = [split_rate(text)[0] for text in texts]
    elif data.own_negatives:
        raise InputError(
            "data.own_negatives is of caches of the layout Groups(): read --data.cache, or set "
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
    """What the options that name caches call one: its directory, and the last part of that."""
    return directory, directory.rstrip("/").rpartition("/")[2]


def _check_batches(data: Data) -> None:
    """Refuses batches that do not go together with the layout, the lengths or the batch size."""
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
            f"data.{layout.grouped} {length} and data.batch_size {data.batch_size} are not those "
            f"of the longest of data.batches, {longest} and {rows}: set --data.{option} {longest} "
            f"--data.batch-size {rows}, or change data.batches"
        )


def _check_refresh(data: Data) -> None:
    """Refuses new negatives for rows that have none, or features that go with the old ones."""
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
            "data.refresh has no scores and no ids of the passages that it finds: leave out "
            "data.layout.teacher and data.layout.known_positives"
        )


def shapes_of(data: Data) -> tuple[Data, ...]:
    """The config of each static shape as if there were no other, those of short rows first."""
    if not data.batches.buckets():
        return (data,)
    return tuple(
        dataclasses.replace(data, batches=Fixed(), batch_size=rows, **{data.layout.grouped: length})
        for length, rows in data.batches.buckets()
    )


def truncation_of(data: Data) -> dict[str, int]:
    """What leaves the first of the training data, by its field; {} where all are read."""
    values = {name: getattr(data, name) for name in TRUNCATIONS}
    return {name: value for name, value in values.items() if value is not None}


def rows_named(data: Data, shape: Data) -> str:
    """What messages call the rows of a shape.

    Args:
      data: the config.
      shape: one of its `shapes_of`.
    """
    if not data.batches.buckets():
        return f"data.batch_size {shape.batch_size}"
    length = getattr(shape, shape.layout.grouped)
    return f"data.batches of {shape.batch_size} rows of {length} tokens"


def wording_of(data: Data) -> dict[str, str]:
    """What a config says of the words of the inputs: "template" and "prefix", where it is set."""
    template = {"template": data.template} if data.template else {}
    return template if data.prefix is None else {**template, "prefix": data.prefix}


def words_of_inputs(data: Data) -> dict[str, str]:
    """What a cache of a config keeps of the text of its inputs: `wording_of`, and data.augment."""
    augment = data.augment
    if not augment.run:
        return wording_of(data)
    own = {name: str(getattr(augment, name)) for name in ("run", "k", "template", "passage")}
    return wording_of(data) | {f"augment.{name}": value for name, value in own.items()}


def lengths_of(data: Data) -> dict[str, int]:
    """Tokens at most of each feature of the layout; of a joined one, of each of its texts."""
    return data.layout.lengths(inputs=data.inputs_length, targets=data.targets_length)


def text_lengths(data: Data) -> dict[str, int]:
    """Tokens at most of a "query" and of a "document"; {} where all texts are alike."""
    return data.layout.text_lengths(inputs=data.inputs_length, targets=data.targets_length)


def trimmed_lengths(data: Data) -> dict[str, int]:
    """The lengths to which seqio trims features; those that a task lacks are passed over."""
    lengths = {"inputs": data.inputs_length, "targets": data.targets_length, **lengths_of(data)}
    return {name: size for name, size in lengths.items() if name not in data.layout.joined}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskArguments:
    """What a task function gets; it returns a seqio.Task.

    Attributes:
      vocabulary: the vocabulary of inputs and targets.
      directory: the user's data.directory, "" where none was given.
      inputs_length: tokens of an encoder row, EOS included.
      targets_length: tokens of a decoder row, EOS included.
      seed: of all randomness that belongs to single examples (which spans are corrupted).
      columns: of the user's own files.
      languages: the language that is read; () of text without languages.
      layout: how its examples are shown; a task may have one form as text to text, and another for
        a layout that shows labels.
      final_sentinel: the user's data.final_sentinel.
      template: the user's data.template, "" where none was given.
      prefix: the user's data.prefix, None where none was given.
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
