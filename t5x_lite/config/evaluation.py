"""Evaluation settings of an `Experiment`: metrics, decoding and retrieval."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from t5x_lite.config.checks import OF_DATA, Line, check_given, parse_line
from t5x_lite.core.errors import InputError
from t5x_lite.core.options import (
    AtLeast,
    Count,
    OptionalCount,
    Whole,
    check_bounds,
    did_you_mean,
)
from t5x_lite.data.few_shot import FewShot
from t5x_lite.metrics.classification import CLASS_METRICS
from t5x_lite.models.towers import Pooling

NAMES = ("dense", "lexical", "multi_vector", "dense_lexical", "all")
_NEEDS = {
    "dense_lexical": ("dense", "lexical"),
    "multi_vector": ("dense", "multi_vector"),
    "all": ("dense", "lexical", "multi_vector"),
}

SameIds = Literal["auto", "keep", "drop"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ways:
    """Rankings of a retrieval evaluation, each by the score of one head or by a weighted sum.

    Attributes:
      names: names of the rankings.
      weights: weights of the dense, lexical and multi-vector scores in the ranking "all".
      pair_weights: weights of the dense and lexical scores in the ranking "dense_lexical".
      depth: maximum documents of a ranking, and of each head's candidates.
      rerank: number of top documents of the dense ranking to rescore.
    """

    names: tuple[str, ...] = NAMES
    weights: Annotated[tuple[float, float, float], AtLeast(0)] = (1.0, 0.3, 1.0)
    pair_weights: Annotated[tuple[float, float], AtLeast(0)] = (1.0, 0.3)
    depth: Count = 1000
    rerank: Count = 200

    def __post_init__(self) -> None:
        for name in self.names:
            if name not in NAMES:
                raise InputError(f"ways must be among {', '.join(NAMES)}, got {name!r}")
        check_bounds(self)

    @property
    def heads(self) -> tuple[str, ...]:
        """Names of the encoder heads that the rankings need."""
        needed = {head for name in self.names for head in _NEEDS.get(name, (name,))}
        return tuple(head for head in NAMES[:3] if head in needed)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Retrieval:
    """Retrieval evaluation: the corpus, and the encoding of its queries and documents.

    Attributes:
      directory: directory in BEIR's format: corpus.jsonl, queries.jsonl, qrels/*.tsv; "" skips
        retrieval.
      pooling: "cls" or "mean"; None takes the objective's setting, or "mean".
      normalize: True to scale vectors to length 1, so that scores are cosines; None takes the
        objective's setting, or True.
      query_length: maximum tokens of a query; None is data.inputs_length.
      document_length: maximum tokens of a document; None is data.inputs_length, or with data.layout
        Groups() data.targets_length.
      query_prefix: text put before every query; None takes the checkpoint's prompt for queries, if
        any.
      document_prefix: text put before every document; None takes the checkpoint's prompt for
        documents.
      ways: rankings of a model with the three BGE-M3 heads, such as dense, lexical, multi_vector,
        dense_lexical and all (`retrieval.fusion`). Each is evaluated separately as WAY/ndcg_at_10.
        () evaluates only the ranking by dense vectors. Memory holds the heads' outputs for the
        corpus.
      weights: weights of the dense, lexical and multi-vector scores in the ranking "all".
      pair_weights: weights of the dense and lexical scores in the ranking "dense_lexical".
      same_ids: rule for a document with the same id as the query. "keep" ranks the document. "drop"
        removes the document, as BEIR does for queries that are also documents (ArguAna, Quora).
        "auto" removes the document only if its text, with or without the title, also equals the
        query, so documents with equal ids by accident (Cranfield) stay.
    """

    directory: str = ""
    pooling: Pooling | None = None
    normalize: bool | None = None
    query_length: OptionalCount = None
    document_length: OptionalCount = None
    query_prefix: str | None = None
    document_prefix: str | None = None
    ways: tuple[str, ...] = ()
    weights: Annotated[tuple[float, float, float], AtLeast(0)] = (1.0, 0.3, 1.0)
    pair_weights: Annotated[tuple[float, float], AtLeast(0)] = (1.0, 0.3)
    same_ids: SameIds = "auto"

    def __post_init__(self) -> None:
        check_bounds(self, prefix="evaluation.retrieval.")
        try:
            self.rankings()
        except InputError as error:
            raise InputError(f"evaluation.retrieval: {error}") from error

    def rankings(self) -> Ways:
        """Return the rankings with their weights."""
        return Ways(names=self.ways, weights=self.weights, pair_weights=self.pair_weights)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Settings of the evaluation during training and by `t5x-lite evaluate`.

    Attributes:
      period: steps between two evaluations; the last step always has one.
      split: split of the task to evaluate.
      loss: True to compute the held-out loss.
      max_batches: maximum batches of the held-out loss; None uses the whole split.
      loss_of_each_cache: True to also report the held-out loss of each cache of data.cache under
        the name of the cache directory, such as "validation/en/loss".
      task_metrics: True to predict targets and compute the task's own metrics.
      class_metrics: macro_f1, weighted_f1 or both, reported for each classification task in
        addition to its own metrics; the task's score does not include them.
      max_examples: maximum examples for the task metrics; None uses the whole split.
      batch_size: examples decoded at once; None uses data.batch_size.
      max_decode_length: maximum decoded tokens.
      num_beams: width of the beam search that decodes; 1 is greedy.
      length_penalty: length penalty of the beam search, as T5X defines it; None uses 0.6.
      rank: True to predict the likeliest of the task's labels instead of decoding, for tasks with a
        closed set of labels. Other tasks of a mixture are decoded.
      null_threshold: threshold for unanswerable questions (SQuAD 2.0). The answer is "" if the
        no-answer score minus the best span's score exceeds the threshold. The metric best_f1_thresh
        reports the best threshold up to this value for the evaluated split; 1e9 compares all
        thresholds.
      best_per_task: True to evaluate each task of a mixture with the checkpoint that has the best
        validation metrics for the task.
      bootstrap: number of bootstrap samples for 95 % confidence intervals of `evaluate`'s metrics;
        0 disables the intervals.
      submission: True to also predict the test splits of GLUE and SuperGLUE with `evaluate
        --output`, and write submission files for the benchmark servers. For SQuAD, write the
        predictions file for the official script. Needs max_examples None.
      num_samples: number of predictions to write to samples.jsonl at each evaluation.
      per_task: settings of single tasks, "PATTERN: SETTING=VALUE, ..." such as "wmt_*: num_beams=4,
        length_penalty=0.6". "wmt_ende", "tasks.wmt:ende", "tasks.wmt" or "ende" match a task; *
        matches any letters. Settings: num_beams, length_penalty, max_decode_length, rank,
        max_examples, batch_size, inputs_length (by default the data's), and examples_of, the task
        to take few-shot examples from, such as 'tasks.glue:mnli'. If several lines match a task,
        later lines override earlier ones.
      few_shot: examples to put before each input of the task metrics.
      retrieval: retrieval evaluation of an encoder's vectors on the same split.
    """

    period: Count = 1000
    split: str = "validation"
    loss: bool = True
    max_batches: OptionalCount = 64
    loss_of_each_cache: bool = False
    task_metrics: bool = True
    class_metrics: tuple[str, ...] = ()
    max_examples: OptionalCount = None
    batch_size: OptionalCount = None
    max_decode_length: Count = 32
    num_beams: Count = 1
    length_penalty: float | None = None
    rank: bool = False
    null_threshold: float = 0.0
    best_per_task: bool = False
    bootstrap: Whole = 0
    submission: bool = True
    num_samples: Whole = 8
    per_task: tuple[str, ...] = ()
    few_shot: FewShot = dataclasses.field(default_factory=FewShot)
    retrieval: Retrieval = dataclasses.field(default_factory=Retrieval)

    def __post_init__(self) -> None:
        check_given("evaluation", self)
        check_bounds(self, prefix="evaluation.")
        if self.loss_of_each_cache and not self.loss:
            raise InputError(
                "evaluation.loss_of_each_cache needs the held-out loss, but evaluation.loss is "
                "False; set --evaluation.loss True"
            )
        for name in self.class_metrics:
            if name not in CLASS_METRICS:
                raise InputError(
                    f"evaluation.class_metrics must be among {', '.join(CLASS_METRICS)}, got "
                    f"{name!r}{did_you_mean(name, CLASS_METRICS)}"
                )
        for line in self.lines:
            try:
                self.changed(line.values)
            except InputError as error:
                raise InputError(f"evaluation.per_task {line.pattern!r}: {error}") from error
        if self.few_shot.is_on and not self.task_metrics:
            raise InputError(
                "evaluation.few_shot needs the task metrics, but evaluation.task_metrics is "
                "False; set --evaluation.task-metrics True"
            )

    @property
    def lines(self) -> tuple[Line, ...]:
        """Parsed lines of `per_task`, with the settings of single tasks."""
        return tuple(map(parse_line, self.per_task))

    def changed(self, values: Mapping[str, Any]) -> "Evaluation":
        """Return the config with one task's evaluation settings from `per_task` applied."""
        own = {name: value for name, value in values.items() if name not in OF_DATA}
        return dataclasses.replace(self, per_task=(), **own)

    @property
    def ranks(self) -> bool:
        """True if labels are ranked instead of decoded for any task."""
        return self.rank or any(line.values.get("rank", False) for line in self.lines)

    @property
    def retrieval_alone(self) -> bool:
        """True if only retrieval is evaluated, so no split of the task is read."""
        return bool(self.retrieval.directory) and not (self.loss or self.task_metrics)
