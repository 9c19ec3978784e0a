"""`t5x-lite evaluate`, and what training measures on the way."""

import dataclasses
import functools
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from t5x_lite import checkpoints as checkpointing
from t5x_lite import sharding
from t5x_lite.config import Experiment
from t5x_lite.data import json_lines
from t5x_lite.data.vocabulary import SentencePiece, load_vocabulary
from t5x_lite.evaluate.generate import Generator, TaskEvaluator
from t5x_lite.evaluate.loss import LossEvaluator
from t5x_lite.run.parts import Loaded, Parts, check_batch
from t5x_lite.types import InputError, Params


class Measurement:
    """The held-out loss and the task's metrics that a config asks for.

    Args:
      parts: the learner.
      vocabulary: of the data.
      mesh: where batches go.
      workdir: samples are appended to its samples.jsonl; None writes none.
    """

    def __init__(
        self, parts: Parts, vocabulary: SentencePiece, *, mesh: Mesh, workdir: Path | None
    ):
        from t5x_lite.data import pipeline

        data, settings = parts.experiment.data, parts.experiment.evaluation
        self._settings = settings
        self._workdir = workdir
        self._loss: LossEvaluator | None = None
        self.task: TaskEvaluator | None = None
        if settings.loss:
            self._loss = LossEvaluator(
                parts.loss,
                functools.partial(
                    pipeline.eval_batches,
                    data,
                    vocabulary,
                    split=settings.split,
                    max_batches=settings.max_batches,
                ),
                mesh=mesh,
            )
        postprocess, metrics = pipeline.task_metrics(pipeline.load_task(data, vocabulary))
        if settings.task_metrics and metrics:
            generator = Generator(
                parts.bind_model,
                vocabulary,
                batch_size=settings.batch_size or data.batch_size,
                max_decode_length=settings.max_decode_length,
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
        """The metrics of a step, named "<split>/<name>"."""
        result: dict[str, float] = {}
        if self._loss is not None:
            result |= self._loss.run(params)
        if self.task is not None:
            # The task's own metric has the plain name: the token accuracy gives way to it.
            result |= self.task.run(params)
            self._write_samples(step)
        return {f"{self._settings.split}/{name}": value for name, value in result.items()}

    def _write_samples(self, step: int) -> None:
        if self._workdir is None or self.task is None:
            return
        lines = [
            json.dumps({"step": step, **dataclasses.asdict(sample)}, ensure_ascii=False) + "\n"
            for sample in self.task.samples[: self._settings.num_samples]
        ]
        # In one system call: a run that is killed leaves no torn line for the next one to go on in.
        with (self._workdir / "samples.jsonl").open("ab", buffering=0) as file:
            file.write("".join(lines).encode())


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

    Args:
      experiment: its data, evaluation, mesh and compute_dtype are used; the model is the
        checkpoint's, and so must the vocabulary be.
      checkpoints: one work directory or step directory.
      step: of a work directory; None is the newest.
      output: a directory for metrics.json and predictions.jsonl; None writes neither.

    Raises:
      InputError: the checkpoint or the data are wrong.
    """
    if len(checkpoints) != 1:
        raise InputError(
            f"evaluate takes one --checkpoint directory, got {len(checkpoints)}; evaluate them one "
            "by one (ensembles are not there yet)"
        )
    if output is not None:
        _check_output(Path(output))
    mesh = sharding.make_mesh(experiment.mesh)
    check_batch(experiment, mesh)
    loaded = Loaded.from_checkpoint(checkpoints[0], step=step, mesh=mesh)
    given = load_vocabulary(experiment.data.vocabulary, extra_ids=experiment.data.extra_ids)
    if given.digest != loaded.vocabulary.digest:
        raise InputError(
            f"the vocabulary {experiment.data.vocabulary} is not that of the checkpoint "
            f"{loaded.directory}; use --data.vocabulary "
            f"{loaded.directory / 'files' / checkpointing.VOCABULARY_FILE}"
        )
    measured = dataclasses.replace(
        loaded.parts.experiment,
        data=experiment.data,
        evaluation=experiment.evaluation,
        compute_dtype=experiment.compute_dtype,
    )
    parts = dataclasses.replace(loaded.parts, experiment=measured)
    measurement = Measurement(parts, loaded.vocabulary, mesh=mesh, workdir=None)
    metrics = measurement(loaded.step, loaded.params)
    print(json.dumps({"step": loaded.step, **metrics}))
    if output is not None:
        directory = Path(output)
        directory.mkdir(parents=True, exist_ok=True)
        with json_lines.writer(str(directory / "metrics.json")) as file:
            file.write({"step": loaded.step, **metrics})
        if measurement.task is not None:
            with json_lines.writer(str(directory / "predictions.jsonl")) as file:
                for sample in measurement.task.samples:
                    file.write(dataclasses.asdict(sample))
    return metrics
