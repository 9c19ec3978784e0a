"""Evaluation during training, and `t5x-lite evaluate`."""

import dataclasses
import functools
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from t5x_lite.checkpoints import reading as checkpointing
from t5x_lite.config import Experiment
from t5x_lite.config.batches import check_batch, check_lengths
from t5x_lite.core import sharding
from t5x_lite.core.devices import matmul_precision
from t5x_lite.core.errors import InputError
from t5x_lite.core.object_store import BucketError, data_path
from t5x_lite.core.options import suggesting
from t5x_lite.core.remote import local_path
from t5x_lite.core.trees import Params
from t5x_lite.core.workers import counting, print_result
from t5x_lite.data import batches as data_batches
from t5x_lite.data.config import Data, wording_of
from t5x_lite.data.vocabularies.byte_level import NAMES as BYTES_NAMES
from t5x_lite.data.vocabularies.loading import Vocabulary, load_vocabulary
from t5x_lite.data.vocabularies.tokenizer import Tokenizer
from t5x_lite.evaluate.results import (
    CLASSES_FILE,
    BestParams,
    LossEvaluator,
    Outcome,
    SameParams,
    Submissions,
    check_output,
    class_lines,
)
from t5x_lite.evaluate.retrieval import RetrievalEvaluator, retrieval_evaluator
from t5x_lite.evaluate.task_suite import TaskSuite
from t5x_lite.inference.checkpoint import Checkpoint
from t5x_lite.inference.generate import Bind, Stopped, TaskEvaluator, stopping_on
from t5x_lite.inference.loading import Loaded, Step
from t5x_lite.objectives.learner import Learner
from t5x_lite.train import hosts
from t5x_lite.train.loop import Evaluate
from t5x_lite.train.stopping import StopSignals

_logger = logging.getLogger(__name__)


