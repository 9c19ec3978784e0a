"""`t5x-lite evaluate`, and what training measures on the way."""

import dataclasses
import functools
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from t5x_lite import checkpoints as checkpointing
from t5x_lite import sharding
from t5x_lite.config import Evaluation, Experiment
from t5x_lite.data import json_lines
from t5x_lite.data.bytes_vocabulary import NAMES as BYTES_NAMES
from t5x_lite.data.vocabulary import Vocabulary, load_vocabulary
from t5x_lite.decoding.config import Decoding
from t5x_lite.evaluate.generate import Bind, Generator, TaskEvaluator
from t5x_lite.evaluate.loss import LossEvaluator
from t5x_lite.evaluate.rank import LabelGenerator, Ranker
from t5x_lite.evaluate.score import Scorer
from t5x_lite.run import hosts
from t5x_lite.run.parts import Parts, check_batch
from t5x_lite.run.text_to_text import TextToText
from t5x_lite.types import InputError, Params

_logger = logging.getLogger(__name__)


class Measurement:
    """The held-out loss and the task's metrics that a config asks for.

    Args:
      parts: the learner.
      vocabulary: of the data.
      mesh: where batches go.
      workdir: samples are appended to its samples.jsonl, by process 0; None writes none.
      ensemble: what answers in place of the learner's own model; it has no held-out loss.
    """

    def __init__(
        self,
        parts: Parts,
        vocabulary: Vocabulary,
        *,
        mesh: Mesh,
        workdir: Path | None,
        ensemble: Bind | None = None,
    ):
        data, settings = parts.experiment.data, parts.experiment.evaluation
        if data.cache:
            from t5x_lite.data import cached as source
        else:
            from t5x_lite.data import pipeline as source
        self._settings = settings
        self._workdir = workdir
        self._loss: LossEvaluator | None = None
        self.task: TaskEvaluator | None = None
        if settings.loss and ensemble is None:
            self._loss = LossEvaluator(
                parts.loss,
                functools.partial(
                    source.eval_batches,
                    data,
                    vocabulary,
                    split=settings.split,
                    max_batches=settings.max_batches,
                ),
                mesh=mesh,
            )
        if data.cache:
            from t5x_lite.data import cached

            if not settings.rank and not (settings.task_metrics and cached.has_task_metrics(data)):
                return  # the task is not needed, and TensorFlow may be missing
        from t5x_lite.data import pipeline

        task = pipeline.load_task(data, vocabulary)
        postprocess, metrics = pipeline.task_metrics(task)
        if settings.rank and pipeline.task_labels(task) is None:
            raise InputError(
                f"evaluation.rank: data.task {data.task!r} has no closed set of labels to rank "
                "(the attribute labels of its postprocess_fn); set --evaluation.rank False"
            )
        if settings.task_metrics and metrics:
            generator = _generator(
                parts.bind_model if ensemble is None else ensemble,
                vocabulary,
                settings,
                labels=pipeline.task_labels(task) if settings.rank else None,
                batch_size=settings.batch_size or data.batch_size,
                mesh=mesh,
            )
            examples = pipeline.eval_examples(
                data, vocabulary, split=settings.split, max_examples=settings.max_examples
            )
            self.task = TaskEvaluator(generator, examples, postprocess=postprocess, metrics=metrics)

    def names(self, params: Any) -> list[str]:
        """The names of the metrics that a call gives, before any hour of training.

        Args:
          params: shapes are enough; the model is not run.

        Raises:
          InputError: the split does not exist, is empty or cannot be read.
        """
        found: list[str] = []
        if self._loss is not None:
            found += self._loss.names(params)
        if self.task is not None:
            found += self.task.names()
        return [f"{self._settings.split}/{name}" for name in dict.fromkeys(found)]

    def __call__(self, step: int, params: Params) -> dict[str, float]:
        """The metrics of a step, named "<split>/<name>"; equal on all processes."""
        result: dict[str, float] = {}
        if self._loss is not None:
            result |= self._loss.run(params)
        if self.task is not None:
            # The task's own metric has the plain name: the token accuracy gives way to it.
            result |= self.task.run(params)
            self._write_samples(step)
        return {f"{self._settings.split}/{name}": value for name, value in result.items()}

    def _write_samples(self, step: int) -> None:
        if self._workdir is None or self.task is None or jax.process_index() > 0:
            return
        lines = [
            json.dumps({"step": step, **dataclasses.asdict(sample)}, ensure_ascii=False) + "\n"
            for sample in self.task.samples[: self._settings.num_samples]
        ]
        # In one system call: a run that is killed leaves no torn line for the next one to go on in.
        with (self._workdir / "samples.jsonl").open("ab", buffering=0) as file:
            file.write("".join(lines).encode())


