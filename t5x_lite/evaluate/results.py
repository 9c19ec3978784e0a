"""Results of `t5x-lite evaluate`, the held-out loss, and squared gradients.

Held-out loss, Fisher diagonals and the importance of attention heads.

The diagonal of a Fisher matrix is the mean over examples of squared gradients:

    F = 1/n sum_i (d log p(y_i | x_i) / d theta)^2            empirical: y_i is the label
    F = 1/n sum_i sum_y p(y | x_i) (d log p(y | x_i))^2       expected: all classes y

Each batch has one example, because the square of a sum is not the sum of squares. Source: Sung et
al. 2021, arXiv:2111.09839; Matena and Raffel 2021, arXiv:2111.09832.

The importance of an attention head is the mean over examples of |dL / dmask| at masks of 1:

    I_h = 1/n sum_i | dL(x_i) / dmask_h |

Here too, each batch has one example. `divided` scales the importances of each layer to length 1,
which makes layers comparable. Source: Michel et al. 2019, arXiv:1905.10650, section 4.1.

Output files of `t5x-lite evaluate`.

metrics.json                    metrics; for a mixture also metrics of each task and benchmark;
                                for few-shot prompts also trials and their spread
predictions.jsonl               one object {"inputs", "targets", "prediction"} per line
predictions/glue_rte.jsonl      for a mixture, predictions of each task
classes.jsonl                   for each task with classes: precision, recall and F1 of each class,
                                their averages, and the confusion matrix (rows are targets)
submission/glue/RTE.tsv         file for a benchmark's server
submission/squad_v2.0/          predictions.json and null_odds.json of the evaluated split
rankings.trec                   for retrieval, the ranking of each query, for trec_eval
rankings/WAY.trec               for retrieval with several heads, one file for each way of ranking

For a mixture, --evaluation.best_per_task True evaluates each task with its own best checkpoint
(Raffel et al. 2020, section 3.5). Training keeps these checkpoints (--checkpoints.best
"validation/*/score"), prints them at its end, and lists them in best.json of the work directory.
They are chosen by validation metrics, never by a test split.

`Submissions` writes the files for the servers of GLUE and SuperGLUE:

    submissions = Submissions(suite, settings)          # reads the test files, before any decoding
    submissions.write(directory, chosen)                # answers and writes; raises at its end

If a test file cannot be read, a warning names its task at the start. The files of all other tasks
are written, and then the command ends with an error.
"""

import copy
import dataclasses
import json
import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float

from t5x_lite.config import Evaluation
from t5x_lite.core import trees, workers
from t5x_lite.core.errors import InputError
from t5x_lite.core.files import made_directory, write_atomically
from t5x_lite.core.sharding import put_whole, replicated
from t5x_lite.core.tracking import evaluated_steps
from t5x_lite.core.trees import Array, Batch, Params
from t5x_lite.core.workers import step
from t5x_lite.data.formats import lines
from t5x_lite.data.vocabularies.added_tokens import write_file
from t5x_lite.evaluate import submission
from t5x_lite.evaluate.retrieval import Found, trec_lines
from t5x_lite.evaluate.submission import FORMATS, Written, write
from t5x_lite.evaluate.task_suite import TaskSuite, task_rows
from t5x_lite.inference.checkpoint import Checkpoint
from t5x_lite.inference.generate import between_batches
from t5x_lite.inference.loading import Step, load_using, saved_metrics
from t5x_lite.metrics.benchmarks import (
    SCORE,
    Standing,
    benchmark_scores,
    best_steps,
    best_tasks,
    is_test,
    refuse_test,
    table,
)
from t5x_lite.objectives.base import Loss, metric_value
from t5x_lite.objectives.learner import Learner

_logger = logging.getLogger(__name__)


