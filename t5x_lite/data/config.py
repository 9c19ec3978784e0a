"""What a run reads: the `Data` config, and the arguments that every task function gets.

A task is named "module:function" and imported late, so that reading a config never loads
TensorFlow:

    Data(task="tasks.glue:sst2", vocabulary="vocab/spiece.model", directory="glue")

`function` takes `TaskArguments` and returns a `seqio.Task`.
"""

from dataclasses import dataclass

from t5x_lite.data.vocabulary import SentencePiece
from t5x_lite.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Data:
    """The data of one run.

    Attributes:
      task: "module:function" of a function TaskArguments -> seqio.Task.
      vocabulary: a SentencePiece .model file, or a directory that holds sentencepiece.model.
      directory: where the task's files are; "" for a task that needs none.
      layout: how examples become rows, a name that layouts.py knows.
      batch_size: rows of the global batch.
      inputs_length: tokens of an encoder row, EOS included.
      targets_length: tokens of a decoder row, EOS included.
      pack: whether several short examples share a row.
      shuffle: whether training examples are shuffled.
      shuffle_buffer: examples that the shuffle holds at a time.
      extra_ids: sentinels above the SentencePiece model's own pieces.
    """

    task: str
    vocabulary: str
    directory: str = ""
    layout: str = "seq2seq"
    batch_size: int = 128
    inputs_length: int = 512
    targets_length: int = 114
    pack: bool = True
    shuffle: bool = True
    shuffle_buffer: int = 1000
    extra_ids: int = 100

    def __post_init__(self):
        for name in ("batch_size", "inputs_length", "targets_length", "shuffle_buffer"):
            value = getattr(self, name)
            if value < 1:
                raise InputError(f"data.{name} must be at least 1, got {value}")
        if self.extra_ids < 0:
            raise InputError(f"data.extra_ids must not be negative, got {self.extra_ids}")


@dataclass(frozen=True, kw_only=True)
class TaskArguments:
    """What a task function gets; it returns a seqio.Task.

    Attributes:
      vocabulary: the vocabulary of inputs and targets.
      directory: the user's data.directory, "" where none was given.
      inputs_length: tokens of an encoder row, EOS included.
      targets_length: tokens of a decoder row, EOS included.
      seed: of all randomness that belongs to single examples (which spans are corrupted).
    """

    vocabulary: SentencePiece
    directory: str
    inputs_length: int
    targets_length: int
    seed: int = 0
