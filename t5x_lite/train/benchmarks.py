"""`t5x-lite glue`: fine-tune a checkpoint on all tasks of GLUE or SuperGLUE, and evaluate it.

    t5x-lite glue --init work/bert --directory GLUE --workdir work/glue

    work/glue/sst2/             run of a task: config.json, checkpoints, metrics.jsonl
    work/glue/sst2/result.json  metrics of a finished task
    work/glue/metrics.json      metrics of all tasks, and their average
    work/glue/submission/glue/  files for the benchmark's server

1. The checkpoint sets the model, its sizes and the vocabulary. An encoder predicts by a
classification head; a T5 generates the label.
2. Each task has its own run. With --together, one run trains all tasks: an encoder with a head for
each task (`TaskHeads`), from caches in work/glue/caches, or a T5 on the mixture of the tasks.
3. Each task is evaluated on its complete validation split, with its best checkpoint. MNLI's model
also evaluates the mismatched genres and predicts the diagnostic sets.

The same command resumes: finished tasks are skipped, and an unfinished run continues from its
checkpoint. WNLI is excluded, as in T5's and BERT's papers, because its validation split is
adversarial. The average is the mean over tasks of each task's mean metric; MNLI counts once.
"""

import dataclasses
import gc
import json
import logging
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from t5x_lite import config as configs
from t5x_lite import layouts
from t5x_lite.checkpoints import reading as checkpointing
from t5x_lite.checkpoints.init import Init
from t5x_lite.config import Checkpoints, Evaluation, Experiment
from t5x_lite.config.experiment import with_options
from t5x_lite.config.file import from_json, to_json
from t5x_lite.core import remote, sharding
from t5x_lite.core.devices import matmul_precision
from t5x_lite.core.errors import InputError
from t5x_lite.core.object_store import data_path, files_among
from t5x_lite.core.options import did_you_mean, given_options
from t5x_lite.core.remote import is_remote
from t5x_lite.core.workers import as_table, print_result
from t5x_lite.data.cache.files import Cache
from t5x_lite.data.cache.making import write_cache
from t5x_lite.data.config import Data
from t5x_lite.data.mixing import Mixing
from t5x_lite.data.mixtures import Member, mixture_named
from t5x_lite.data.vocabularies.loading import load_vocabulary
from t5x_lite.evaluate.results import BestParams, SameParams, Submissions
from t5x_lite.inference.checkpoint import Checkpoint
from t5x_lite.inference.loading import Loaded, find_step, read_experiment
from t5x_lite.interop import encoder_checkpoints
from t5x_lite.metrics.benchmarks import GLUE_WITHOUT_WNLI, SCORE, SUPER_GLUE, Benchmark, task_score
from t5x_lite.models import encoder as encoders
from t5x_lite.models.base import ModelConfig
from t5x_lite.objectives.learner import heads_of
from t5x_lite.objectives.likelihood import Seq2Seq
from t5x_lite.objectives.task_heads import Choose, Classify, TaskHeads
from t5x_lite.train import hosts
from t5x_lite.train.finetuning import model_of, optimizer_for
from t5x_lite.train.measuring import Measurement, as_configured
from t5x_lite.train.stopping import StopSignals
from t5x_lite.train.training import num_classes, with_epochs

_logger = logging.getLogger(__name__)

