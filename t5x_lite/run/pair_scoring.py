"""`t5x-lite score-pairs`: scores of the passages of a file of pairs.

    {"query": "q", "pos": ["a"], "neg": ["b", "c"]}
    {"query": "q", "pos": ["a"], "neg": ["b", "c"], "pos_scores": [9.5], "neg_scores": [0.25, -1]}

The scores are those of a cross-encoder, or of the heads of a BGE-M3. That is what distillation
reads (`objectives.distill`, data.layout Groups(teacher=True)). All other fields stay; scores that
are there are replaced. A killed command goes on.
"""

import hashlib
import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from t5x_lite.errors import InputError
from t5x_lite.inference.best_step import Step, find_step
from t5x_lite.inference.checkpoint import Checkpoint
from t5x_lite.progress import counting
from t5x_lite.records import pairs
from t5x_lite.records.json_lines import read_examples, writer
from t5x_lite.records.lines import count_lines
from t5x_lite.records.resumable import is_resumable, resumable_writer
from t5x_lite.sharding import MeshConfig, make_mesh

_AT_A_TIME = 16
"""Queries whose passages are scored together."""

_logger = logging.getLogger(__name__)


@runtime_checkable
class Scorer(Protocol):
    """What says how well passages answer queries."""

    @property
    def length(self) -> int:
        """Tokens of what is scored at most."""
        ...

    @property
    def query_length(self) -> int:
        """Tokens of a query at most."""
        ...

    def scores(self, pairs: Sequence[tuple[str, str]]) -> Float[np.ndarray, " n"]:
        """Of each (query, passage)."""
        ...


def score_pairs(
    checkpoint: str,
    *,
    input: str,
    output: str,
    step: Step = None,
    use: str | None = None,
    negatives_top: int | None = None,
    batch_size: int = 32,
    inputs_length: int | None = None,
    query_length: int | None = None,
    heads: Sequence[str] = (),
    weights: Sequence[float] = (1.0, 1.0, 1.0),
) -> None:
    """Writes a file of pairs with a teacher's scores.

    Args:
      checkpoint: a work directory or a step directory of a cross-encoder, or with `heads` of a
        BGE-M3.
      input: *.jsonl of {"query", "pos", "neg"}; "-" is standard input.
      output: *.jsonl, or "-".
      step: of a work directory: its number, "best", or None for the newest.
      use: names of modules, with commas between; None is all of the checkpoint.
      negatives_top: of so many negatives that a query lists, the first, there are scores; null
        stands for the others. None scores all.
      batch_size: pairs scored at once, rounded up to what the devices can share; with heads texts.
      inputs_length: tokens of query and passage together, or with heads of a passage.
      query_length: tokens of a query at most.
      heads: that score, some of dense, lexical and multi_vector; () is a cross-encoder.
      weights: of all three, whose weighted mean is the score (`inference.pairs`).

    Raises:
      InputError: the checkpoint or a line is wrong.
    """
    directory = find_step(checkpoint, step=step)
    model = Checkpoint.load(
        [directory], use=use, inputs_length=inputs_length, mesh=make_mesh(MeshConfig())
    )
    scorer: Scorer = model.pair_scorer(
        heads=heads, weights=weights, batch_size=batch_size, query_length=query_length
    )
    identity = {
        "checkpoint": str(directory),
        "use": use,
        "input": _digest(input),
        "negatives_top": negatives_top,
        "lengths": [scorer.length, scorer.query_length],
        **({"heads": list(heads), "weights": list(weights)} if heads else {}),
    }
    done = 0
    goes_on = is_resumable(output) and input != "-"
    opened: Any = (
        resumable_writer(output, identity=identity, chunk=_AT_A_TIME) if goes_on else writer(output)
    )
    with (
        opened as file,
        counting("scoring", unit="queries", total=count_lines(input), done=file.done) as advance,
    ):
        records = itertools.islice(_records(input), file.done, None)
        while some := list(itertools.islice(records, _AT_A_TIME)):
            file.write(*_scored(some, scorer, negatives_top))
            done += len(some)
            advance(len(some))
        if not done and not file.done:
            raise InputError(f"{input}: no query")
    _logger.info("%s: %d queries with the scores of %s", output, file.done, directory)


def _records(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a file and their places, checked."""
    for line in read_examples(path, fields=("query",)):
        _ = pairs.checked(line.record, line.where)
        yield line.where, dict(line.record)


def _scored(
    some: list[tuple[str, dict[str, Any]]], scorer: Scorer, top: int | None
) -> Iterator[Mapping[str, Any]]:
    """The objects with scores."""
    asked = []
    for where, record in some:
        one = pairs.from_json(pairs.checked(record, where))
        asked += [(one.query, text) for text in (*one.positives, *one.negatives[:top])]
    scores = iter(scorer.scores(asked).tolist())
    for _, record in some:
        negatives = record.get("neg", [])
        of_pos = list(itertools.islice(scores, len(record["pos"])))
        of_neg = list(itertools.islice(scores, len(negatives[:top])))
        missing = [None] * (len(negatives) - len(of_neg))
        yield {**record, "pos_scores": of_pos, "neg_scores": [*of_neg, *missing]}


def _digest(path: str) -> str:
    """Of a file's content; "" of standard input."""
    if path == "-":
        return ""
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
