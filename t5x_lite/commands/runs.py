"""Commands about a run: train, finetune, glue, evaluate, plan, report, info."""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from t5x_lite.commands.command import command
from t5x_lite.commands.options import PROG, load_config, some_directory, with_epochs_of
from t5x_lite.core.errors import InputError
from t5x_lite.core.option_types import (
    ALL_MODULES,
    Config,
    Directories,
    Directory,
    Modules,
    Natural,
    OptionalDirectory,
    OptionalFile,
    OptionalNumber,
    OptionalPositive,
    OptionalText,
    Overrides,
    SomeDirectory,
    Step,
    Text,
    Texts,
    Workdirs,
)
from t5x_lite.core.options import Above, OptionError, given_options
from t5x_lite.core.project import trusting_checkpoints
from t5x_lite.core.remote import is_remote

if TYPE_CHECKING:
    from t5x_lite.train.training import Trained

_logger = logging.getLogger(__name__)


@command
def train(
    config: Config,
    overrides: Overrides = (),
    *,
    dry_run: bool = False,
    trust_project: bool = False,
) -> "Trained | None":
    """Pretrain or fine-tune; resumes from the newest checkpoint of the work directory.

    --FIELD VALUE after CONFIG changes a field of the config, such as --objective.z-loss 0;
    t5x-lite train CONFIG --help lists them. --epochs N counts the training data and sets steps and
    schedules. --model init takes the model's family and sizes from the checkpoint of --init; the
    config's dropout and kind of attention stay.

    Example:
        t5x-lite train configs/tiny_pretrain.py --steps 200 --workdir work/tiny

    Args:
      config: a Python file that defines `experiment`, or the config.json of a work directory.
      dry_run: prints sizes, memory, steps and the first batch as text, and stops; nothing is
        written.
      trust_project: allows a checkpoint's config to import any class; default: only classes of
        t5x_lite and of packages that CONFIG names.
      overrides: fields of the config as --FIELD VALUE.

    Returns:
      The last step with its metrics, and the work directory; None of a dry run.

    Raises:
      InputError: a file or an option of the config is wrong.
      Interrupted: a signal came; the same command resumes.
    """
    with trusting_checkpoints(trust_project):
        experiment = with_epochs_of(config, overrides, command=train.options)
        if dry_run:
            from t5x_lite.train.planning import rehearse

            print(rehearse(experiment))
            return None
        from t5x_lite.core.devices import keep_freed_memory

        keep_freed_memory()
        from t5x_lite.train import training

        return training.train(experiment)


@command
def finetune(
    *,
    init: Directory,
    table: Text,
    inputs: Text,
    targets: Text,
    workdir: Directory,
    second: Text = "",
    labels: Texts = (),
    task: Literal[
        "auto", "classify", "regress", "text_to_text", "answer", "translate", "summarize"
    ] = "auto",
    epochs: OptionalPositive = None,
    dry_run: bool = False,
    overrides: Overrides = (),
) -> "Trained | None":
    r"""Fine-tune a checkpoint, a T5 or an encoder, on your own table, without a config.

    Sizes and vocabulary are the checkpoint's; lengths, labels and steps come from the table, and
    are printed. --FIELD VALUE changes a field of the config, as for train: --adapters.add 'reviews
    = lora(r=8)' trains an adapter instead of the model.

    Example:
        t5x-lite import hf google/flan-t5-small work/flan
        t5x-lite finetune --init work/flan --table reviews.csv --inputs 'review: {text}' \
            --targets '{stars}' --workdir work/reviews

    Args:
      init: checkpoint to start from: imported, a work directory or a checkpoint directory.
      table: training data: a directory with train and validation files (CSV, TSV, JSONL, Parquet,
        Arrow), a file, a quoted pattern, a directory of Hugging Face's datasets, a bucket, or
        hf://NAME. Without validation files, one row in ten is held out.
      inputs: template of the input text, with columns in braces.
      targets: template of the target text or label, such as '{stars}'.
      workdir: work directory of the run; the same command resumes.
      second: template of the second text, for text pairs and an encoder.
      labels: the labels as in the table, each with an optional name (0=negative 1=positive);
        default: all labels of the training rows.
      task: kind of task. auto chooses classify if there are few distinct targets; otherwise
        text_to_text for a T5 and regress for an encoder.
      epochs: number of passes over the training rows; default: 3, unless --steps is given.
      dry_run: prints sizes, memory, steps and the first batch as text, and stops; nothing is
        written.
      overrides: fields of the config as --FIELD VALUE.

    Returns:
      As `train`.

    Raises:
      InputError: the checkpoint, the table or an option is wrong.
      Interrupted: a signal came; the same command resumes.
    """
    if epochs is not None and "--steps" in given_options(overrides):
        raise OptionError(f"--steps and --epochs {epochs} both set the run's length; give one")
    from t5x_lite.core.devices import keep_freed_memory

    keep_freed_memory()
    from t5x_lite.data.columns import Columns
    from t5x_lite.train.finetuning import experiment_for

    columns = Columns(
        inputs=inputs, second=second, targets=targets, labels=tuple(labels), hold_out=10
    )
    experiment = experiment_for(
        init,
        columns=columns,
        table=table,
        workdir=workdir,
        task=task,
        epochs=3 if epochs is None else epochs,
        options=overrides,
    )
    if dry_run:
        from t5x_lite.train.planning import rehearse

        print(rehearse(experiment))
        return None
    from t5x_lite.train import training

    return training.train(experiment)


