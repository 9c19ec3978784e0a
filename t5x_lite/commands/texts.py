"""Commands that prepare data: vocab, cache."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from t5x_lite.commands.options import Config, Count, Directory, Files, Texts, at_least, load_config
from t5x_lite.options import OptionError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Vocab:
    """Train a SentencePiece vocabulary on text, one document or sentence a line.

    Attributes:
      input: text files in UTF-8; - is standard input.
      output: the directory that receives sentencepiece.model.
      size: pieces of the vocabulary, without the sentinels.
    """

    input: Files
    output: Directory
    size: Count
    takes_overrides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.input:
            raise OptionError("--input needs at least one file")
        at_least(1, {"--size": self.size})

    def run(self, _: Sequence[str]) -> None:
        """Calls run.texts.vocab."""
        from t5x_lite.run.texts import vocab

        vocab(self.input, output=self.output, size=self.size)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cache:
    """Run a config's task once and write its tokens, which train reads by --data.cache DIR.

    Training from a cache needs no TensorFlow, and corrupts every epoch anew.

    Attributes:
      config: a Python file that defines `experiment`, or the config.json of a work directory.
      output: the directory to write; it must not exist yet.
      splits: the splits to write; all that have an example if not given.
      num_workers: processes that run the task.
      bake: writes whole examples, corrupted once and for all.
    """

    config: Config
    output: Directory
    splits: Texts = ()
    num_workers: Count = 1
    bake: bool = False
    takes_overrides: ClassVar[bool] = True

    def __post_init__(self) -> None:
        at_least(1, {"--num-workers": self.num_workers})

    def run(self, overrides: Sequence[str]) -> None:
        """Calls run.caching.cache with the config's overrides."""
        experiment = load_config(self.config, overrides, command=Cache)
        from t5x_lite.run.caching import cache

        cache(
            experiment,
            output=self.output,
            splits=self.splits or None,
            num_workers=self.num_workers,
            bake=self.bake,
        )