RESULT_FILE, METRICS_FILE = "result.json", "metrics.json"
TOGETHER = "together"
"""Directory name of the joint run of all tasks."""
_STEPS = 10_000_000
"""Placeholder for the number of steps until the examples are counted."""
_OWN = {
    "--data.task": "--tasks",
    "--data.directory": "--directory",
    "--data.vocabulary": "--init",
    "--data.extra-ids": "--init",
    "--data.cache": "--together",
    "--data.layout": "--init",
    "--init": "--init",
    "--init.checkpoint": "--init",
    "--model": "--init",
    "--workdir": "--workdir",
}
"""Config option -> option of `t5x-lite glue` that sets it."""
_IDENTITY = (*configs.MATCHING_FIELDS, "steps", "init")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """Task of a benchmark, for training, evaluation and prediction.

    Attributes:
      name: name of the task for --tasks.
      folder: directory of the task's files.
      files: names of the training and validation files.
      epochs: passes over the training data; None uses the benchmark's default.
      choices: True for multiple choice, in which an encoder reads one row for each answer choice.
      measured: names of the tasks to evaluate after training; () evaluates the task itself.
      diagnostics: names of tasks with only a test split, to predict.
    """

    name: str
    folder: str
    files: tuple[str, ...]
    epochs: float | None = None
    choices: bool = False
    measured: tuple[str, ...] = ()
    diagnostics: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Suite:
    """Benchmark, such as GLUE, with its fine-tuning settings.

    Attributes:
      title: official name of the benchmark.
      module: name of the Python module that defines the tasks.
      mixture: name of the mixture of all tasks, to train a T5 on all tasks together.
      average: names of the tasks that the benchmark's average score includes.
      tasks: tasks of the benchmark.
      epochs: passes over the training data of a task.
      batch_size: rows per batch.
      encoder_length: tokens per row of an encoder.
      lengths: maximum tokens of a T5's inputs and targets.
      decode_length: maximum tokens that a T5 generates.
    """

    title: str
    module: str
    mixture: str
    average: Benchmark
    tasks: tuple[Task, ...]
    epochs: float
    batch_size: int
    encoder_length: int
    lengths: tuple[int, int]
    decode_length: int

    def named(self, names: Sequence[str]) -> list[Task]:
        """Return the tasks with these names, or all tasks if `names` is empty."""
        known = {task.name: task for task in self.tasks}
        for name in names:
            if name not in known:
                why = " (it is not trained on)" if name in ("wnli", "ax", "axb", "axg") else ""
                hint = did_you_mean(name, known)
                raise InputError(
                    f"--tasks {name}: {self.title} has no such task{why}{hint}; the tasks are "
                    f"{', '.join(known)}"
                )
        return [known[name] for name in dict.fromkeys(names)] or list(self.tasks)


def _glue(name: str, folder: str, **others: Any) -> Task:
    return Task(name=name, folder=folder, files=("train.tsv", "dev.tsv"), **others)


def _super_glue(name: str, folder: str, **others: Any) -> Task:
    return Task(name=name, folder=folder, files=("train.jsonl", "val.jsonl"), **others)


SUITES = {
    "glue": Suite(
        title="GLUE",
        module="tasks.glue",
        mixture="tasks.mixtures:glue",
        average=GLUE_WITHOUT_WNLI,
        tasks=(
            _glue("cola", "CoLA"),
            _glue("sst2", "SST-2"),
            _glue("mrpc", "MRPC"),
            _glue("stsb", "STS-B"),
            _glue("qqp", "QQP"),
            Task(
                name="mnli",
                folder="MNLI",
                files=("train.tsv", "dev_matched.tsv", "dev_mismatched.tsv"),
                measured=("mnli_matched", "mnli_mismatched"),
                diagnostics=("ax",),
            ),
            _glue("qnli", "QNLI"),
            _glue("rte", "RTE"),
        ),
        epochs=3.0,
        batch_size=32,
        encoder_length=128,
        lengths=(256, 16),
        decode_length=16,
    ),
    "super_glue": Suite(
        title="SuperGLUE",
        module="tasks.super_glue",
        mixture="tasks.mixtures:super_glue",
        average=SUPER_GLUE,
        tasks=(
            _super_glue("boolq", "BoolQ"),
            _super_glue("cb", "CB"),
            _super_glue("copa", "COPA", choices=True),
            _super_glue("multirc", "MultiRC", epochs=3.0),
            _super_glue("record", "ReCoRD", epochs=1.0),
            _super_glue("rte", "RTE", diagnostics=("axb", "axg")),
            _super_glue("wic", "WiC"),
            _super_glue("wsc", "WSC"),
        ),
        epochs=10.0,
        batch_size=16,
        encoder_length=256,
        lengths=(512, 62),
        decode_length=32,
    ),
}
"""Value of --benchmark -> benchmark."""