class Measurement:
    """Evaluator of a config: held-out loss, task metrics and retrieval metrics.

    Args:
      experiment: experiment config with the evaluation settings.
      learner: model and objective to evaluate.
      vocabulary: vocabulary of the data.
      mesh: device mesh.
      workdir: directory in which process 0 appends to samples.jsonl and classes.jsonl; None writes
        no file.
      ensemble: models that predict together, instead of the learner's model; their held-out loss is
        not computed.
    """

    def __init__(
        self,
        experiment: Experiment,
        learner: Learner,
        vocabulary: Vocabulary,
        *,
        mesh: Mesh,
        workdir: Path | None,
        ensemble: Bind | None = None,
    ):
        data, settings = experiment.data, experiment.evaluation
        self._settings = settings
        self._workdir = workdir
        self._loss: LossEvaluator | None = None
        self.retrieval: RetrievalEvaluator | None = None
        self.suite: TaskSuite | None = None
        self._of_caches: dict[str, LossEvaluator] = {}
        if settings.loss and ensemble is None:

            def batches(data: Data) -> Callable[[], Iterable[Mapping[str, np.ndarray]]]:
                return functools.partial(
                    data_batches.eval_batches,
                    data,
                    vocabulary,
                    split=settings.split,
                    max_batches=settings.max_batches,
                )

            self._loss = LossEvaluator(learner.whole_loss, batches(data), mesh=mesh)
            if settings.loss_of_each_cache:
                from t5x_lite.data.scheduled import each_cache

                for name, alone in each_cache(data, split=settings.split).items():
                    self._of_caches[name] = self._loss.over(batches(alone))
        if settings.retrieval.directory:
            if ensemble is not None:
                raise InputError(
                    "evaluation.retrieval does not support several checkpoints (an ensemble); "
                    "give a single --checkpoint"
                )
            self.retrieval = retrieval_evaluator(
                experiment,
                learner,
                vocabulary,
                settings.retrieval,
                split=settings.split,
                batch_size=settings.batch_size or data.batch_size,
                mesh=mesh,
            )
            if not settings.task_metrics:
                return  # only the documents are needed: no task, and no TensorFlow
        has_metrics = settings.task_metrics and (
            not data.cache or data_batches.has_task_metrics(data)
        )
        if data.cache and not settings.ranks and not has_metrics:
            return  # the task is not needed, and TensorFlow may be missing
        bind = learner.bind_model if ensemble is None else ensemble
        self.suite = TaskSuite(
            experiment,
            vocabulary,
            bind=bind,
            mesh=mesh,
            learner=learner.bind if ensemble is None else None,
        )
        if self._loss is not None and self.suite.unlabelled:
            names = ", ".join(self.suite.unlabelled)
            _logger.info("skipping the held-out loss, because %s has no labels", names)
            self._loss = None
        if self._loss is not None and not self.suite.in_order():
            _logger.info(
                "skipping the held-out loss, because head and task order the classes differently"
            )
            self._loss = None

    @property
    def evaluators(self) -> Mapping[str, TaskEvaluator]:
        """Evaluators of the tasks that have metrics, by task name."""
        return {} if self.suite is None else self.suite.evaluators

    def names(self, params: Any) -> list[str]:
        """Return the names of all metrics, without computing them."""
        found: list[str] = []
        if self._loss is not None:
            found += self._loss.names(params)
            found += [f"{name}/loss" for name in self._of_caches]
        if self.suite is not None:
            found += self.suite.names()
        if self.retrieval is not None:
            found += self.retrieval.names()
        return [f"{self._settings.split}/{name}" for name in dict.fromkeys(found)]

    def __call__(
        self, step: int, params: Params, *, tasks: Callable[[str], Params] | None = None
    ) -> dict[str, float]:
        """Return the metrics of a step by name "<split>/<name>"; equal on all processes."""
        result: dict[str, float] = {}
        if self._loss is not None:
            result |= self._loss.run(params)
            for name, of_cache in self._of_caches.items():
                result[f"{name}/loss"] = of_cache.run(params)["loss"]
        if self.suite is not None:
            # The task's own metric replaces a token accuracy of the same name.
            result |= self.suite.run(params if tasks is None else tasks)
            self._write_samples(step)
        if self.retrieval is not None:
            result |= self.retrieval.run(params)
        return {f"{self._settings.split}/{name}": value for name, value in result.items()}

    def _write_samples(self, step: int) -> None:
        if self._workdir is None or not self.evaluators or jax.process_index() > 0:
            return
        assert self.suite is not None
        number = self._settings.num_samples
        if self.suite.is_mixture:
            number = -(-number // len(self.evaluators))  # samples of each task
        lines = [
            json.dumps({"step": step, **named, **dataclasses.asdict(s)}, ensure_ascii=False) + "\n"
            for name, evaluator in self.evaluators.items()
            for named in [{"task": name} if self.suite.is_mixture else {}]
            for s in evaluator.samples[:number]
        ]
        files = {
            "samples.jsonl": "".join(lines).encode(),
            CLASSES_FILE: class_lines(self.suite, lambda name: step),
        }
        for name, content in files.items():
            if not content and name == CLASSES_FILE:
                continue
            # One system call, so that a killed run leaves no partial line.
            with (self._workdir / name).open("ab", buffering=0) as file:
                file.write(content)


def until_stopped(measurement: Measurement, stop: StopSignals, *, mesh: Mesh) -> Evaluate:
    """Wrap a Measurement in a function that returns None if a signal interrupts it."""

    def measure(step: int, params: Params) -> dict[str, float] | None:
        try:
            with stopping_on(lambda: stop.requested(mesh) is not None):
                return measurement(step, params)
        except Stopped:
            return None

    return measure


@suggesting
def evaluate(
    experiment: Experiment,
    checkpoints: Sequence[str],
    *,
    step: Step = None,
    use: str | None = None,
    output: str | None = None,
) -> dict[str, float]:
    """Evaluate a checkpoint on a config's task or mixture, and print the metrics as JSON.

    For a mixture, every task with data is evaluated, and a table of the tasks is logged. All
    processes evaluate together, and the first one prints and writes.
    """
    hosts.join(experiment.hosts)
    with (
        hosts.ending_together(),
        matmul_precision(experiment.matmul_precision),
    ):
        if use is None:
            use = experiment.adapters.use.strip() or None
        return _evaluate(experiment, checkpoints, step=step, use=use, output=output)


def _evaluate(
    experiment: Experiment,
    checkpoints: Sequence[str],
    *,
    step: Step,
    use: str | None,
    output: str | None,
) -> dict[str, float]:
    settings = experiment.evaluation
    if not (settings.loss or settings.task_metrics or settings.retrieval.directory):
        raise InputError(
            "the config has nothing to evaluate; pass --evaluation.retrieval.directory DIR, or set "
            "--evaluation.loss True or --evaluation.task-metrics True"
        )
    if output is not None:
        check_output(local_path(output, what="--output"))
    mesh = sharding.make_mesh(experiment.mesh)
    check_batch(experiment, mesh)
    hosts.check_agreement(
        experiment, checkpoints=list(checkpoints), step=step, use=use, output=output
    )
    loaded = Checkpoint.load(checkpoints, step=step, use=use, mesh=mesh)
    model = as_configured(loaded, experiment)
    if not experiment.evaluation.retrieval_alone:
        _check_vocabulary(experiment, model)
    hosts.check_agreement(
        experiment,
        checkpoints=[[member.step, member.vocabulary.digest] for member in model.members],
    )
    first, several = model.members[0], len(model.members) > 1
    measurement = Measurement(
        first.experiment,
        first.learner,
        model.vocabulary,
        mesh=mesh,
        workdir=None,
        ensemble=model.bind if several else None,
    )
    if measurement.suite is not None:
        measurement.suite.names()  # raises an error for a missing package before decoding
    if several and not measurement.evaluators:
        raise InputError(
            f"data.task {experiment.data.task!r} has no metrics, and a held-out loss is not "
            "supported for several checkpoints (an ensemble); give a single --checkpoint"
        )
    if several and experiment.evaluation.loss:
        _logger.info(
            "computing only task metrics, because a held-out loss is not supported for several "
            "checkpoints (an ensemble)"
        )
    chosen = SameParams(model.params, first.step)
    if experiment.evaluation.best_per_task:
        names = measurement.suite.sources if measurement.suite is not None else ()
        chosen = BestParams.of(checkpoints, loaded, names, mesh=mesh, step=step, use=use)
    written = dataclasses.replace(settings, submission=settings.submission and output is not None)
    submissions = Submissions(measurement.suite, written)
    if measurement.suite is not None:
        measurement.suite.tell_unknown()
    with counting("evaluating", unit="examples", steps=True):
        metrics = measurement(first.step, model.params, tasks=chosen)
    steps: Any = [member.step for member in model.members] if several else first.step
    summary = {"step": steps, **metrics}
    if jax.process_index() == 0:
        rows = [{"metric": name, "value": value} for name, value in summary.items()]
        print_result(summary, rows, indent=None)
    outcome = Outcome(
        measurement.suite,
        experiment.evaluation,
        metrics,
        chosen,
        submissions,
        rankings=measurement.retrieval.runs if measurement.retrieval is not None else {},
    )
    outcome.tell()
    if output is not None:
        outcome.write(Path(output), summary)
    return metrics


def as_configured(model: Checkpoint, experiment: Experiment) -> Checkpoint:
    """Return a checkpoint with the data, evaluation and dtype settings of an experiment.

    If only retrieval is evaluated, the checkpoint keeps its own data settings.
    """
    members = []
    for member in model.members:
        own = member.experiment
        measured = dataclasses.replace(
            own,
            data=own.data if experiment.evaluation.retrieval_alone else experiment.data,
            evaluation=experiment.evaluation,
            compute_dtype=experiment.compute_dtype,
        )
        if not experiment.evaluation.retrieval_alone:
            check_lengths(measured)
            _tell_other_words(member, experiment.data)
        learner = dataclasses.replace(member.learner, dtype=measured.compute_dtype)
        members.append(dataclasses.replace(member, experiment=measured, learner=learner))
    return dataclasses.replace(model, members=tuple(members))


def _tell_other_words(member: Loaded, data: Data) -> None:
    """Warn if a data config formats inputs differently than the config of a loaded checkpoint."""
    own, vocabulary = member.experiment.data, member.vocabulary
    if own.layout.ending(vocabulary) != data.layout.ending(vocabulary):
        _logger.warning(
            "checkpoint %s was trained with data.layout %s, but is evaluated with %s, which ends "
            "inputs differently",
            member.directory,
            own.layout,
            data.layout,
        )
    if own.task == data.task and wording_of(own) != wording_of(data):
        _logger.warning(
            "checkpoint %s was trained with data.template %r and data.prefix %r, but is evaluated "
            "with %r and %r",
            *(member.directory, own.template, own.prefix, data.template, data.prefix),
        )


def is_there(path: str) -> bool:
    """Return True if a path exists and is accessible."""
    try:
        return data_path(path).exists()
    except (InputError, BucketError):
        return False


def _check_vocabulary(experiment: Experiment, model: Checkpoint) -> None:
    data, directory = experiment.data, model.members[0].directory
    if data.vocabulary not in BYTES_NAMES and not is_there(data.vocabulary):
        _logger.info(
            "data.vocabulary %s does not exist here; using the vocabulary of checkpoint %s",
            data.vocabulary,
            directory,
        )
        return
    given = load_vocabulary(data.vocabulary, extra_ids=data.extra_ids)
    is_same = isinstance(given, Tokenizer) and given.has_the_ids_of(model.vocabulary)
    if given.digest != model.vocabulary.digest and not is_same:
        raise InputError(
            f"the vocabulary {data.vocabulary} differs from the vocabulary of the checkpoint "
            f"{directory}; use --data.vocabulary "
            f"{directory / 'files' / checkpointing.VOCABULARY_DIRECTORY}"
        )
