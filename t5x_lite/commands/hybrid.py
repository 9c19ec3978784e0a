"""The command that searches by several heads: hybrid."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Literal

from t5x_lite.commands.options import at_least
from t5x_lite.option_types import Count, Directory, Text, TextTuple, Three, Two
from t5x_lite.options import OptionError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hybrid:
    """Find documents by each head of a BGE-M3, and by several together.

    Writes OUTPUT/WAY.trec for each way: dense and lexical over all documents; dense_lexical over
    the best of both; multi_vector and all, the weighted sum of three scores, over the best of
    dense. evaluate-run measures and compares the runs.

    Attributes:
      corpus: the directory that embed --heads dense lexical multi_vector wrote of the documents.
      queries: that of the queries.
      output: a new directory.
      ways: the runs that are written.
      weights: of the dense, the lexical and the multi-vector score in all; of long documents the
        paper has .15 .5 .35.
      pair_weights: of the dense and the lexical score in dense_lexical; of long documents .2 .8.
      depth: documents of a query at most.
      rerank: best documents of dense that multi_vector and all score again.
      same_ids: whether a document that has a query's id stays in that query's ranking.
      tag: TREC's name of the runs.
    """

    corpus: Directory
    queries: Directory
    output: Directory
    ways: TextTuple = ("dense", "lexical", "multi_vector", "dense_lexical", "all")
    weights: Three = (1.0, 0.3, 1.0)
    pair_weights: Two = (1.0, 0.3)
    depth: Count = 1000
    rerank: Count = 200
    same_ids: Literal["keep", "drop"] = "keep"
    tag: Text = "t5x_lite"
    takes_overrides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        at_least(1, {"--depth": self.depth, "--rerank": self.rerank})
        if not self.ways:
            raise OptionError("--ways needs at least one")

    def run(self, _: Sequence[str]) -> None:
        """Calls run.hybrid.hybrid."""
        from t5x_lite.retrieval.hybrid import Ways
        from t5x_lite.run.hybrid import hybrid

        ways = Ways(
            names=self.ways,
            weights=self.weights,
            pair_weights=self.pair_weights,
            depth=self.depth,
            rerank=self.rerank,
        )
        hybrid(
            self.corpus,
            queries=self.queries,
            output=self.output,
            ways=ways,
            same_ids=self.same_ids,
            tag=self.tag,
        )