def check_options(options: Sequence[str], epochs: float | None) -> None:
    """Raise InputError for config options that `t5x-lite glue` sets itself, such as --data.task."""
    given = given_options(options)
    for option, own in _OWN.items():
        if option in given:
            raise InputError(
                f"`t5x-lite glue` does not support the option {option}; use {own} instead"
            )
    if epochs is not None and "--steps" in given:
        raise InputError(
            f"--steps and --epochs {epochs:g} both set the length of each run; set only one"
        )


def check_files(suite: Suite, tasks: Sequence[Task], directory: str) -> None:
    """Raise InputError if files of the benchmark are missing from a local directory.

    Remote directories and TensorFlow Datasets are not checked.
    """
    name = suite.module.rpartition(".")[2]
    if is_remote(directory) or directory.partition(":")[0] == "tfds":
        return
    example = suite.tasks[0]
    expected = (
        f"{suite.title} has the folders {', '.join(task.folder for task in suite.tasks)}, such as "
        f"{example.folder}/{example.files[0]} and {example.folder}/{example.files[1]}"
    )
    if not os.path.isdir(directory):
        raise InputError(f"--directory {directory} does not exist; {expected}")
    root = Path(directory)
    if (root / name).is_dir():  # TFDS
        return
    missing = {task.name: _missing(root, task) for task in tasks}
    lacking = [file for files in missing.values() for file in files]
    if not lacking:
        return
    there = [task.name for task in suite.tasks if not _missing(root, task)]
    shown = ", ".join(lacking[:6]) + (f" and {len(lacking) - 6} more files" * (len(lacking) > 6))
    remedy = f"use --tasks {' '.join(there)} for the available tasks" if there else expected
    raise InputError(f"--directory {directory} does not contain {shown}; {remedy}")


