"""Commands that prepare data: vocab, cache."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from t5x_lite.commands.options import (
    Config,
    Count,
    Directory,
    Files,
    Text,
    Texts,
    at_least,
    before_beam,
    load_config,
)
from t5x_lite.options import OptionError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Vocab:
    """Train a SentencePiece vocabulary on text, one document or sentence a line.

    Digits, ASCII letters and punctuation always have a piece, since labels and numbers are written
    with them. There is no byte fallback, as in T5: --data.vocabulary bytes spells any text.

    Attributes:
      input: text files in UTF-8; - is standard input.
      output: the directory that receives sentencepiece.model.
      size: pieces of the vocabulary, without the sentinels.
      no_ascii: leaves out digits, ASCII letters and punctuation that are rare in the text.
    """

    input: Files
    output: Directory
    size: Count
    no_ascii: bool = False
    takes_overrides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.input:
            raise OptionError("--input needs at least one file")
        at_least(1, {"--size": self.size})

    def run(self, _: Sequence[str]) -> None:
        """Calls run.texts.vocab."""
        from t5x_lite.run.texts import vocab

        vocab(self.input, output=self.output, size=self.size, ascii=not self.no_ascii)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cache:
    """Run a config's task once and write its tokens, which train reads by --data.cache DIR.

    Training from a cache needs no TensorFlow, and corrupts every epoch anew. What follows -- are
    options of Apache Beam, with any --runner but local:

        t5x-lite cache CONFIG --output /shared/cache --runner FlinkRunner
        -- --flink_master=HOST:8081

    Attributes:
      config: a Python file that defines `experiment`, or the config.json of a work directory.
      output: the directory to write; it must not exist yet.
      splits: the splits to write; all that have an example if not given.
      num_workers: processes that run the task. Of the runner local.
      bake: writes whole examples, corrupted once and for all. Of the runner local.
      runner: local, or a runner of Apache Beam: DirectRunner, DataflowRunner, FlinkRunner, ...
    """

    config: Config
    output: Directory
    splits: Texts = ()
    num_workers: Count = 1
    bake: bool = False
    runner: Text = "local"
    takes_overrides: ClassVar[bool] = True

    def __post_init__(self) -> None:
        at_least(1, {"--num-workers": self.num_workers})
        if self.runner != "local" and self.num_workers != 1:
            raise OptionError("--num-workers is for --runner local; other runners have their own")
        if self.runner != "local" and self.bake:
            raise OptionError("--bake is for --runner local")

    def run(self, overrides: Sequence[str]) -> None:
        """Calls run.caching.cache.

        Args:
          overrides: of the config and, after "--", the options of Beam.
        """
        overrides, beam_options = before_beam(overrides, runner=self.runner)
        experiment = load_config(self.config, overrides, command=Cache)
        from t5x_lite.run.caching import cache

        cache(
            experiment,
            output=self.output,
            splits=self.splits or None,
            num_workers=self.num_workers,
            bake=self.bake,
            runner=self.runner,
            beam_options=beam_options,
        )
