"""What a run reads: the `Data` config, and the arguments that every task function gets.

A task is named "module:function" and imported late, so that reading a config never loads
TensorFlow:

    Data(task="tasks.glue:sst2", vocabulary="vocab/spiece.model", directory="glue")

`function` takes `TaskArguments` and returns a `seqio.Task`.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from t5x_lite.data.columns import Columns
from t5x_lite.data.labels import WIDTH as LABEL_WIDTH
from t5x_lite.data.rates import Mixing
from t5x_lite.errors import InputError
from t5x_lite.options import nearest
from t5x_lite.vocabulary.loading import Vocabulary

LAYOUT_NAMES = ("seq2seq", "lm", "prefix_lm", "concat_lm", "encoder", "pairs", "labelled")
"""How examples become rows; what each means stands in layouts/live.py."""


def check_layout(name: str) -> None:
    """Refuses, with the nearest name, a layout that does not exist."""
    if name not in LAYOUT_NAMES:
        near = nearest(name, LAYOUT_NAMES)
        hint = f"did you mean {near}?" if near else f"there are: {', '.join(LAYOUT_NAMES)}"
        raise InputError(f"unknown data.layout {name!r}: {hint}")


def check_features(layout: str, there: Collection[str]) -> None:
    """Refuses a task without the features that a layout shows, or with some that it does not.

    Args:
      layout: a name in `LAYOUT_NAMES`.
      there: the task's features, and others, which are passed over.
    """
    if layout == "pairs":
        if not {"query", "passages"} <= {*there}:
            raise InputError(
                "data.layout 'pairs' shows queries and passages, and the task gives "
                f"{' and '.join(sorted(there))}: use a task such as tasks.pairs:jsonl"
            )
    elif "query" in there:
        raise InputError(
            f"the task gives queries and passages, and data.layout is {layout!r}: use pairs"
        )
    elif layout == "labelled":
        if not {"inputs", "labels"} <= {*there}:
            raise InputError(
                "data.layout 'labelled' shows a text and its label, and the task gives "
                f"{' and '.join(sorted({'inputs', 'targets'} & {*there}))}: use a task such as "
                "tasks.glue:sst2"
            )
    elif "labels" in there:
        raise InputError(
            f"the task gives texts and labels, and data.layout is {layout!r}: use labelled"
        )
    elif layout == "encoder":
        if "targets" in there or "inputs" not in there:
            raise InputError(
                "data.layout 'encoder' shows inputs only, and the task gives "
                f"{' and '.join(sorted({'inputs', 'targets'} & {*there}))}: use a task such as "
                "tasks.encoder:documents"
            )
    elif "targets" not in there:
        raise InputError(
            f"data.layout {layout!r} shows targets, but the task gives inputs only: use encoder"
        )
    elif "inputs" in there and layout == "lm":
        raise InputError(
            f"data.layout {layout!r} shows targets only, but the task gives inputs too: use "
            "prefix_lm or concat_lm"
        )
    elif "inputs" not in there and layout != "lm":
        raise InputError(
            f"data.layout {layout!r} shows inputs and targets, but the task gives targets only: "
            "use lm"
        )


@dataclass(frozen=True, kw_only=True)
class Data:
    """The data of one run.

    Attributes:
      task: "module:function" of a function TaskArguments -> seqio.Task, or "module:name" of a
        `mixtures.Mixture` of tasks. With a cache it serves the task's own metrics alone, and may be
        "".
      vocabulary: a SentencePiece .model file, a tokenizer.json, WordPiece's vocab.txt, DeBERTa's
        spm.model, or a directory that holds sentencepiece.model, bytes.json, tokenizer.json,
        vocab.txt or spm.model; "bytes" and "bytes-hf" are byte vocabularies (ByT5).
      directory: where the task's files are; "" for a task that needs none.
      cache: a directory that `t5x-lite cache` wrote, to be read in place of the task's files, and
        without TensorFlow; several as "DIRECTORY=RATE" are mixed, and without rates as `mixing`
        says. "" runs the task on the fly.
      mixing: how the tasks of a mixture are mixed, or several caches that are given without rates.
      columns: of files of one's own (tasks/files.py), what is shown and what is to be written.
      layout: how examples become rows: "seq2seq" of an encoder-decoder, "lm", "prefix_lm" or
        "concat_lm" of a decoder alone, "encoder" of an encoder alone, "pairs" of an encoder that
        compares queries with passages, or "labelled" of an encoder with a head that answers.
      batch_size: rows of the global batch.
      inputs_length: tokens of an encoder row, EOS included; of pairs, tokens of a query. Rows of a
        decoder alone have inputs_length plus targets_length tokens, in layout "lm" targets_length.
      targets_length: tokens of a decoder row, EOS included; of pairs, tokens of a passage.
      negatives: of pairs, passages of a query besides the one that answers it.
      pack: whether several short examples share a row.
      shuffle: whether training examples are shuffled.
      shuffle_buffer: examples that the shuffle of a stream holds at a time; data in memory and
        caches are permuted as a whole (docs/guides/order.md).
      extra_ids: sentinels above the own pieces of a SentencePiece vocabulary, or above bytes.
    """

    task: str = ""
    vocabulary: str
    directory: str = ""
    cache: str | tuple[str, ...] = ""
    mixing: Mixing = field(default_factory=Mixing)
    columns: Columns = field(default_factory=Columns)
    layout: str = "seq2seq"
    batch_size: int = 128
    inputs_length: int = 512
    targets_length: int = 114
    negatives: int = 0
    pack: bool = True
    shuffle: bool = True
    shuffle_buffer: int = 1000
    extra_ids: int = 100

    def __post_init__(self):
        check_layout(self.layout)
        if not self.task and not self.cache:
            raise InputError(
                "what is read? give --data.task module:function, or --data.cache DIRECTORY"
            )
        for name in ("batch_size", "inputs_length", "targets_length", "shuffle_buffer"):
            value = getattr(self, name)
            if value < 1:
                raise InputError(f"data.{name} must be at least 1, got {value}")
        for name in ("extra_ids", "negatives"):
            if getattr(self, name) < 0:
                raise InputError(f"data.{name} must not be negative, got {getattr(self, name)}")
        if self.layout in ("pairs", "labelled") and self.pack:
            what = "query" if self.layout == "pairs" else "text"
            raise InputError(
                f"data.layout {self.layout!r} has a {what} a row: set data.pack to False"
            )


def lengths_of(data: Data) -> dict[str, int]:
    """Tokens at most of each feature that a task may have; those that it lacks are passed over.

    "passages" are one behind the other, each of targets_length.
    """
    return {
        "inputs": data.inputs_length,
        "targets": data.targets_length,
        "query": data.inputs_length,
        "passages": data.targets_length * (1 + data.negatives),
        "labels": LABEL_WIDTH,
    }


@dataclass(frozen=True, kw_only=True)
class TaskArguments:
    """What a task function gets; it returns a seqio.Task.

    Attributes:
      vocabulary: the vocabulary of inputs and targets.
      directory: the user's data.directory, "" where none was given.
      inputs_length: tokens of an encoder row, EOS included.
      targets_length: tokens of a decoder row, EOS included.
      seed: of all randomness that belongs to single examples (which spans are corrupted).
      columns: of the user's own files.
      negatives: of pairs, passages of a query besides the one that answers it.
      layout: how its examples are shown; a task may have one form as text to text, and another for
        the layout "labelled".
    """

    vocabulary: Vocabulary
    directory: str
    inputs_length: int
    targets_length: int
    seed: int = 0
    columns: Columns = field(default_factory=Columns)
    negatives: int = 0
    layout: str = "seq2seq"
