"""Commands about a run: train, evaluate, plan, report."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from t5x_lite.commands.options import (
    ALL_MODULES,
    Config,
    Directories,
    Modules,
    OptionalDirectory,
    OptionalFile,
    OptionalNumber,
    OptionalStep,
    OptionalText,
    Workdir,
    at_least,
    load_config,
    some_directory,
)
from t5x_lite.project import trusting_checkpoints


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train:
    """Pretrain or fine-tune; resumes from the newest checkpoint of the work directory.

    --FIELD VALUE after CONFIG changes a field of the config, such as --objective.z-loss 0;
    t5x-lite train CONFIG --help lists them.

    Attributes:
      config: a Python file that defines `experiment`, or the config.json of a work directory.
      trust_project: runs any module of yours that a checkpoint's config names; without it only
        classes of t5x_lite, and of packages that CONFIG names, are admitted.
    """

    config: Config
    trust_project: bool = False
    takes_overrides: ClassVar[bool] = True

    def run(self, overrides: Sequence[str]) -> None:
        """Calls run.training.train with the config's overrides."""
        experiment = load_config(self.config, overrides, command=Train)
        from t5x_lite.run.allocator import keep_freed_memory

        keep_freed_memory()
        from t5x_lite.run.training import train

        with trusting_checkpoints(self.trust_project):
            train(experiment)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Measure a checkpoint on a config's task: held-out loss and the task's metrics.

    With --evaluation.retrieval.directory DIR, also how an encoder retrieves the documents of a
    directory in BEIR's format: nDCG@10, MRR@10, Recall@100.

    --FIELD VALUE changes a field of the config, as for train. Of several checkpoints, an ensemble
    that averages their logits, the task's metrics alone are measured.

    Attributes:
      config: a Python file that defines `experiment`, or the config.json of a work directory.
      checkpoint: a work directory or a step directory; several are an ensemble.
      step: the step to take from a work directory, or best, the one that its run found best; the
        newest if not given.
      base: where the base of a checkpoint is that holds its trained part alone; where it was, if
        not given.
      adapters: the modules in use.
      output: where metrics.json and the predictions or rankings go; nowhere if not given.
      trust_project: runs any module of yours that a checkpoint's config names; without it only
        classes of t5x_lite, and of packages that CONFIG names, are admitted.
    """

    config: Config
    checkpoint: Directories
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
      operations: how many of the operations that take longest, by the estimate, to list.
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
        experiment = load_config(self.config, overrides, command=Plan)
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
    """Write one HTML page about a work directory: curves, throughput, metrics, samples.

    Attributes:
      workdir: the work directory.
      output: the page to write; report.html in the work directory if not given.
    """

    workdir: Workdir
    output: OptionalFile = None
    takes_overrides: ClassVar[bool] = False

    def run(self, _: Sequence[str]) -> None:
        """Calls run.texts.report."""
        from t5x_lite.run.texts import report

        report(self.workdir, output=self.output)