class LossEvaluator:
    """Evaluator of an objective's loss and metrics over a data split, without dropout.

    Args:
      loss_function: function (params, batch) -> Loss.
      batches: function that starts a new pass over the split; every process reads complete batches.
      mesh: device mesh that splits the rows of a batch.
    """

    def __init__(
        self,
        loss_function: Callable[[Params, Batch], Any],
        batches: Callable[[], Iterable[Mapping[str, np.ndarray]]],
        *,
        mesh: Mesh,
    ):
        self._loss = jax.jit(loss_function, out_shardings=replicated(mesh))
        self._batches = batches
        self._mesh = mesh

    def over(self, batches: Callable[[], Iterable[Mapping[str, np.ndarray]]]) -> "LossEvaluator":
        """Return an evaluator of the same loss function over other batches."""
        other = copy.copy(self)
        other._batches = batches
        return other

    def names(self, params: Any) -> list[str]:
        """Return the names of the metrics, without computing their values."""
        batch = next(iter(self._batches()))
        return ["loss", *jax.eval_shape(self._loss, params, batch).metrics]

    def run(self, params: Params) -> dict[str, float]:
        """Return loss and metrics over all batches; every process gets the same values."""
        sums: Any = None
        with jax.set_mesh(self._mesh):
            for batch in self._batches():
                between_batches()
                loss = self._loss(params, put_whole(batch, self._mesh))
                loss = jax.tree.map(np.float64, jax.device_get(loss))
                sums = loss if sums is None else sums.plus(loss)
                step(len(next(iter(batch.values()))))
        if sums is None:
            raise ValueError("the evaluation split yields no batch, so its loss cannot be computed")
        metrics = {name: metric_value(value) for name, value in sums.metrics.items()}
        return {name: float(value) for name, value in {"loss": sums.value(), **metrics}.items()}


_LABELS = "labels"


def fisher_diagonal(
    loss: Callable[[Params, Batch], Loss],
    params: Params,
    rows: Iterable[Mapping[str, np.ndarray]],
    *,
    part: str = "model",
    classes: int | None = None,
) -> dict[str, np.ndarray]:
    """Return the diagonal of the Fisher information of each parameter array, by its path.

    Args:
      loss: function (params, batch) -> Loss.
      params: parameter tree.
      rows: batches of one example.
      part: top-level key of the parameters to include, such as "model".
      classes: number of classes for the expected diagonal; None computes the empirical diagonal.
    """

    def surprise(own: Any, batch: Batch) -> Array:
        given = loss({**params, part: own}, batch)
        if given.rows:
            raise InputError(
                "a Fisher diagonal requires a loss of single examples, but the loss of this "
                "checkpoint compares examples"
            )
        terms = [term.scale * term.total for term in given.terms.values()]
        return sum(terms[1:], start=terms[0])

    @jax.jit
    def added(total: Any, own: Any, batch: Batch) -> Any:
        if classes is None:
            return jax.tree.map(
                lambda t, g: t + jnp.square(g), total, jax.grad(surprise)(own, batch)
            )
        for label in range(1, classes + 1):
            labelled = {**batch, _LABELS: jnp.asarray(batch[_LABELS]).at[:, 0].set(label)}
            value, gradient = jax.value_and_grad(surprise)(own, labelled)
            chance = jnp.exp(-value)
            total = jax.tree.map(lambda t, g, p=chance: t + p * jnp.square(g), total, gradient)
        return total

    def step(total: Any, row: Batch) -> Any:
        if classes is not None and _LABELS not in row:
            raise InputError(
                "--labels expected requires examples with class labels, but an example has no "
                "label; set --labels empirical"
            )
        return added(total, params[part], row)

    flat = mean_over_examples(step, params[part], rows, what="a Fisher diagonal")
    return {f"{part}/{path}": x for path, x in flat.items()}


def mean_over_examples(
    added: Callable[[Any, Batch], Any],
    like: Params,
    rows: Iterable[Mapping[str, np.ndarray]],
    *,
    what: str,
) -> dict[str, np.ndarray]:
    """Add up arrays over all examples; return their means over the examples, by path."""
    total, number = jax.tree.map(jnp.zeros_like, like), 0
    for row in rows:
        between_batches()
        if any(value.shape[0] != 1 for value in row.values()):
            raise InputError(f"{what} requires batches of 1 example")
        total, number = added(total, dict(row)), number + 1
        workers.step(1)
    if not number:
        raise InputError(f"{what} requires at least one example")
    flat = trees.flatten(total)
    return {path: np.asarray(x) / np.float32(number) for path, x in flat.items()}


def classes_of(learner: Learner) -> int:
    """Return the number of classes of a classifier, or raise InputError for other models."""
    head = learner.heads.get("classifier")
    classes = 0 if head is None else vars(head).get("num_classes", 0)
    if classes < 2:
        raise InputError(
            "--labels expected requires a checkpoint with a classifier of at least two classes; "
            "set --labels empirical"
        )
    return classes


