"""Parts of an experiment: evaluation, early stopping, profiling; and checks of config fields.

Checks of config fields, and the parser of `evaluation.per_task`.

A line of `evaluation.per_task` has settings for the tasks that match a name or a pattern:

    parse_line("wmt_*: num_beams=4, length_penalty=0.6")
    # Line(pattern="wmt_*", values={"num_beams": 4, "length_penalty": 0.6})

A line is read by Python's `ast` and never executed. If several lines match a task, later lines
override earlier ones. All other settings are the evaluation's.

Early stopping and profiling of a run.

Early stopping: training ends when a metric has not improved for several evaluations.

    patience = Patience(EarlyStopping(metric="validation/loss", patience=2))
    for loss in (3.0, 2.0, 2.5, 2.25):
        patience.add({"validation/loss": loss})
    patience.exhausted          # True: two evaluations without improvement

Checkpoints store no state of early stopping. A resumed run replays the evaluations in
metrics.jsonl, so it ends at the same step as an uninterrupted run.

JAX's profiler traces chosen steps, for TensorBoard, XProf or Perfetto:

    with Capture(Profile(start=100, steps=3), "work/run/profile") as capture:
        for step in range(1, 1001):
            capture.before(step)
            state, metrics = train_step(state, batch)
            capture.after(step, metrics)

Every process writes the trace of its devices.

Evaluation settings of an `Experiment`: metrics, decoding and retrieval.
"""

import ast
import dataclasses
import fnmatch
import functools
import math
import os
import shutil
import tempfile
import types
import typing
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import jax

from t5x_lite.core.errors import InputError, shown
from t5x_lite.core.options import (
    AtLeast,
    Count,
    OptionalCount,
    Whole,
    check_bounds,
    did_you_mean,
    is_config,
)
from t5x_lite.core.remote import is_remote, open_path
from t5x_lite.data.few_shot import FewShot
from t5x_lite.metrics.benchmarks import Mode, mode_of, refuse_test
from t5x_lite.metrics.classification import CLASS_METRICS
from t5x_lite.models.vector_heads import Pooling


def check_given(where: str, config: Any) -> None:
    """Raise InputError if a required config field has the value None, at any depth.

    Args:
      where: dotted name of the config, for the error; "" for the root.
      config: a dataclass, a tuple or a value.
    """
    if is_config(config):
        required = _required(type(config))
        for field in dataclasses.fields(config):
            name = f"{where}.{field.name}" if where else field.name
            value = getattr(config, field.name)
            if value is None and field.name in required:
                raise InputError(f"{name} must have a value, got None")
            check_given(name, value)
    elif isinstance(config, tuple):
        for number, each in enumerate(config):
            check_given(f"{where}.{number}", each)


@functools.cache
def _required(config: type) -> frozenset[str]:
    try:
        hints = typing.get_type_hints(config)
    except NameError:  # a config of a user, with names that only a type checker reads
        return frozenset()
    return frozenset(name for name, hint in hints.items() if not _takes_none(hint))


def _takes_none(hint: Any) -> bool:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return any(_takes_none(each) for each in typing.get_args(hint))
    return hint in (type(None), Any, object) or isinstance(hint, typing.TypeVar)


def check_numbers(where: str, config: Any) -> None:
    """Raise InputError if an integer in a config is out of range, at any depth.

    Shapes, steps and indices have 32 bits. Seeds and numbers of bytes have 64 bits.

    Args:
      where: dotted name of the config, for the error; "" for the root.
      config: a dataclass, a tuple or a value.
    """
    if is_config(config):
        for field in dataclasses.fields(config):
            name = f"{where}.{field.name}" if where else field.name
            check_numbers(name, getattr(config, field.name))
    elif isinstance(config, tuple):
        for number, each in enumerate(config):
            check_numbers(f"{where}.{number}", each)
    elif isinstance(config, int):
        long = any(word in where.rpartition(".")[2] for word in _LONG)
        bits = 63 if long else 31
        if abs(config) >= 1 << bits:
            raise InputError(f"{where} must be below 2^{bits}, got {shown(config)}")


_LONG = ("seed", "bytes", "tokens")


FIELDS: dict[str, tuple[type, ...]] = {
    "num_beams": (int,),
    "length_penalty": (float, type(None)),
    "max_decode_length": (int,),
    "rank": (bool,),
    "max_examples": (int, type(None)),
    "batch_size": (int, type(None)),
    "inputs_length": (int,),
    "examples_of": (str,),
}
"""Types of the value of each setting in `evaluation.per_task`."""

OF_DATA = ("inputs_length", "examples_of")
"""Settings in `evaluation.per_task` that change the examples, not the evaluation."""

_TYPES = {
    int: "a whole number",
    bool: "True or False",
    float: "a number",
    str: "a string",
    type(None): "None",
}