def _missing(root: Path, task: Task) -> list[str]:
    for place in (root / task.folder, root):
        if files_among(data_path(str(place)), task.files):
            return [f"{task.folder}/{file}" for file in task.files if not (place / file).is_file()]
    return [f"{task.folder}/{file}" for file in task.files]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """Training run, with the tasks to evaluate after training."""

    tasks: tuple[Task, ...]
    experiment: Experiment


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings to fine-tune a checkpoint on the tasks of a benchmark.

    Attributes:
      suite: benchmark.
      checkpoint: checkpoint to fine-tune.
      directory: directory of the benchmark's files.
      epochs: passes over the training data; None uses the benchmark's default.
      options: additional config options, such as --optimizer.clip-norm 1.
      model: model config of the checkpoint.
      kind: kind of an encoder's classification heads; None for a T5.
      kept: names of the heads that the checkpoint already has.
      data: data config that all tasks share.
    """

    suite: Suite
    checkpoint: str
    directory: str
    epochs: float | None
    options: tuple[str, ...]
    model: ModelConfig
    kind: Any
    kept: tuple[str, ...]
    data: Data

    @classmethod
    def of(
        cls,
        suite: Suite,
        checkpoint: str,
        *,
        directory: str,
        epochs: float | None,
        options: Sequence[str],
    ) -> "Recipe":
        """Create a recipe from the config of a checkpoint."""
        step = find_step(checkpoint, step=None)
        trained = read_experiment(step, checkpointing.step_files(step))
        model = model_of(trained.model, where=checkpoint)
        heads = heads_of(trained.objective, trained.heads)
        kind = None
        inputs, targets = suite.lengths
        if encoders.is_encoder(model):
            kind = encoder_checkpoints.classifier_kind(model, tuple(heads.values()))
            inputs = min(suite.encoder_length, model.longest_document or suite.encoder_length)
        return cls(
            suite=suite,
            checkpoint=checkpoint,
            directory=directory,
            epochs=epochs,
            options=tuple(options),
            model=model,
            kind=kind,
            kept=tuple(heads),
            data=Data(
                task=f"{suite.module}:{suite.tasks[0].name}",
                directory=directory,
                vocabulary=os.fspath(step / "files" / checkpointing.VOCABULARY_DIRECTORY),
                extra_ids=trained.data.extra_ids,
                layout=layouts.Seq2Seq() if kind is None else layouts.Labelled(),
                batch_size=suite.batch_size,
                inputs_length=inputs,
                targets_length=targets,
                pack=False,
                shuffle_buffer=100_000,
            ),
        )

    def runs(
        self, tasks: Sequence[Task], *, workdir: str, together: bool, writes: bool
    ) -> list[Run]:
        """Create the training runs of tasks, without starting them."""
        alone = [task for task in tasks if not together or (self.kind and task.choices)]
        joint = tuple(task for task in tasks if task not in alone)
        made = []
        if joint:
            place = os.path.join(workdir, TOGETHER)
            if self.kind is None:
                experiment = self._mixture(joint, place)
            else:
                experiment = self._heads(joint, place, caches=workdir, writes=writes)
            made.append(Run(tasks=joint, experiment=experiment))
        for task in alone:
            experiment = self._alone(task, os.path.join(workdir, task.name))
            made.append(Run(tasks=(task,), experiment=experiment))
        return made

    def _experiment(self, data: Data, workdir: str, **changes: Any) -> Experiment:
        epochs = changes.pop("epochs", None) or self.suite.epochs
        adapted = "--adapters.add" in given_options(self.options)
        period = max(1, math.ceil(_STEPS / max(epochs, 2)))
        begun = Experiment(
            **{
                "model": self.model,
                "objective": Seq2Seq(),
                "data": data,
                "optimizer": optimizer_for(self.model, _STEPS, adapted=adapted),
                "steps": _STEPS,
                "epochs": self.epochs or epochs,
                "workdir": workdir,
                "init": Init(checkpoint=self.checkpoint),
                "log_period": 20,
                "checkpoints": Checkpoints(period=period, keep=1, best=f"validation/{SCORE}"),
                "evaluation": Evaluation(
                    period=period, batch_size=64, max_decode_length=self.suite.decode_length
                ),
                **changes,
            }
        )
        made = with_options(begun, self.options, prog="t5x-lite glue")
        given = ("--epochs", *self.options) if made.epochs is not None else self.options
        return with_epochs(made, options=given)

    def _alone(self, task: Task, workdir: str) -> Experiment:
        data = dataclasses.replace(self.data, task=self._task(task.name))
        changes: dict[str, Any] = {"epochs": task.epochs}
        if self.kind is not None:
            head = "choice" if task.choices else "classifier"
            if task.choices:
                data = dataclasses.replace(data, layout=layouts.Choices())
                changes["objective"] = Choose(head=self.kind)
            else:
                # The number of classes is determined before anything is written.
                changes["objective"] = Classify(num_classes=num_classes(data), head=self.kind)
            # A head for another task or other classes must not be loaded.
            fresh = (f"heads/{head}",) if head in self.kept else ()
            changes["init"] = Init(checkpoint=self.checkpoint, fresh=fresh)
        return self._experiment(data, workdir, **changes)

    def _mixture(self, tasks: Sequence[Task], workdir: str) -> Experiment:
        """Return the config to train a T5 on a mixture of the tasks."""
        mixture = mixture_named(self.suite.mixture)
        assert mixture is not None
        wanted = {self._task(name) for task in tasks for name in _answered(task)}
        wanted |= {self._task(task.name) for task in tasks}
        left_out = [m.name for m in mixture.members if m.task not in wanted]
        data = dataclasses.replace(
            self.data, task=self.suite.mixture, mixing=Mixing(leave_out=tuple(left_out))
        )
        kept = Checkpoints(period=_STEPS // 10, keep=1, best=f"validation/*/{SCORE}")
        return self._experiment(data, workdir, checkpoints=kept)

    def _heads(
        self, tasks: Sequence[Task], workdir: str, *, caches: str, writes: bool
    ) -> Experiment:
        """Return the config to train an encoder with one classification head for each task."""
        if is_remote(caches):
            raise InputError(
                f"--together writes caches, but --workdir {caches} is in a bucket; give a "
                "local directory"
            )
        lines, paths = [], []
        for task in tasks:
            data = dataclasses.replace(self.data, task=self._task(task.name))
            data = self._with_data_options(data)
            lines.append(f"{task.name}={num_classes(data)}")
            path = os.path.join(caches, "caches", task.name)
            paths.append(path)
            if writes and not os.path.isdir(path):
                vocabulary = load_vocabulary(data.vocabulary, extra_ids=data.extra_ids)
                _logger.info("writing the cache %s", path)
                write_cache(data, vocabulary, path, splits=("train",))
            if os.path.isdir(path):
                Cache(path)  # raises if it is damaged
        if not all(map(os.path.isdir, paths)):
            raise InputError(
                "--dry-run with --together requires the data caches, but they are not written "
                "yet; remove --dry-run or --together"
            )
        data = dataclasses.replace(
            self.data,
            task="",
            cache=tuple(paths),
            adapter_of=tuple(f"{task.name}={number}" for number, task in enumerate(tasks)),
        )
        names = [f"heads/{task.name}" for task in tasks if task.name in self.kept]
        return self._experiment(
            data,
            workdir,
            objective=TaskHeads(tasks=tuple(lines), head=self.kind),
            init=Init(checkpoint=self.checkpoint, fresh=tuple(names)),
            checkpoints=Checkpoints(period=_STEPS // 10, keep=1),
            evaluation=Evaluation(
                period=_STEPS // 10, batch_size=64, loss=False, task_metrics=False
            ),
        )

    def _with_data_options(self, data: Data) -> Data:
        begun = Experiment(
            model=self.model,
            objective=Classify(),
            data=data,
            optimizer=optimizer_for(self.model, _STEPS, adapted=False),
            steps=_STEPS,
        )
        own = _options_of("--data.", self.options)
        return with_options(begun, own, prog="t5x-lite glue").data

    def _task(self, name: str) -> str:
        return f"{self.suite.module}:{name}"


def train_all(runs: Sequence[Run], suite: Suite, output: Path) -> dict[str, Any]:
    """Train and evaluate all runs, then print and write the metrics of all tasks."""
    hosts.join(runs[0].experiment.hosts)
    submission = output / "submission"
    finished: dict[str, Any] = {}
    for run in runs:
        finished |= _result(run, suite, submission=submission)
        jax.clear_caches()  # the next run compiles its own programs
        gc.collect()
    return _told(suite, finished, output, submission=submission)


def _options_of(beginning: str, options: Sequence[str]) -> list[str]:
    found, takes = [], False
    for each in options:
        if each.startswith("--"):
            takes = each.replace("_", "-").startswith(beginning)
        if takes:
            found.append(each)
    return found


def _answered(task: Task) -> tuple[str, ...]:
    return (*(task.measured or (task.name,)), *task.diagnostics)


def _result(run: Run, suite: Suite, *, submission: Path) -> dict[str, Any]:
    """Train and evaluate a run, unless it is finished; return its metrics by task."""
    from t5x_lite.train.training import train

    experiment = run.experiment
    file = remote.open_path(experiment.workdir) / RESULT_FILE
    found = _finished(file, experiment)
    named = ", ".join(task.name for task in run.tasks)
    if found is not None:
        _logger.info("%s: skipping training, because %s exists", named, file)
        missing = [name for name in found["files"] if not (submission / name).is_file()]
        if not missing:
            return found["tasks"]
        _logger.info("%s: rewriting the missing submission files %s", named, ", ".join(missing))
    else:
        _logger.info("training on task %s in work directory %s", named, experiment.workdir)
        train(experiment)
        StopSignals.end_after_run()
    with hosts.ending_together(), matmul_precision(experiment.matmul_precision):
        tasks, files = _measured(run, suite, submission=submission)
    if jax.process_index() == 0:
        content = {"tasks": tasks, "files": files, "config": json.loads(to_json(experiment))}
        remote.write_whole(file, (json.dumps(content, indent=1) + "\n").encode())
    return tasks


def _finished(file: Any, experiment: Experiment) -> dict[str, Any] | None:
    if not file.exists():
        return None
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        saved = from_json(json.dumps(content["config"]), source=str(file))
        _ = content["tasks"], content["files"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"file {file} is not a result of `t5x-lite glue`; delete the file"
        ) from error
    differing = configs.differences(saved, experiment, fields=_IDENTITY)
    if differing:
        raise InputError(
            f"directory {file.parent} has a finished run with other settings "
            f"({', '.join(differing)}); use another --workdir or the same settings"
        )
    return content


def _measured(
    run: Run, suite: Suite, *, submission: Path
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Evaluate a trained run on its tasks; return metrics and submission files."""
    experiment = run.experiment
    mesh = sharding.make_mesh(experiment.mesh)
    workdir = experiment.workdir
    is_mixture = experiment.data.task == suite.mixture
    step = None if len(run.tasks) > 1 or is_mixture else "best"
    loaded = Checkpoint.load([workdir], step=step, use=None, mesh=mesh)
    names = [name for task in run.tasks for name in _answered(task)]
    diagnostics = {name for task in run.tasks for name in task.diagnostics}
    if len(run.tasks) > 1 and not is_mixture and diagnostics:
        names = [name for name in names if name not in diagnostics]
        _logger.info(
            "skipping the diagnostic sets %s, because this model has no head for them",
            ", ".join(diagnostics),
        )
    tasks: dict[str, dict[str, Any]] = {}
    files: list[str] = []
    best = None
    if is_mixture:
        members = [Member(task=f"{suite.module}:{name}").name for name in names]
        best = BestParams.of([workdir], loaded, members, mesh=mesh, step=None)
    for name in names:
        measured = name not in diagnostics
        alone = _as_task(experiment, f"{suite.module}:{name}", measured=measured)
        member: Loaded = as_configured(loaded, alone).members[0]
        measurement = Measurement(
            member.experiment, member.learner, member.vocabulary, mesh=mesh, workdir=None
        )
        assert measurement.suite is not None
        chosen = best or SameParams(loaded.params, loaded.members[0].step)
        submissions = Submissions(measurement.suite, alone.evaluation)
        full = Member(task=alone.data.task).name
        if measured:
            metrics = measurement.suite.run(chosen)
            own = {key: value for key, value in metrics.items() if key != SCORE}
            tasks[full] = {"step": chosen.step(full), SCORE: task_score(own), **own}
        submissions.write(submission, chosen)
        files += [str(path.relative_to(submission)) for path in submissions.files(submission)]
    return tasks, files