_ADAPTERS = "adapters"


def head_importance(
    loss: Callable[[Params, Batch], Loss],
    params: Params,
    rows: Iterable[Mapping[str, np.ndarray]],
    *,
    name: str = "heads",
) -> dict[str, np.ndarray]:
    """Return the importance of attention heads, from gradients of head masks, by path."""

    def value(masks: Any, batch: Batch) -> Array:
        given = loss({**params, _ADAPTERS: {**params[_ADAPTERS], name: masks}}, batch)
        if given.rows:
            raise InputError(
                "head importance requires a loss of single examples, but the loss of this "
                "checkpoint compares examples"
            )
        return given.value()

    masks = params[_ADAPTERS][name]

    @jax.jit
    def added(total: Any, batch: Batch) -> Any:
        return jax.tree.map(lambda t, g: t + jnp.abs(g), total, jax.grad(value)(masks, batch))

    return mean_over_examples(added, masks, rows, what="the importance of heads")


def divided(importance: Float[np.ndarray, "N H"]) -> Float[np.ndarray, "N H"]:
    """Divide the head importances of each layer by their Euclidean norm."""
    length = np.linalg.norm(importance, axis=-1, keepdims=True)
    return importance / np.where(length == 0, 1, length)


def pruned(importance: Mapping[str, np.ndarray], *, keep: float) -> dict[str, np.ndarray]:
    """Return head masks: 1 for the fraction `keep` of most important heads, 0 for others."""
    paths = sorted(importance)
    scores = np.concatenate([divided(importance[path]).reshape(-1) for path in paths])
    num = max(1, round(keep * scores.size))
    kept = np.zeros(scores.size, np.float32)
    kept[np.argsort(-scores, kind="stable")[:num]] = 1.0
    masks, first = {}, 0
    for path in paths:
        shape = importance[path].shape
        masks[path] = kept[first : first + importance[path].size].reshape(shape)
        first += importance[path].size
    return masks


BEST_FILE = "best.json"
CLASSES_FILE = "classes.jsonl"


class SameParams:
    """Provider of parameters for evaluation, from one checkpoint for all tasks."""

    def __init__(self, params: Params, step: int):
        self._params = params
        self._step = step

    def __call__(self, name: str) -> Params:
        """Return the parameters of the checkpoint, which are the same for every task."""
        del name
        return self._params

    def step(self, name: str) -> int:
        """Return the step of the checkpoint, which is the same for every task."""
        del name
        return self._step


class BestParams(SameParams):
    """Provider of parameters for evaluation, from the best checkpoint of each task."""

    def __init__(
        self, checkpoint: str, steps: Mapping[str, int], *, mesh: Mesh, use: str | None = None
    ):
        self._checkpoint = checkpoint
        self._use = use
        self._steps = steps
        self._mesh = mesh
        self._loaded: tuple[int, Params] | None = None

    @classmethod
    def of(
        cls,
        checkpoints: Sequence[str],
        model: Checkpoint,
        names: Iterable[str],
        *,
        mesh: Mesh,
        step: Step,
        use: str | None = None,
    ) -> "BestParams":
        """Choose the best checkpoint of each task from a work directory."""
        if len(checkpoints) > 1 or step is not None:
            raise InputError(
                "evaluation.best_per_task chooses the step of each task; give one work directory "
                "as --checkpoint, without --step"
            )
        split = model.members[0].experiment.evaluation.split
        refuse_test("evaluation.best_per_task, that is", f"{split}/score")
        directory = model.members[0].directory.parent
        steps = best_steps(saved_metrics(directory), names, split=split)
        return cls(checkpoints[0], steps, mesh=mesh, use=use)

    def __call__(self, name: str) -> Params:
        """Return the parameters of a task's best checkpoint, and load them if necessary."""
        step = self._steps[name]
        if self._loaded is None or self._loaded[0] != step:
            self._loaded = None  # free the memory before the next load
            found = load_using(self._checkpoint, step=step, use=self._use, mesh=self._mesh)
            self._loaded = (step, found.params)
        return self._loaded[1]

    def step(self, name: str) -> int:
        return self._steps[name]


