"""Commands that prepare a project and data: init, vocab, cache."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from t5x_lite.commands.options import at_least, before_beam, load_config
from t5x_lite.option_types import (
    Config,
    Count,
    Directory,
    FileTuple,
    OptionalNumber,
    SomeDirectory,
    Text,
    TextTuple,
)
from t5x_lite.options import OptionError


@dataclasses.dataclass(frozen=True, kw_only=True)
class InitProject:
    """Write a small project that trains at once: configs, a task, data, a vocabulary, a README.

    Nothing is downloaded: the text is the documentation that Python carries. Takes half a minute.

    Attributes:
      directory: the project to write; it must not exist, or be empty.
    """

    directory: SomeDirectory
    takes_overrides: ClassVar[bool] = False

    def run(self, _: Sequence[str]) -> None:
        """Calls run.new_project.new_project."""
        from t5x_lite.run.new_project import new_project

        made = new_project(self.directory)
        print(
            f"{made}: begin with `cd {made} && t5x-lite train configs/pretrain.py`; see README.md"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Vocab:
    """Train a SentencePiece vocabulary on unlabelled text: files, directories or data sets.

    Plain text has a document or a sentence a line. Of JSON, as `t5x-lite c4` writes it, of Parquet
    and of data sets the text field is read; docs/guides/documents.md lists all inputs.

    Digits, ASCII letters and punctuation always have a piece, since labels and numbers are written
    with them. There is no byte fallback, as in T5: --data.vocabulary bytes spells any text. With
    weights the text is drawn from the files in these shares of its bytes, and none is repeated:

        t5x-lite vocab --input en.txt=10 'de/*.txt=1' --output work/vocabulary --size 32000

    Of such files, and with --alpha, it says into how many pieces their words are cut.

    Attributes:
      input: text files, JSON lines, Parquet, Arrow, directories and patterns of them, hf://NAME or
        tfds://NAME; - is standard input. FILE=WEIGHT gives each a share of the text.
      output: the directory that receives sentencepiece.model.
      size: pieces of the vocabulary, without the sentinels.
      no_ascii: leaves out digits, ASCII letters and punctuation that are rare in the text.
      alpha: gives files without weights the shares of their bytes to this power, such as 0.3 of
        languages.
      encoder: writes spm.model, of which the special pieces are those of DeBERTa's: [PAD], [CLS],
        [SEP] and [UNK], and [MASK] behind the last piece.
      character_coverage: fraction of the text's characters that get a piece, 0.98 to 1; if not
        given, 0.9995 and every frequent character.
      seed: random seed for the lines drawn by weights, and for the 2,000,000 of a longer text.
      text: column of the text of JSON, tables and data sets, or columns in braces such as
        "{title} {body}".
    """

    input: FileTuple
    output: Directory
    size: Count
    no_ascii: bool = False
    alpha: OptionalNumber = None
    encoder: bool = False
    character_coverage: OptionalNumber = None
    seed: Count = 0
    text: Text = "{text}"
    takes_overrides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.input:
            raise OptionError("--input needs at least one file")
        at_least(1, {"--size": self.size})
        at_least(0, {"--seed": self.seed})

    def run(self, _: Sequence[str]) -> None:
        """Calls run.texts.vocab."""
        from t5x_lite.run.texts import vocab

        vocab(
            self.input,
            output=self.output,
            size=self.size,
            ascii=not self.no_ascii,
            alpha=self.alpha,
            encoder=self.encoder,
            character_coverage=self.character_coverage,
            seed=self.seed,
            text=self.text,
        )


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
      num_workers: processes that run the task. For the runner local.
      bake: writes whole examples, corrupted once and for all. For the runner local.
      runner: local, or a runner of Apache Beam: DirectRunner, DataflowRunner, FlinkRunner, ...
    """

    config: Config
    output: Directory
    splits: TextTuple = ()
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