@command
def glue(
    init: Directory,
    *,
    directory: Directory,
    workdir: Directory,
    benchmark: Literal["glue", "super_glue"] = "glue",
    tasks: Texts = (),
    together: bool = False,
    epochs: Annotated[OptionalNumber, Above(0)] = None,
    output: OptionalDirectory = None,
    dry_run: bool = False,
    overrides: Overrides = (),
) -> dict[str, Any]:
    """Fine-tune a checkpoint, an encoder or a T5, on all of GLUE or SuperGLUE, and measure it.

    Each task has a run in WORKDIR/TASK, and its classes, head and metrics follow from the task. The
    command prints each task's metrics and the average, and writes metrics.json and the submission.
    The same command resumes, and finished tasks are not repeated. --FIELD VALUE changes a field of
    the config of each run, as for train: --steps 300, --optimizer.schedule.peak 2e-5.

    Example:
        t5x-lite import hf bert-base-uncased work/bert
        t5x-lite glue --init work/bert --directory GLUE --workdir work/glue

    Args:
      init: checkpoint to start from: imported, a work directory or a checkpoint directory.
      directory: directory of the benchmark's official files with a folder per task, or of
        TensorFlow Datasets.
      workdir: parent directory of the runs.
      benchmark: name of the benchmark.
      tasks: the tasks to train, such as sst2 mrpc rte; all if not given.
      together: trains all tasks in one run; an encoder gets one head per task, a T5 trains on a
        mixture.
      epochs: number of passes over each task's training data; default: as in the benchmark's
        recipe.
      output: directory for metrics.json and the submission files; default: the workdir.
      dry_run: prints sizes, memory, steps and the first batch of each run, and stops; nothing is
        written.
      overrides: fields of each run's config as --FIELD VALUE.

    Returns:
      What is printed: the average, and the metrics of each task.

    Raises:
      InputError: the checkpoint, the files, a task or an option is wrong, or a finished task has
        other settings.
      Interrupted: a signal came; the same command resumes.
    """
    from t5x_lite.core.devices import keep_freed_memory

    keep_freed_memory()
    from t5x_lite.train.benchmarks import SUITES, Recipe, check_files, check_options, train_all

    suite = SUITES[benchmark]
    chosen = suite.named(tasks)
    check_options(overrides, epochs)
    if output is None and is_remote(workdir):
        raise InputError(
            f"--workdir {workdir} is in a bucket, but submission files need a local directory; "
            "pass --output DIR"
        )
    check_files(suite, chosen, directory)
    recipe = Recipe.of(suite, init, directory=directory, epochs=epochs, options=overrides)
    runs = recipe.runs(chosen, workdir=workdir, together=together, writes=not dry_run)
    if dry_run:
        from t5x_lite.train.planning import rehearse

        for run in runs:
            print(f"{', '.join(task.name for task in run.tasks)}\n{rehearse(run.experiment)}\n")
        return {}
    return train_all(runs, suite, Path(output or workdir))


@command
def evaluate(
    config: Config,
    overrides: Overrides = (),
    *,
    checkpoint: Directories,
    step: Step = None,
    base: OptionalDirectory = None,
    adapters: Modules = ALL_MODULES,
    output: OptionalDirectory = None,
    trust_project: bool = False,
) -> dict[str, float]:
    """Measure a checkpoint on a config's task: held-out loss and the task's metrics.

    With --evaluation.retrieval.directory DIR, also how an encoder retrieves the documents of a
    directory in BEIR's format: nDCG@10, MRR@10, Recall@100.

    --FIELD VALUE changes a field of the config, as for train. Several checkpoints are an ensemble
    that averages their logits; only the task's metrics are measured then.

    Example:
        t5x-lite evaluate configs/tiny_finetune.py --checkpoint work/run --step best

    Args:
      config: a Python file that defines `experiment`, or the config.json of a work directory.
      checkpoint: a work directory or a checkpoint directory; several are an ensemble.
      step: step number of the checkpoint in a work directory, or best for the run's best
        checkpoint; default: the newest.
      base: directory of the base model, for a checkpoint that holds only trained parameters;
        default: the recorded base.
      adapters: the adapters to use.
      output: directory for metrics.json and the predictions or rankings; default: write no files.
      trust_project: allows a checkpoint's config to import any class; default: only classes of
        t5x_lite and of packages that CONFIG names.
      overrides: fields of the config as --FIELD VALUE.

    Returns:
      The printed metrics, without the step.

    Raises:
      InputError: the checkpoint or the data are wrong.
    """
    some_directory(checkpoint)
    experiment = load_config(config, overrides, command=evaluate.options)
    from t5x_lite.checkpoints.base import base_at
    from t5x_lite.train import measuring

    with trusting_checkpoints(trust_project), base_at(base):
        return measuring.evaluate(
            experiment, checkpoint, step=step, use=adapters.use, output=output
        )