def best_of_run(workdir: Path, *, until: int, split: str) -> str | None:
    """Write best.json, the best step of each task in a mixture, and return it as a text table."""
    tasks = {} if is_test(split) else best_tasks(evaluated_steps(workdir, until=until), split=split)
    if not tasks:
        return None
    content: dict[str, Any] = {
        "tasks": {name: {"step": row.step, **_finite(row.metrics)} for name, row in tasks.items()},
        "benchmarks": benchmark_scores({name: row.metrics for name, row in tasks.items()}),
    }
    write_atomically(workdir / BEST_FILE, (json.dumps(content, indent=1) + "\n").encode())
    return table(tasks)


def _finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}


class Submissions:
    """Submission files for the tasks of a benchmark such as GLUE.

    Attributes:
      names: names of the tasks with a submission file.
      faults: task name -> error, for tasks with an unreadable test file.
    """

    def __init__(self, suite: TaskSuite | None, settings: Evaluation):
        """Read the test files of all tasks, and warn about unreadable files."""
        self._suite = suite
        self.names: list[str] = []
        self.faults: dict[str, str] = {}
        if suite is None or not settings.submission:
            return
        parts = [name for name in suite.submittable() if not suite.is_whole(name)]
        if parts:
            all_of_them = len(parts) == len(suite.submittable())
            named = "" if all_of_them else f" for {', '.join(parts)}"
            _logger.info(
                "skipping submission files%s, because evaluation.max_examples is set", named
            )
        for name in suite.submittable():
            if name in parts:
                continue
            try:
                suite.check_test(name)
            except InputError as error:
                self.faults[name] = str(error)
                _logger.warning("%s: skipping the submission file, because %s", name, error)
            else:
                self.names.append(name)

    def files(self, directory: Path) -> list[Path]:
        """Return the paths of the submission files that already exist in a directory."""
        formats = [FORMATS[name] for name in self.names]
        paths = [directory / form.benchmark.lower() / form.file for form in formats]
        return [path for path in paths if path.is_file()]

    def write(self, directory: Path, chosen: SameParams) -> None:
        """Predict the test splits, and write submission files on the first process."""
        written, faults = 0, dict(self.faults)
        for name in sorted(self.names, key=chosen.step):
            assert self._suite is not None
            submission = FORMATS[name]
            try:
                answers = self._suite.answers(name, chosen(name))
                if answers is None or jax.process_index():
                    continue
                folder = directory / submission.benchmark.lower()
                _tell(write(submission, answers, folder), submission.rows)
            except InputError as error:
                faults[name] = str(error)
            else:
                written += 1
        if faults:
            raise InputError(_told(faults, written, directory))


def _told(faults: dict[str, str], written: int, directory: Path) -> str:
    files = [directory / FORMATS[name].benchmark.lower() / FORMATS[name].file for name in faults]
    old = [str(file) for file in files if file.exists()]
    reasons = "; ".join(f"{name}: {reason}" for name, reason in faults.items())
    total = len(faults) + written
    return f"{len(faults)} of {total} submission files could not be written ({reasons})" + (
        f"; files of an earlier command remain: {', '.join(old)}" if old else ""
    )


def _tell(written: Written, official: int | None) -> None:
    _logger.info("wrote %s with %d rows", written.path, written.rows)
    if written.invalid:
        _logger.warning(
            "%s: %d predictions were not valid labels; wrote the default label %s instead",
            written.path,
            written.invalid,
            written.default,
        )
    if not written.official:
        _logger.warning(
            "%s has %d rows, but the official test set has %d; the server will reject the file",
            written.path,
            written.rows,
            official,
        )


