"""Commands about a run: train, finetune, evaluate, plan, report."""

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar, Literal

from t5x_lite.commands.options import PROG, at_least, load_config, some_directory, with_epochs_of
from t5x_lite.option_types import (
    ALL_MODULES,
    Config,
    Directory,
    DirectoryTuple,
    Modules,
    OptionalCount,
    OptionalDirectory,
    OptionalFile,
    OptionalNumber,
    OptionalStep,
    OptionalText,
    SomeDirectory,
    Text,
    TextTuple,
    Workdirs,
)
from t5x_lite.options import OptionError, given_options
from t5x_lite.project import trusting_checkpoints


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train:
    """Pretrain or fine-tune; resumes from the newest checkpoint of the work directory.

    --FIELD VALUE after CONFIG changes a field of the config, such as --objective.z-loss 0;
    t5x-lite train CONFIG --help lists them. --epochs N counts the training data and sets steps and
    schedules. --model init takes the model's family and sizes from the checkpoint of --init; the
    config's dropout and kind of attention stay.

    Attributes:
      config: a Python file that defines `experiment`, or the config.json of a work directory.
      dry_run: prints sizes, memory, steps and the first batch as text, and stops; nothing is
        written.
      trust_project: runs any module of yours that a checkpoint's config names; without it only
        classes of t5x_lite, and of packages that CONFIG names, are admitted.
    """

    config: Config
    dry_run: bool = False
    trust_project: bool = False
    takes_overrides: ClassVar[bool] = True

    def run(self, overrides: Sequence[str]) -> None:
        """Calls run.training.train, or run.rehearsal.rehearse, with the config's overrides."""
        with trusting_checkpoints(self.trust_project):
            experiment = with_epochs_of(self.config, overrides, command=Train)
        if self.dry_run:
            from t5x_lite.run.rehearsal import rehearse

            with trusting_checkpoints(self.trust_project):
                print(rehearse(experiment))
            return
        from t5x_lite.run.allocator import keep_freed_memory

        keep_freed_memory()
        from t5x_lite.run.training import train

        with trusting_checkpoints(self.trust_project):
            train(experiment)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finetune:
    """Fine-tune a checkpoint, a T5 or an encoder, on a table of yours: no config is needed.

        t5x-lite import hf google/flan-t5-small work/flan
        t5x-lite finetune --init work/flan --table reviews.csv --inputs 'review: {text}'
        --targets '{stars}' --workdir work/reviews

    Sizes and vocabulary are the checkpoint's; lengths, labels and steps come from the table, and
    are printed. --FIELD VALUE changes a field of the config, as for train: --adapters.add 'reviews
    = lora(r=8)' trains a module in place of the model.

    Attributes:
      init: what t5x-lite import wrote, or a work directory or step directory.
      table: a directory with train and validation files (CSV, TSV, JSONL, Parquet, Arrow), a file,
        a pattern in quotes, a directory of Hugging Face's datasets, a bucket, or hf://NAME. Without
        validation files one row in ten is held out.
      inputs: text that the model reads, with columns in braces.
      targets: text that it writes, or the label, such as '{stars}'.
      workdir: where the run goes; the same command resumes.
      second: of an encoder that reads pairs, the second text.
      labels: the labels, each as the table has it or with a word for it (0=negative 1=positive);
        all that the training rows have if not given.
      task: how answers are measured; auto is classify where there are few different targets, else
        text_to_text or, of an encoder, regress.
      epochs: passes over the training rows; 3 if neither it nor --steps is given.
      dry_run: prints sizes, memory, steps and the first batch as text, and stops; nothing is
        written.
    """

    init: Directory
    table: Text
    inputs: Text
    targets: Text
    workdir: Directory
    second: Text = ""
    labels: TextTuple = ()
    task: Literal[
        "auto", "classify", "regress", "text_to_text", "answer", "translate", "summarize"
    ] = "auto"
    epochs: OptionalCount = None
    dry_run: bool = False
    takes_overrides: ClassVar[bool] = True

    def __post_init__(self) -> None:
        at_least(1, {"--epochs": self.epochs})

    def run(self, overrides: Sequence[str]) -> None:
        """Calls run.finetuning with the config's overrides."""
        if self.epochs is not None and "--steps" in given_options(overrides):
            raise OptionError(
                f"--steps and --epochs {self.epochs} both set the run's length; give one"
            )
        from t5x_lite.run.allocator import keep_freed_memory

        keep_freed_memory()
        from t5x_lite.data.columns import Columns
        from t5x_lite.run.finetuning import experiment_for

        experiment = experiment_for(
            self.init,
            columns=Columns(
                inputs=self.inputs,
                second=self.second,
                targets=self.targets,
                labels=self.labels,
                hold_out=10,
            ),
            table=self.table,
            workdir=self.workdir,
            task=self.task,
            epochs=3 if self.epochs is None else self.epochs,
            options=overrides,
        )
        if self.dry_run:
            from t5x_lite.run.rehearsal import rehearse

            print(rehearse(experiment))
            return
        from t5x_lite.run.training import train

        train(experiment)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Glue:
    """Fine-tune a checkpoint, an encoder or a T5, on all of GLUE or SuperGLUE, and measure it.

        t5x-lite import hf bert-base-uncased work/bert
        t5x-lite glue --init work/bert --directory GLUE --workdir work/glue

    Each task has a run in WORKDIR/TASK, and its classes, head and metrics follow from the task. The
    command prints each task's metrics and the average, and writes metrics.json and the submission.
    The same command resumes, and finished tasks are not repeated. --FIELD VALUE changes a field of
    the config of each run, as for train: --steps 300, --optimizer.schedule.peak 2e-5.

    Attributes:
      init: what t5x-lite import wrote, or a work directory or step directory.
      directory: the benchmark's official files, a folder for each task; or TensorFlow Datasets.
      workdir: where the runs go.
      benchmark: which benchmark.
      tasks: the tasks to train, such as sst2 mrpc rte; all if not given.
      together: trains all tasks in one run: an encoder has a head for each, a T5 their mixture.
      epochs: passes over each task's training data; the benchmark's recipe if not given.
      output: directory for metrics.json and the submission; the workdir if not given.
      dry_run: prints sizes, memory, steps and the first batch of each run, and stops; nothing is
        written.
    """

    init: Directory
    directory: Directory
    workdir: Directory
    benchmark: Literal["glue", "super_glue"] = "glue"
    tasks: TextTuple = ()
    together: bool = False
    epochs: OptionalNumber = None
    output: OptionalDirectory = None
    dry_run: bool = False
    takes_overrides: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.epochs is not None and not 0 < self.epochs < math.inf:
            raise OptionError(f"--epochs must be above 0, got {self.epochs}")

    def run(self, overrides: Sequence[str]) -> None:
        """Calls run.benchmarks.glue with the config's overrides."""
        from t5x_lite.run.allocator import keep_freed_memory

        keep_freed_memory()
        from t5x_lite.run.benchmarks import glue

        glue(
            self.init,
            directory=self.directory,
            workdir=self.workdir,
            benchmark=self.benchmark,
            tasks=self.tasks,
            together=self.together,
            epochs=self.epochs,
            output=self.output,
            options=overrides,
            dry_run=self.dry_run,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Measure a checkpoint on a config's task: held-out loss and the task's metrics.

    With --evaluation.retrieval.directory DIR, also how an encoder retrieves the documents of a
    directory in BEIR's format: nDCG@10, MRR@10, Recall@100.

    --FIELD VALUE changes a field of the config, as for train. Several checkpoints are an ensemble
    that averages their logits; only the task's metrics are measured then.

    Attributes:
      config: a Python file that defines `experiment`, or the config.json of a work directory.
      checkpoint: a work directory or a step directory; several are an ensemble.
      step: the step to take from a work directory, or best, the one that its run found best; the
        newest if not given.
      base: directory of the base, for a checkpoint that holds its trained part alone; if not given,
        the one it was trained from.
      adapters: the modules in use.
      output: directory for metrics.json and the predictions or rankings; none if not given.
      trust_project: runs any module of yours that a checkpoint's config names; without it only
        classes of t5x_lite, and of packages that CONFIG names, are admitted.
    """

    config: Config
    checkpoint: DirectoryTuple
    step: OptionalStep = None
    base: OptionalDirectory = None
    adapters: Modules = ALL_MODULES
    output: OptionalDirectory = None
    trust_project: bool = False
    takes_overrides: ClassVar[bool] = True

    def __post_init__(self) -> None:
        some_directory(self.checkpoint)
        at_least(0, {"--step": self.step})

    def run(self, overrides: Sequence[str]) -> None:
        """Calls run.measuring.evaluate with the config's overrides."""
        experiment = load_config(self.config, overrides, command=Evaluate)
        from t5x_lite.checkpoints.base import base_at
        from t5x_lite.run.measuring import evaluate

        with trusting_checkpoints(self.trust_project), base_at(self.base):
            evaluate(
                experiment,
                self.checkpoint,
                step=self.step,
                use=self.adapters.use,
                output=self.output,
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Compile a config's train step for devices that are not attached: memory, time, traffic.

    Exit code 1 if the step does not fit.

    Attributes:
      config: a Python file that defines `experiment`, or the config.json of a work directory.
      topology: a TPU slice, such as v5e:4x4.
      devices: cpu:N, N devices of this machine's CPU, in place of a topology.
      attached: plans for the devices that are attached, of all hosts, and checks them against the
        topology if one is given.
      json: prints one line of JSON.
      hbm: GiB of memory that a device has; what its kind has if not given.
      operations: number of the slowest operations to list, by the estimate.
    """

    config: Config
    topology: OptionalText = None
    devices: OptionalText = None
    attached: bool = False
    json: bool = False
    hbm: OptionalNumber = None
    operations: int = 0
    takes_overrides: ClassVar[bool] = True

    def run(self, overrides: Sequence[str]) -> None:
        """Calls run.planning.plan with the config's overrides."""
        at_least(0, {"--operations": self.operations})
        experiment = with_epochs_of(self.config, overrides, command=Plan, may_lack_data=True)
        from t5x_lite.run.planning import plan

        plan(
            experiment,
            topology=self.topology,
            devices=self.devices,
            attached=self.attached,
            as_json=self.json,
            hbm=self.hbm,
            operations=self.operations,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """Write one HTML page about a work directory: the task's metric, curves, samples, options.

    Of several work directories, a page that compares them: final metrics, the settings that differ,
    and the curves of all on one chart. With --group seed, runs that differ in their seed only are a
    group, and mean and standard deviation are printed, too:

        t5x-lite report work/a.0 work/a.1 work/b.0 work/b.1 --group seed

    Attributes:
      workdirs: the work directory, or several to compare.
      group: seed shows mean and sample standard deviation over the seeds, and curves with bands.
      output: the page to write; if not given, report.html in the work directory, or of several
        compare.html next to the first of them.
    """

    workdirs: Workdirs
    group: Literal["seed"] | None = None
    output: OptionalFile = None
    takes_overrides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.workdirs:
            raise OptionError(f"missing WORKDIR; see {PROG} report --help")

    def run(self, _: Sequence[str]) -> None:
        """Calls run.texts.report."""
        from t5x_lite.run.texts import report

        report(self.workdirs, output=self.output, group=self.group)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Info:
    """Say what a directory holds: family, parameters, vocabulary, step, heads, adapters, metrics.

    Attributes:
      directory: a work directory, a step directory, what import wrote, a delta or a cache.
      json: prints one line of JSON.
      trust_project: runs modules of yours that a checkpoint's config names, as a class of your own
        model; without it only classes of t5x_lite are admitted.
    """

    directory: SomeDirectory
    json: bool = False
    trust_project: bool = False
    takes_overrides: ClassVar[bool] = False

    def run(self, _: Sequence[str]) -> None:
        """Calls run.info.info."""
        from t5x_lite.run.info import info

        with trusting_checkpoints(self.trust_project):
            info(self.directory, as_json=self.json)