@dataclasses.dataclass(frozen=True)
class Line:
    """Parsed line of `evaluation.per_task`: settings for the tasks that match a pattern.

    Attributes:
      pattern: task name; * matches any letters, ? one letter.
      values: settings by name.
    """

    pattern: str
    values: Mapping[str, Any]

    def matches(self, names: Sequence[str]) -> bool:
        """Return True if the pattern matches one of the names."""
        return any(fnmatch.fnmatchcase(name, self.pattern) for name in names)


def parse_line(text: str) -> Line:
    """Parse a line of `evaluation.per_task`: "PATTERN: SETTING=VALUE, SETTING=VALUE".

    Raises:
      InputError: if the syntax is wrong, a setting is unknown, or a value has the wrong type.
    """
    first, equals, rest = text.partition("=")  # values and patterns may contain colons
    pattern, colon, name = first.rpartition(":")
    settings = name + equals + rest
    if not colon or not pattern.strip():
        raise InputError(
            f"evaluation.per_task must be PATTERN: SETTING=VALUE, ..., such as 'wmt_*: "
            f"num_beams=4', got {text!r}"
        )
    where = f"evaluation.per_task {pattern.strip()!r}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SyntaxWarning
            node = ast.parse(f"settings({settings})", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        node = None
    if not isinstance(node, ast.Call) or node.args or not node.keywords:
        raise InputError(f"{where}: expected SETTING=VALUE, ..., got {settings.strip()!r}")
    values: dict[str, Any] = {}
    for keyword in node.keywords:
        name, value = _setting(keyword, where=where)
        if name in values:
            raise InputError(f"{where}: setting {name} is given twice")
        values[name] = value
    if values.get("inputs_length", 1) < 1:
        raise InputError(
            f"{where}: inputs_length must be at least 1, got {values['inputs_length']}"
        )
    return Line(pattern.strip(), values)


def _setting(keyword: ast.keyword, *, where: str) -> tuple[str, Any]:
    """Parse one SETTING=VALUE into its name and value."""
    name = str(keyword.arg)
    if name not in FIELDS:
        raise InputError(
            f"{where} has no setting {name}{did_you_mean(name, FIELDS)}; the settings are "
            f"{', '.join(FIELDS)}"
        )
    try:
        value = ast.literal_eval(keyword.value)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        value = ...
    if float in FIELDS[name] and type(value) is int:
        value = float(value)
    if type(value) not in FIELDS[name]:
        wanted = [_TYPES[each] for each in FIELDS[name]]
        raise InputError(
            f"{where}: setting {name} must be {' or '.join(wanted)}, got "
            f"{ast.unparse(keyword.value)}"
        )
    return name, value


@dataclasses.dataclass(frozen=True, kw_only=True)
class EarlyStopping:
    """Criterion for ending training before its last step.

    Attributes:
      metric: metric of the evaluation to watch, such as "validation/loss"; None never ends early.
        Metrics of a test split are rejected.
      mode: "max" if high values are better, or "min". None selects min for losses, cross entropies,
        perplexities and errors, else max.
      patience: number of consecutive evaluations without improvement that end training.
      min_delta: minimum improvement; smaller or equal changes do not count.
    """

    metric: str | None = None
    mode: Mode | None = None
    patience: Count = 3
    min_delta: Annotated[float, AtLeast(0)] = 0.0

    def __post_init__(self) -> None:
        check_bounds(self, prefix="stop_early.")
        refuse_test("stop_early.metric", self.metric)


class Patience:
    """Counter of consecutive evaluations without improvement, for early stopping."""

    def __init__(self, config: EarlyStopping, history: Iterable[Mapping[str, float]] = ()) -> None:
        """Start from the earlier evaluations of a resumed run, oldest first."""
        self._config = config
        self._sign = 1 if mode_of(config.metric or "", config.mode) == "min" else -1
        self._best = math.inf
        self._waited = 0
        for metrics in history:
            if config.metric in metrics:
                self.add(metrics)

    def add(self, metrics: Mapping[str, float]) -> None:
        """Record an evaluation, and count it if the watched metric did not improve.

        Raises:
          InputError: if the watched metric is missing.
        """
        name = self._config.metric
        if name is None:
            return
        if name not in metrics:
            raise InputError(
                f"stop_early.metric is {name!r}, but the evaluation has the metrics "
                f"{', '.join(metrics) or 'none'}"
            )
        value = self._sign * metrics[name]
        if math.isfinite(value) and value < self._best - self._config.min_delta:
            self._best = value
            self._waited = 0
        else:
            self._waited += 1

    @property
    def exhausted(self) -> bool:
        """True if training should end because the metric no longer improves."""
        return self._waited >= self._config.patience

    @property
    def reason(self) -> str:
        """Log message with the reason to end training early, or ""."""
        return str(self) if self.exhausted else ""

    def __str__(self) -> str:
        name, best = self._config.metric, self._sign * self._best
        return f"{name} has not improved for {self._waited} evaluations (best {best:.4f})"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Profile:
    """Steps of a run to trace with JAX's profiler.

    Attributes:
      start: first traced step, counted as in the log; None disables tracing.
      steps: number of traced steps; traces of more than a few steps are large.
    """

    start: OptionalCount = None
    steps: Count = 3

    def __post_init__(self) -> None:
        check_bounds(self, prefix="profile.")


class Capture:
    """Context manager that traces steps of a run with JAX's profiler."""

    def __init__(self, profile: Profile, directory: str | os.PathLike) -> None:
        """Prepare the trace without starting it.

        Args:
          profile: steps to trace.
          directory: output directory of plugins/profile/DATE/HOST.xplane.pb; created if missing. It
            may be in a bucket (gs://); the trace is then copied there.
        """
        first = profile.start if profile.start is not None else 0
        self._steps = range(first, first + profile.steps if first else 0)
        self.directory = os.fspath(directory)
        self._local: str | None = None

    def __enter__(self) -> "Capture":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._local is not None:
            self._stop()

    def before(self, step: int) -> None:
        """Start the trace if the given step is the first step to trace."""
        if step in self._steps and self._local is None:
            remote = is_remote(self.directory)
            self._local = tempfile.mkdtemp() if remote else self.directory
            jax.profiler.start_trace(self._local)

    def after(self, step: int, results: Any) -> bool:
        """End the trace if the given step is the last step to trace.

        Args:
          step: number of the step that was just dispatched to the devices.
          results: arrays of the step; the call waits for them.

        Returns:
          True if a trace was written.
        """
        if self._local is None or step + 1 in self._steps:
            return False
        jax.block_until_ready(results)
        self._stop()
        return True

    def _stop(self) -> None:
        local, self._local = str(self._local), None
        jax.profiler.stop_trace()
        if local != self.directory:
            _copy(Path(local), self.directory)
            shutil.rmtree(local, ignore_errors=True)


def _copy(local: Path, directory: str) -> None:
    for path in sorted(local.rglob("*")):
        if path.is_file():
            target = open_path(directory) / path.relative_to(local).as_posix()
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())