def _as_task(experiment: Experiment, task: str, *, measured: bool) -> Experiment:
    data = dataclasses.replace(
        experiment.data, task=task, cache="", adapter_of=(), mixing=Mixing(), pack=False
    )
    evaluation = dataclasses.replace(
        experiment.evaluation,
        loss=False,
        task_metrics=measured,
        max_examples=None,
        submission=True,
        best_per_task=False,
    )
    return dataclasses.replace(experiment, data=data, evaluation=evaluation)


def _told(
    suite: Suite, tasks: Mapping[str, Mapping[str, Any]], output: Path, *, submission: Path
) -> dict[str, Any]:
    own = {
        name: {m: v for m, v in row.items() if m not in ("step", SCORE)}
        for name, row in tasks.items()
    }
    rows = suite.average.row_scores(own)
    average = sum(rows.values()) / len(rows) if rows else math.nan
    result = {
        "benchmark": suite.title,
        "average": average,
        "rows": rows,
        "missing": suite.average.missing(own),
        "tasks": tasks,
        "submission": os.fspath(submission),
    }
    if jax.process_index():
        return result
    output.mkdir(parents=True, exist_ok=True)
    remote.write_whole(output / METRICS_FILE, (json.dumps(result, indent=1) + "\n").encode())
    counted = f"average of {len(rows)} of {len(suite.average.rows)} tasks"
    lines = [
        *(
            {
                "task": n,
                "step": r["step"],
                "score": f"{100 * r[SCORE]:.2f}",
                "metrics": _words(own[n]),
            }
            for n, r in tasks.items()
        ),
        {"task": f"{suite.title}, {counted}", "score": f"{100 * average:.2f}"},
    ]
    if not sys.stdout.isatty():
        _logger.info("%s", as_table(lines))
    print_result(result, lines, indent=None)
    _logger.info("wrote %s and the submission files in %s", output / METRICS_FILE, submission)
    return result


def _words(metrics: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {100 * value:.2f}" for name, value in metrics.items())
