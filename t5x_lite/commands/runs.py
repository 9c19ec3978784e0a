"""Commands on training runs: train, finetune, glue, sweep, evaluate, plan, report, info."""

import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from t5x_lite.commands.command import PROG, command, load_config, some_directory, with_epochs_of
from t5x_lite.core.errors import InputError
from t5x_lite.core.option_types import (
    ALL_MODULES,
    Config,
    Directories,
    Directory,
    Grid,
    Modules,
    Natural,
    OptionalDirectory,
    OptionalFile,
    OptionalNumber,
    OptionalPositive,
    OptionalText,
    Overrides,
    Positive,
    SomeDirectory,
    Step,
    Text,
    Texts,
    Workdirs,
)
from t5x_lite.core.options import Above, OptionError, given_options, option_names
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
    """Pretrain or fine-tune a model; resumes from the newest checkpoint of the work directory.

    --FIELD VALUE after CONFIG changes a field of the config, such as --objective.z-loss 0; t5x-lite
    train CONFIG --help lists the fields. --epochs N counts the training examples and sets the steps
    and schedules. --model init takes the model's family and sizes from the checkpoint of --init,
    but dropout and the kind of attention from the config.

    Example:
        t5x-lite train configs/tiny_pretrain.py --steps 200 --workdir work/tiny

    Args:
      config: config file: a Python file that defines `experiment`, or a work directory's
        config.json.
      dry_run: print model size, memory, number of steps and the first batch, then exit without
        writing anything.
      trust_project: allow the configs of loaded checkpoints to import any Python class; default:
        only classes of t5x_lite and of packages that CONFIG names.
      overrides: config fields to change, as --FIELD VALUE.

    Returns:
      The last step with its metrics, and the work directory; None for a dry run.

    Raises:
      Interrupted: if a signal ends the run; run the same command again to resume.
    """
    with trusting_checkpoints(trust_project):
        experiment = with_epochs_of(config, overrides, command=train.options)
        if dry_run:
            from t5x_lite.train.planning import rehearse

            print(rehearse(experiment))
            return None
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
    r"""Fine-tune a T5 or an encoder on a table of your own, without a config.

    The sizes and the vocabulary come from the checkpoint; text lengths, labels and steps come from
    the table and are printed. --FIELD VALUE changes a config field, as for train: --adapters.add
    'reviews = lora(r=8)' trains an adapter instead of the model.

    Example:
        t5x-lite import hf google/flan-t5-small work/flan
        t5x-lite finetune --init work/flan --table reviews.csv --inputs 'review: {text}' \
            --targets '{stars}' --workdir work/reviews

    Args:
      init: checkpoint to fine-tune: imported checkpoint, work directory or checkpoint directory.
      table: training data: a directory with train and validation files (CSV, TSV, JSONL, Parquet,
        Arrow), a single file, a quoted file pattern, a directory of Hugging Face datasets, a gs://
        or s3:// path, or hf://NAME. Without validation files, one row in ten is used for
        validation.
      inputs: template of the input text, with column names in braces, such as 'review: {text}'.
      targets: template of the target text or label, with column names in braces, such as '{stars}'.
      workdir: work directory of the run; the same command resumes a killed run.
      second: template of the second text of text pairs, only for encoders; default: no second text.
      labels: label values as --targets produces them, each with an optional name, such as
        0=negative 1=positive; default: all label values in the training rows.
      task: kind of task; "auto" chooses classify for few distinct targets, and otherwise
        text_to_text for a T5 and regress for an encoder.
      epochs: number of passes over the training rows; default: 3, unless --steps is given.
      dry_run: print model size, memory, number of steps and the first batch, then exit without
        writing anything.
      overrides: config fields to change, as --FIELD VALUE.

    Returns:
      The last step with its metrics, and the work directory; None for a dry run.

    Raises:
      Interrupted: if a signal ends the run; run the same command again to resume.
    """
    if epochs is not None and "--steps" in given_options(overrides):
        raise OptionError(
            f"--steps and --epochs {epochs} both set the length of the run; give only one of "
            "the two"
        )
    from t5x_lite.data.preprocessors import Columns
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
    """Fine-tune a checkpoint, an encoder or a T5, on all of GLUE or SuperGLUE, and evaluate it.

    Each task is trained in its own run in WORKDIR/TASK; the task sets the classes, the head and the
    metrics. The command prints the metrics of each task and the average, and writes metrics.json
    and the submission files. If the command is killed, run it again to resume; finished tasks are
    not repeated. --FIELD VALUE changes a config field of each run, as for train: --steps 300,
    --optimizer.schedule.peak 2e-5.

    Example:
        t5x-lite import hf bert-base-uncased work/bert
        t5x-lite glue --init work/bert --directory GLUE --workdir work/glue

    Args:
      init: checkpoint to fine-tune: imported checkpoint, work directory or checkpoint directory.
      directory: directory of the benchmark's data: the official files in one folder per task, or
        TensorFlow Datasets.
      workdir: parent directory of the tasks' work directories.
      benchmark: name of the benchmark, glue or super_glue.
      tasks: names of the tasks to train, such as sst2 mrpc rte; default: all tasks.
      together: train all tasks in one run: an encoder gets one head per task, a T5 trains on a
        mixture; default: one run per task.
      epochs: number of passes over each task's training data; default: set by the benchmark.
      output: directory for metrics.json and submission files; default: --workdir.
      dry_run: print model size, memory, number of steps and the first batch of each run, then exit
        without training.
      overrides: config fields to change in all runs, as --FIELD VALUE.

    Returns:
      The average and the metrics of each task, which the command also prints.

    Raises:
      InputError: if the checkpoint, the files, a task or an option is invalid, or a finished task
        was trained with other settings.
      Interrupted: if a signal ends the run; run the same command again to resume.
    """
    from t5x_lite.train.benchmarks import SUITES, Recipe, check_files, check_options, train_all

    suite = SUITES[benchmark]
    chosen = suite.named(tasks)
    check_options(overrides, epochs)
    if output is None and is_remote(workdir):
        raise InputError(
            f"--workdir {workdir} is in object storage, but submission files need a local "
            "directory; pass --output DIR"
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
def sweep(
    config: Config,
    overrides: Overrides = (),
    *,
    workdir: Directory,
    grid: Grid = (),
    seeds: Positive = 1,
    metric: OptionalText = None,
    trust_project: bool = False,
) -> dict[str, Any]:
    r"""Train a config with every combination of some settings and seeds, and rank the settings.

    Each run has a work directory in WORKDIR, named by its settings and seed. Runs train one after
    the other. The command prints mean and standard deviation of the metric over the seeds, best
    settings first, and writes sweep.json and compare.html. The same command resumes and retries
    failed runs; more values or seeds add runs. Exit code 1 if a run failed. --FIELD VALUE changes a
    field of the config in all runs.

    Example:
        t5x-lite sweep configs/tiny_pretrain.py --grid optimizer.schedule.warmup-steps=100,1000 \
            --grid model.dropout-rate=0,0.1 --seeds 3 --steps 200 --workdir work/sweep

    Args:
      config: config file: a Python file that defines `experiment`, or a work directory's
        config.json.
      workdir: parent directory of the runs.
      grid: config field and the values to try, such as model.dropout-rate=0,0.1; repeat the option
        for each field, and quote a value that contains a comma.
      seeds: number of runs per combination of --grid values, with consecutive seeds that start at
        the config's seed.
      metric: metric that ranks the combinations, such as validation/accuracy, at the best step of
        each run; default: the metric that selects a run's best checkpoint.
      trust_project: allow the configs of loaded checkpoints to import any Python class; default:
        only classes of t5x_lite and of packages that CONFIG names.
      overrides: config fields to change in all runs, as --FIELD VALUE.

    Returns:
      The printed result: the metric, and the settings with their runs, best first.

    Raises:
      InputError: if the config, the grid or an option is invalid, or WORKDIR has other content.
      Interrupted: if a signal ends the sweep; run the same command again to resume.
      RunsFailed: if a run failed; raised after the results are printed.
    """
    from t5x_lite import config as configs
    from t5x_lite.metrics.benchmarks import refuse_test

    refuse_test("--metric", metric)
    with trusting_checkpoints(trust_project):
        from t5x_lite.train.sweeps import RunsFailed, Sweep, arms_of

        base, arms = arms_of(
            configs.load(config), grid, overrides, other_options=option_names(sweep.options)
        )
        with Sweep.open(base, arms, seeds=seeds, workdir=workdir, metric=metric) as found:
            found.train()
            result = found.result()
            _show_arms(result, workdir)
        failed = [run for run in found.runs.values() if run["state"] == "failed"]
        if failed:
            raise RunsFailed(
                f"{len(failed)} of {len(found.runs)} runs failed, such as {failed[0]['workdir']}: "
                f"{failed[0]['error']}; run the same command again to repeat the failed runs"
            ) from found.error
        return result


def _show_arms(result: Mapping[str, Any], workdir: str) -> None:
    """Print the results of a sweep, and write an HTML page that compares its finished runs."""
    import jax

    from t5x_lite.core.workers import as_table, print_result
    from t5x_lite.report.compare import PAGE, compare_seeds

    if jax.process_index():
        return
    metric = result["metric"] or "metric"
    rows = []
    for arm in result["arms"]:
        row = {"arm": arm["arm"], "seeds": arm["n"], metric: arm["mean"], "sd": arm["sd"]}
        failed = sum(run["state"] == "failed" for run in arm["runs"])
        rows.append(row | ({"failed": failed} if failed else {}))
    if not sys.stdout.isatty():
        _logger.info("%s", as_table(rows))
    print_result(result, rows)
    runs = [run for arm in result["arms"] for run in arm["runs"] if run["state"] == "finished"]
    if not runs or is_remote(workdir):
        return
    try:
        paths = [os.path.join(workdir, run["workdir"]) for run in runs]
        page, _ = compare_seeds(paths, os.path.join(workdir, PAGE))
        _logger.info("wrote %s and %s", os.path.join(workdir, "sweep.json"), page)
    except InputError as error:
        _logger.warning("file %s was not written: %s", PAGE, error)


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
    """Evaluate a checkpoint on the task of a config: held-out loss and the task's metrics.

    With --evaluation.retrieval.directory DIR, the command also evaluates an encoder on retrieval
    from a data set in BEIR's format: nDCG@10, MRR@10, Recall@100.

    --FIELD VALUE changes a config field, as for train. Several checkpoints form an ensemble that
    averages their logits, which is evaluated only by the task's metrics.

    Example:
        t5x-lite evaluate configs/tiny_finetune.py --checkpoint work/run --step best

    Args:
      config: config file: a Python file that defines `experiment`, or a work directory's
        config.json.
      checkpoint: work directory or checkpoint directory of the model; several directories form an
        ensemble that averages the models' logits.
      step: step number of the checkpoint to load from a work directory, or "best" for the
        checkpoint with the best evaluation result; default: the newest checkpoint.
      base: directory of the base model, for a checkpoint that stores only its trained parameters;
        default: the base directory recorded in the checkpoint.
      adapters: names of the checkpoint's adapters to use; default: the config field adapters.use.
      output: directory for metrics.json and the predictions or rankings; default: no files.
      trust_project: allow the configs of loaded checkpoints to import any Python class; default:
        only classes of t5x_lite and of packages that CONFIG names.
      overrides: config fields to change, as --FIELD VALUE.

    Returns:
      The printed metrics, without the step number.
    """
    some_directory(checkpoint)
    experiment = load_config(config, overrides, command=evaluate.options)
    from t5x_lite.checkpoints.init import base_at
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

    The exit code is 1 if the train step does not fit into device memory.

    Example:
        t5x-lite plan configs/pretrain/t5_1_1_base.py --topology v5e:4x4

    Args:
      config: config file: a Python file that defines `experiment`, or a work directory's
        config.json.
      topology: TPU slice to plan for, such as v5e:4x4.
      devices: number N of simulated CPU devices to plan for, as cpu:N, instead of --topology.
      attached: plan for the attached devices of all hosts; if --topology is given, they must match
        it.
      json: print the result as one line of JSON instead of as text.
      hbm: memory per device in GiB; default: the memory of the planned device type.
      operations: number of operations to list, longest estimated time first.
      overrides: config fields to change, as --FIELD VALUE.

    Raises:
      InputError: if the topology is unknown, libtpu is missing, the attached devices do not match
        the topology, or the config does not fit the mesh.
      DoesNotFit: if the train step does not fit into device memory; raised after printing.
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
    """Write an HTML page about a run: the task's metric, curves, samples and options.

    For several work directories, the page compares the runs: final metrics, different settings, and
    all curves in one chart. With --group seed, runs that differ only in their seed form a group,
    and the command also prints the mean and standard deviation of each group.

    Example:
        t5x-lite report work/a.0 work/a.1 work/b.0 work/b.1 --group seed

    Args:
      workdirs: work directory of the run, or several work directories to compare.
      group: grouping of runs: "seed" groups runs that differ only in their seed, and shows the
        mean, sample standard deviation and error bands of each group; default: no groups.
      output: HTML file to write; default: report.html in the work directory, or for several work
        directories compare.html next to the first one.

    Returns:
      The path of the page.
    """
    if not workdirs:
        raise OptionError(
            f"`t5x-lite report` requires at least one WORKDIR; see {PROG} report --help"
        )
    from t5x_lite.core.workers import print_result
    from t5x_lite.report.compare import compare, compare_seeds
    from t5x_lite.report.runs import write_report

    directories = [workdirs] if isinstance(workdirs, str) else list(workdirs)
    several = len(directories) > 1
    if group is not None:
        if not several:
            raise InputError(
                f"--group {group} needs several runs, but {directories[0]} is the only one; "
                "give the work directory of each seed"
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
    """Describe a directory: model family, parameters, vocabulary, step, heads, adapters, metrics.

    Example:
        t5x-lite info work/run

    Args:
      directory: directory to describe: a work directory, a checkpoint directory, an imported
        checkpoint, a delta or a cache.
      json: print the result as one line of JSON instead of as text.
      trust_project: allow the checkpoint's config to import Python classes from outside of
        t5x_lite.

    Returns:
      The description, which the command also prints.
    """
    from json import dumps

    from t5x_lite.report.info import as_text, described

    with trusting_checkpoints(trust_project):
        found = described(directory)
    print(dumps(found, ensure_ascii=False) if json else as_text(found))
    return found