def _generator(
    bind: Bind,
    vocabulary: Vocabulary,
    settings: Evaluation,
    *,
    labels: Sequence[str] | None,
    batch_size: int,
    mesh: Mesh,
) -> Generator:
    """What answers a task's examples: a search, or the rank of its labels."""
    if labels is not None:
        tokens = [
            np.asarray([*ids, vocabulary.eos_id], np.int32)
            for ids in vocabulary.encode_batch(labels)
        ]
        ranker = Ranker(Scorer(bind, batch_size=batch_size, mesh=mesh))
        return LabelGenerator(ranker, labels, tokens)
    decoding = Decoding(
        max_length=settings.max_decode_length,
        num_beams=settings.num_beams,
        length_penalty=settings.length_penalty,
    )
    return Generator(bind, vocabulary, batch_size=batch_size, decoding=decoding, mesh=mesh)


def _check_output(directory: Path) -> None:
    """Refuses a directory that cannot be made or written, before the work and not after it."""
    if directory.exists() and not directory.is_dir():
        raise InputError(f"--output {directory} is not a directory")
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise InputError(f"--output {directory} cannot be written: {existing} does not allow it")


def evaluate(
    experiment: Experiment,
    checkpoints: Sequence[str],
    *,
    step: int | None = None,
    output: str | None = None,
) -> dict[str, float]:
    """Measures a checkpoint on a config's task and prints the metrics as one line of JSON.

    Of several processes, all measure together and the first prints and writes.

    Args:
      experiment: its data, evaluation, mesh, hosts and compute_dtype are used; the model is the
        checkpoint's, and so must the vocabulary be.
      checkpoints: a work directory or a step directory; of several, an ensemble, the task's metrics
        alone are measured.
      step: of work directories; None is the newest.
      output: a directory for metrics.json and predictions.jsonl; None writes neither.

    Raises:
      InputError: the checkpoint or the data are wrong.
    """
    hosts.join(experiment.hosts)
    with hosts.ending_together():
        return _evaluate(experiment, checkpoints, step=step, output=output)


def _evaluate(
    experiment: Experiment, checkpoints: Sequence[str], *, step: int | None, output: str | None
) -> dict[str, float]:
    """As `evaluate`, once the processes have joined."""
    if output is not None:
        _check_output(Path(output))
    mesh = sharding.make_mesh(experiment.mesh)
    check_batch(experiment, mesh)
    model = _as_configured(TextToText.load(checkpoints, step=step, mesh=mesh), experiment)
    _check_vocabulary(experiment, model)
    first, several = model.members[0], len(model.members) > 1
    measurement = Measurement(
        first.parts,
        model.vocabulary,
        mesh=mesh,
        workdir=None,
        ensemble=model.bind if several else None,
    )
    if several and measurement.task is None:
        raise InputError(
            f"data.task {experiment.data.task!r} has no metrics of its own, and an ensemble has no "
            "held-out loss: give one --checkpoint"
        )
    if several and experiment.evaluation.loss:
        _logger.info("an ensemble has no held-out loss: the task's metrics alone are measured")
    steps: Any = [member.step for member in model.members] if several else first.step
    metrics = measurement(first.step, model.params)
    if jax.process_index() == 0:
        print(json.dumps({"step": steps, **metrics}))
        if output is not None:
            _write_output(Path(output), {"step": steps, **metrics}, measurement.task)
    return metrics


def _write_output(directory: Path, metrics: dict[str, Any], task: TaskEvaluator | None) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with json_lines.writer(str(directory / "metrics.json")) as file:
        file.write(metrics)
    if task is not None:
        with json_lines.writer(str(directory / "predictions.jsonl")) as file:
            file.write(*(dataclasses.asdict(sample) for sample in task.samples))


def _as_configured(model: TextToText, experiment: Experiment) -> TextToText:
    """The same models with the data, the evaluation and the compute dtype of a config."""
    members = []
    for member in model.members:
        measured = dataclasses.replace(
            member.parts.experiment,
            data=experiment.data,
            evaluation=experiment.evaluation,
            compute_dtype=experiment.compute_dtype,
        )
        parts = dataclasses.replace(member.parts, experiment=measured)
        members.append(dataclasses.replace(member, parts=parts))
    return dataclasses.replace(model, members=tuple(members))


def _check_vocabulary(experiment: Experiment, model: TextToText) -> None:
    """A config's vocabulary must be the checkpoint's, which stands in for one that is gone.

    Raises:
      InputError: they differ.
    """
    data, directory = experiment.data, model.members[0].directory
    if data.vocabulary not in BYTES_NAMES and not Path(data.vocabulary).exists():
        _logger.info(
            "data.vocabulary %s does not exist from here; using that of the checkpoint %s",
            data.vocabulary,
            directory,
        )
        return
    given = load_vocabulary(data.vocabulary, extra_ids=data.extra_ids)
    if given.digest != model.vocabulary.digest:
        raise InputError(
            f"the vocabulary {data.vocabulary} is not that of the checkpoint {directory}; use "
            f"--data.vocabulary {directory / 'files' / checkpointing.VOCABULARY_DIRECTORY}"
        )