NAMES = ("dense", "lexical", "multi_vector", "dense_lexical", "all")
_NEEDS = {
    "dense_lexical": ("dense", "lexical"),
    "multi_vector": ("dense", "multi_vector"),
    "all": ("dense", "lexical", "multi_vector"),
}

SameIds = Literal["auto", "keep", "drop"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ways:
    """Rankings of a retrieval evaluation, such as "dense", "lexical" and "all" (a weighted sum).

    Attributes:
      names: names of the rankings.
      weights: weights of the dense, lexical and multi-vector scores in the ranking "all".
      pair_weights: weights of the dense and lexical scores in the ranking "dense_lexical".
      depth: maximum documents that each head selects, and maximum documents of a ranking.
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
                raise InputError(
                    f"the names of rankings in ways must be among {', '.join(NAMES)}, got {name!r}"
                )
        check_bounds(self)

    @property
    def heads(self) -> tuple[str, ...]:
        """Names of the encoder heads that compute the scores of the rankings."""
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
      query_length: maximum tokens of a query; None is data.inputs_length of the training. For an
        import, None is max_seq_length, or 512 without one.
      document_length: maximum tokens of a document; None is data.targets_length of the training if
        its data.layout is Groups(), and otherwise as for query_length.
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
        """Return the config of the rankings to evaluate, with the weights of their scores."""
        return Ways(names=self.ways, weights=self.weights, pair_weights=self.pair_weights)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Settings of the evaluation during training and by `t5x-lite evaluate`.

    Attributes:
      period: steps between two evaluations; the last step always has one.
      split: split of the task to evaluate.
      loss: True to compute the held-out loss.
      max_batches: maximum batches of the held-out loss; None uses the whole split.
      loss_of_each_cache: True to also report the held-out loss of each directory in data.cache,
        under the name of the directory, such as "validation/en/loss".
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
        """Parsed lines of `per_task`."""
        return tuple(map(parse_line, self.per_task))

    def changed(self, values: Mapping[str, Any]) -> "Evaluation":
        """Return a copy of this config with settings replaced for a single task."""
        own = {name: value for name, value in values.items() if name not in OF_DATA}
        return dataclasses.replace(self, per_task=(), **own)

    @property
    def ranks(self) -> bool:
        """True if the evaluation of at least one task ranks labels instead of decoding text."""
        return self.rank or any(line.values.get("rank", False) for line in self.lines)

    @property
    def retrieval_alone(self) -> bool:
        """True if the evaluation consists only of retrieval."""
        return bool(self.retrieval.directory) and not (self.loss or self.task_metrics)