@command
def plan(
    config: Config,
    overrides: Overrides = (),
    *,
    topology: OptionalText = None,
    devices: OptionalText = None,
    attached: bool = False,
    json: bool = False,
    hbm: OptionalNumber = None,
    operations: Natural = 0,
) -> None:
    """Compile a config's train step for devices that are not attached: memory, time, traffic.

    Exit code 1 if the step does not fit.

    Example:
        t5x-lite plan configs/pretrain/t5_1_1_base.py --topology v5e:4x4

    Args:
      config: a Python file that defines `experiment`, or the config.json of a work directory.
      topology: a TPU slice, such as v5e:4x4.
      devices: cpu:N plans for N simulated CPU devices, instead of a topology.
      attached: plans for the attached devices of all hosts; with a topology, also checks that they
        match it.
      json: prints one line of JSON.
      hbm: memory per device in GiB; default: the memory of the device's kind.
      operations: number of operations with the longest estimated time to list.
      overrides: fields of the config as --FIELD VALUE.

    Raises:
      InputError: the topology is not known, libtpu is missing, another slice is attached, or the
        config does not fit the mesh.
      DoesNotFit: after printing.
    """
    experiment = with_epochs_of(config, overrides, command=plan.options, may_lack_data=True)
    from t5x_lite.train import planning

    planning.plan(
        experiment,
        topology=topology,
        devices=devices,
        attached=attached,
        as_json=json,
        hbm=hbm,
        operations=operations,
    )


@command
def report(
    workdirs: Workdirs,
    *,
    group: Literal["seed"] | None = None,
    output: OptionalFile = None,
) -> Path:
    """Write one HTML page about a work directory: the task's metric, curves, samples, options.

    For several work directories the page compares them: final metrics, the settings that differ,
    and all curves in one chart. With --group seed, runs that differ only in their seed form a
    group, and the command also prints mean and standard deviation.

    Example:
        t5x-lite report work/a.0 work/a.1 work/b.0 work/b.1 --group seed

    Args:
      workdirs: the work directory, or several to compare.
      group: seed shows the mean and sample standard deviation over seeds, and curves with error
        bands.
      output: the page to write; default: report.html in the work directory, or for several
        directories compare.html next to the first one.

    Returns:
      The path of the page.

    Raises:
      InputError: if a directory holds no run, or the page cannot be written.
    """
    if not workdirs:
        raise OptionError(f"missing WORKDIR; see {PROG} report --help")
    from t5x_lite.core.progress import print_result
    from t5x_lite.report.compare import compare, compare_seeds
    from t5x_lite.report.runs import write_report

    directories = [workdirs] if isinstance(workdirs, str) else list(workdirs)
    several = len(directories) > 1
    if group is not None:
        if not several:
            raise InputError(
                f"--group {group} compares several runs, and {directories[0]} is one; give the "
                "work directory of each seed"
            )
        path, groups = compare_seeds(directories, output)
        print_result({"page": os.fspath(path), "groups": groups}, _seed_rows(groups))
        _logger.info("wrote %s", path)
        return path
    path = compare(directories, output) if several else write_report(directories[0], output)
    print(os.fspath(path))
    return path


def _seed_rows(groups: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for group in groups:
        for metric, spreads in group["metrics"].items():
            row = {"group": group["group"], "metric": metric, "n": str(group["n"])}
            for when, title in (("best", "best"), ("last", "end")):
                spread = spreads[when]
                if spread is not None:
                    mark = "*" if spread["bold"] else ""
                    row[title] = f"{spread['mean']:.4f}{mark}"
                    row[f"sd of {title}"] = "" if spread["sd"] is None else f"{spread['sd']:.4f}"
            yield row


@command
def info(
    directory: SomeDirectory, *, json: bool = False, trust_project: bool = False
) -> dict[str, Any]:
    """Describe a directory: family, parameters, vocabulary, step, heads, adapters, metrics.

    Example:
        t5x-lite info work/run

    Args:
      directory: a work directory, a checkpoint directory, an imported checkpoint, a delta or a
        cache.
      json: prints one line of JSON.
      trust_project: lets a checkpoint's config run your own classes, not only those in t5x_lite.

    Returns:
      The printed description.

    Raises:
      InputError: if the directory is of another kind, or its config is damaged.
    """
    from json import dumps

    from t5x_lite.report.info import as_text, described

    with trusting_checkpoints(trust_project):
        found = described(directory)
    print(dumps(found, ensure_ascii=False) if json else as_text(found))
    return found