def check_output(directory: Path) -> None:
    """Raise InputError if an output directory cannot be created or written."""
    if directory.exists() and not directory.is_dir():
        raise InputError(f"--output {directory} is not a directory")
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise InputError(
            f"--output {directory} cannot be written, because {existing} is not writable"
        )


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Result of an evaluation.

    Attributes:
      suite: evaluated tasks; None if no task was evaluated.
      settings: evaluation config.
      metrics: "<split>/<name>" -> value.
      chosen: provider of the checkpoint that evaluated each task.
      submissions: submission files that `write` writes.
      rankings: ranking method -> query -> ranked documents; "" is the method without heads.
    """

    suite: TaskSuite | None
    settings: Evaluation
    metrics: Mapping[str, float]
    chosen: SameParams
    submissions: Submissions
    rankings: Mapping[str, Mapping[str, Sequence[Found]]] = dataclasses.field(default_factory=dict)

    def tell(self) -> None:
        """Log invalid predictions, few-shot results and metric tables, on the first process."""
        if self.suite is None or jax.process_index():
            return
        for name, number in self.suite.invalid().items():
            if number:
                total = len(self.suite.evaluators[name].samples)
                _logger.info(
                    "%s: %d of %d predictions were not valid labels and count as wrong",
                    name,
                    number,
                    total,
                )
        for line in self.suite.trials.lines():
            _logger.info("%s", line)
        # Class tables of many tasks would hide the mixture's table; classes.jsonl has them.
        for name, classes in ({} if self.suite.is_mixture else self.suite.class_tables()).items():
            _logger.info("%s: metrics of each class\n%s", name, classes)
        if self.suite.is_mixture:
            own = {
                name: {m: v for m, v in row.items() if m not in _NOT_METRICS}
                for name, row in self._rows().items()
            }
            standings = {n: Standing(step=self.chosen.step(n), metrics=m) for n, m in own.items()}
            _logger.info("%s", table(standings))

    def _rows(self) -> dict[str, dict[str, Any]]:
        assert self.suite is not None
        beginning = f"{self.settings.split}/"
        metrics = {name.removeprefix(beginning): value for name, value in self.metrics.items()}
        steps = {name: self.chosen.step(name) for name in self.suite.evaluators}
        return task_rows(self.suite, metrics, steps=steps)

    def write(self, directory: Path, summary: Mapping[str, Any]) -> None:
        """Write all result files, and predict the test splits for submission files."""
        if jax.process_index() == 0:
            with (
                made_directory(directory),
                lines.writer(str(directory / "metrics.json")) as file,
            ):
                file.write({**summary, **self._more()})
            self._write_predictions(directory)
            if self.suite is not None and (rows := class_lines(self.suite, self.chosen.step)):
                write_atomically(directory / CLASSES_FILE, rows)
            self._write_squad(directory / "submission")
            for way, rankings in self.rankings.items():
                path = directory / (f"rankings/{way}.trec" if way else "rankings.trec")
                path.parent.mkdir(exist_ok=True)
                write_file("".join(trec_lines(rankings)).encode(), path)
            _logger.info("wrote %s/metrics.json and the other result files", directory)
        self.submissions.write(directory / "submission", self.chosen)

    def _more(self) -> dict[str, Any]:
        if self.suite is None:
            return {}
        more = self.suite.trials.details()
        if self.settings.bootstrap:
            more["intervals"] = {
                f"{self.settings.split}/{name + '/' if self.suite.is_mixture else ''}{metric}": ends
                for name, evaluator in self.suite.evaluators.items()
                for metric, ends in evaluator.intervals(samples=self.settings.bootstrap).items()
            }
        if not self.suite.is_mixture:
            counts = self.suite.invalid().values()
            return more | ({"invalid_predictions": sum(counts)} if counts else {})
        rows = self._rows()
        own = {
            name: {m: v for m, v in row.items() if m not in _NOT_METRICS}
            for name, row in rows.items()
        }
        return more | {"tasks": rows, "benchmarks": benchmark_scores(own)}

    def _write_predictions(self, directory: Path) -> None:
        if self.suite is None:
            return
        for name, evaluator in self.suite.evaluators.items():
            path = directory / "predictions.jsonl"
            if self.suite.is_mixture:
                path = directory / "predictions" / f"{name}.jsonl"
                path.parent.mkdir(exist_ok=True)
            with lines.writer(str(path)) as file:
                file.write(*(dataclasses.asdict(sample) for sample in evaluator.samples))

    def _write_squad(self, directory: Path) -> None:
        settings = self.settings
        if self.suite is None or not settings.submission:
            return
        for name, evaluator in self.suite.evaluators.items():
            if name in submission.FOLDERS and self.suite.is_whole(name):
                folder = directory / submission.FOLDERS[name]
                for path in submission.write_squad(evaluator.answers(), folder):
                    _logger.info("wrote %s", path)


def class_lines(suite: TaskSuite, step: Callable[[str], int]) -> bytes:
    """Return the content of classes.jsonl: per-class metrics, one line per classification task.

    Args:
      suite: evaluated tasks.
      step: function that returns the step of the checkpoint that evaluated a task.
    """
    rows = ({"step": step(n), "task": n, **t.to_json()} for n, t in suite.class_tables().items())
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


_NOT_METRICS = ("step", "invalid_predictions", SCORE)
