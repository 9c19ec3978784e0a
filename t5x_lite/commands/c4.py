"""The command that makes C4 of files of Common Crawl: c4."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Literal

from t5x_lite.c4.config import Cleaning, preset
from t5x_lite.commands.options import PROG, at_least, before_beam
from t5x_lite.option_types import Directory, FileTuple, Number, OptionalCount, OptionalFile, Text
from t5x_lite.options import OptionError, option_names, parse

_LISTS = ("bad_words", "domains", "urls")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Rules:
    """Gives the options of the rules their prefix."""

    cleaning: Cleaning


@dataclasses.dataclass(frozen=True, kw_only=True)
class C4:
    """Build C4 from Common Crawl WET or WARC files: clean, deduplicate, and report.

    Kept pages go to OUTPUT in shards, with report.html and stats.json about what was dropped and
    why, and manifest.json, written last. A run that is killed goes on when it is given again. A
    rule is changed by --cleaning.RULE VALUE, such as --cleaning.min-words 3; the guide of C4
    lists them. What follows -- are options of Apache Beam, with any --runner but local:

        t5x-lite c4 --input gs://B/wet.paths --output gs://B/c4 --runner DataflowRunner
        -- --project=P --region=R --temp_location=gs://B/tmp

    Attributes:
      input: WET or WARC files, .gz or not; patterns, directories, gs:// and s3:// too; a file
        *.paths, *.paths.gz or *.txt that lists such files.
      output: the directory to write: new, or that of the same command.
      preset: the rules of the published C4, or of the paper as it first appeared.
      variant: the variant of C4.
      bad_words: a list with an entry a line, or for multilingual a directory of such lists; none
        if not given.
      domains: for realnewslike: JSON {domain: true or a list of its subdomains}.
      urls: for webtextlike: URLs, one a line.
      base: prefix of relative paths in a list of paths, such as s3://commoncrawl.
      num_shards: shards of the training split; if not given, by the input's size (1024 for a whole
        crawl).
      array_record: writes ArrayRecord files beside those of JSON lines.
      workers: processes; one per core if not given. For the runner local.
      memory: GiB that deduplication may hold before it spills to disk. For the runner local.
      runner: local, or a runner of Apache Beam: DirectRunner, DataflowRunner, FlinkRunner, ...
    """

    input: FileTuple
    output: Directory
    preset: Literal["released", "paper"] = "released"
    variant: Literal["en", "en.noclean", "realnewslike", "webtextlike", "multilingual"] = "en"
    bad_words: OptionalFile = None
    domains: OptionalFile = None
    urls: OptionalFile = None
    base: Text = ""
    num_shards: OptionalCount = None
    array_record: bool = False
    workers: OptionalCount = None
    memory: Number = 2.0
    runner: Text = "local"
    takes_overrides: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.input:
            raise OptionError("--input needs at least one file")
        at_least(1, {"--num-shards": self.num_shards, "--workers": self.workers})
        if not 0 < self.memory < 1 << 20:
            raise OptionError(f"--memory must be a number of GiB above 0, got {self.memory}")
        if self.runner != "local" and self.workers is not None:
            raise OptionError("--workers is for --runner local; other runners have their own")

    def run(self, overrides: Sequence[str]) -> None:
        """Calls run.c4.c4.

        Args:
          overrides: --cleaning.RULE VALUE, and after "--" the options of Beam.
        """
        rules, beam_options = before_beam(overrides, runner=self.runner)
        cleaning = self._cleaning(rules)
        from t5x_lite.run.c4 import c4

        c4(
            self.input,
            output=self.output,
            cleaning=cleaning,
            preset=self.preset,
            variant=self.variant,
            base=self.base,
            num_shards=self.num_shards,
            array_record=self.array_record,
            workers=self.workers,
            memory=self.memory,
            runner=self.runner,
            beam_options=beam_options,
        )

    def _cleaning(self, overrides: Sequence[str]) -> Cleaning:
        """The preset's rules, with the lists of this command and the changes that are asked for."""
        lists = {name: getattr(self, name) for name in _LISTS if getattr(self, name) is not None}
        rules = dataclasses.replace(preset(self.preset, self.variant), **lists)
        found, _ = parse(
            _Rules,
            overrides,
            prog=f"{PROG} c4",
            default=_Rules(cleaning=rules),
            other_options=option_names(C4),
        )
        return found.cleaning
