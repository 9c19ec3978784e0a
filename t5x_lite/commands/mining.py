"""The command that makes training data of searches: mine."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Literal

from t5x_lite.commands.options import at_least
from t5x_lite.option_types import (
    ALL_MODULES,
    Count,
    File,
    FileTuple,
    Modules,
    OptionalCount,
    OptionalDirectory,
    OptionalFile,
    OptionalNumber,
    OptionalPooling,
    OptionalStep,
    OptionalText,
)
from t5x_lite.options import OptionError
from t5x_lite.project import trusting_checkpoints


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mine:
    """Find hard negatives: passages that a search ranks high for a query and that do not answer it.

    Answers, by id and by their words, the query's own words and duplicates are never taken. The
    same files give the same negatives; a killed command goes on.

    Attributes:
      input: JSON lines {"query", "pos"}, or a directory in BEIR's format.
      output: the same lines with "neg", ids and scores; OUTPUT.settings.json is written beside it.
      checkpoint: searches with its vectors; in place of it, --rankings.
      rankings: a run, whose queries are those of the input by their "id", as bm25 search, search,
        fuse and rerank write it.
      passages: files of the passages that are searched; if not given, those of the input.
      vectors: of these passages in their order, if embed has made them.
      split: train, validation or test: whose judgements of a BEIR directory.
      first: the first place of a ranking that is looked at, from 0.
      last: the place behind the last one.
      negatives: of a query at most.
      take: the first ones, or a sample of all.
      margin: negatives score so much less than the answer with the lowest score.
      relative_margin: the same as a share of that score.
      min_score: of a negative.
      max_score: of a negative.
      fill: random gives a query with too few passages that are not in its ranking.
      seed: of samples.
      rescore: replaces "pos_scores" of the input by scores of the search; if not set they stay.
      step: the step to take from a work directory, or best; the newest if not given.
      base: where the base of a checkpoint is that holds its trained part alone.
      adapters: the modules in use.
      pooling: the state of [CLS], or the mean of all; if not given, what the checkpoint says.
      normalize: whether vectors have length 1; if not given, what the checkpoint says.
      query_prefix: what every query begins with; if not given, the checkpoint's prompt.
      passage_prefix: what every passage begins with; if not given, the checkpoint's prompt.
      batch_size: texts encoded at once.
      query_length: tokens of a query at most; what the model was trained with if not given.
      passage_length: tokens of a passage at most; what the model was trained with if not given.
      trust_project: as for embed.
    """

    input: File
    output: File
    checkpoint: OptionalDirectory = None
    rankings: OptionalFile = None
    passages: FileTuple = ()
    vectors: FileTuple = ()
    split: Literal["train", "validation", "test"] = "train"
    first: Count = 10
    last: Count = 210
    negatives: Count = 15
    take: Literal["top", "sample"] = "sample"
    margin: OptionalNumber = None
    relative_margin: OptionalNumber = None
    min_score: OptionalNumber = None
    max_score: OptionalNumber = None
    fill: Literal["none", "random"] = "none"
    seed: Count = 0
    rescore: bool = False
    step: OptionalStep = None
    base: OptionalDirectory = None
    adapters: Modules = ALL_MODULES
    pooling: OptionalPooling = None
    normalize: bool | None = None
    query_prefix: OptionalText = None
    passage_prefix: OptionalText = None
    batch_size: Count = 32
    query_length: OptionalCount = None
    passage_length: OptionalCount = None
    trust_project: bool = False
    takes_overrides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        at_least(0, {"--step": self.step, "--first": self.first, "--seed": self.seed})
        at_least(
            1,
            {
                "--last": self.last,
                "--negatives": self.negatives,
                "--batch-size": self.batch_size,
                "--query-length": self.query_length,
                "--passage-length": self.passage_length,
            },
        )
        if (self.checkpoint is None) == (self.rankings is None):
            raise OptionError("who searches? give --checkpoint DIR or --rankings FILE")
        if self.vectors and self.checkpoint is None:
            raise OptionError("--vectors are searched by the vectors of --checkpoint: give it")

    def run(self, _: Sequence[str]) -> None:
        """Calls run.mining.mine."""
        from t5x_lite.checkpoints.base import base_at
        from t5x_lite.retrieval.mine import Rules
        from t5x_lite.run.mining import RunSource, mine
        from t5x_lite.run.mining_search import EncoderSource

        if self.rankings is not None:
            source = RunSource(self.rankings)
        else:
            assert self.checkpoint is not None
            names = (
                "checkpoint vectors step pooling normalize query_prefix passage_prefix batch_size "
                "query_length passage_length"
            )
            options = {name: getattr(self, name) for name in names.split()}
            source = EncoderSource(**options, use=self.adapters.use)
        rules = [field.name for field in dataclasses.fields(Rules)]
        with trusting_checkpoints(self.trust_project), base_at(self.base):
            mine(
                input=self.input,
                output=self.output,
                source=source,
                passages=self.passages,
                split=self.split,
                rules=Rules(**{name: getattr(self, name) for name in rules}),
                rescore=self.rescore,
            )
