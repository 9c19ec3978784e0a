"""Commands of deltas: compose, merge, fisher and heads."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import tyro

from t5x_lite.commands.options import at_least
from t5x_lite.option_types import (
    ALL_MODULES,
    Count,
    Destination,
    Modules,
    Number,
    OptionalDirectory,
    OptionalStep,
    Source,
)
from t5x_lite.options import OptionError
from t5x_lite.project import trusting_checkpoints

Expression = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="EXPRESSION")]
Named = Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=DIR [NAME=DIR ...]")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compose:
    """Add, subtract and merge adapters, task vectors and other deltas of one base.

    'ties(a, b, density=0.2) - 0.5 * c' is an expression; linear, average, svd, ties, dare, fisher,
    sparsify, factor, materialise and without_heads are its functions.

    Attributes:
      expression: of names, numbers, + - * / and functions.
      destination: the directory to write, a delta; it must not exist yet.
      delta: NAME=DIR for each name: a delta, or a run that trained adapters; with --base any run.
      fisher: for the function fisher, the diagonal of each of its deltas.
      base: the checkpoint that all of them are changes of; if not given, the recorded one.
      allow_other_base: uses --base though another one was recorded, and says so.
      trust_project: runs modules of yours that a checkpoint's config names, as a class of your own
        model; without it only classes of t5x_lite are admitted.
    """

    expression: Expression
    destination: Destination
    delta: Named
    fisher: Named = ()
    base: OptionalDirectory = None
    allow_other_base: bool = False
    trust_project: bool = False
    takes_overrides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_base(self.base, allowed=self.allow_other_base)

    def run(self, _: Sequence[str]) -> None:
        """Calls run.composing.compose."""
        from t5x_lite.run.composing import compose

        with trusting_checkpoints(self.trust_project):
            compose(
                self.expression,
                self.destination,
                deltas=self.delta,
                fishers=self.fisher,
                base=self.base,
                allow_other_base=self.allow_other_base,
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Merge:
    """Make a plain checkpoint of a base and a delta, or of a run that trained adapters.

    predict, score, evaluate, train --init and export take what it writes.

    Attributes:
      source: a delta, or a work directory or step of a run; with --base of any run.
      destination: the directory to write; it must not exist yet.
      step: the step to take from a work directory, or best, the one that its run found best; the
        newest if not given.
      base: the checkpoint that it is a change of; if not given, the recorded one.
      adapters: which modules of a run are merged.
      dtype: dtype of the stored weights; for bfloat16 the relative error is shown.
      allow_other_base: uses --base though another one was recorded, and says so.
      trust_project: runs modules of yours that a checkpoint's config names, as a class of your own
        model; without it only classes of t5x_lite are admitted.
    """

    source: Source
    destination: Destination
    step: OptionalStep = None
    base: OptionalDirectory = None
    adapters: Modules = ALL_MODULES
    dtype: Literal["float32", "bfloat16"] = "float32"
    allow_other_base: bool = False
    trust_project: bool = False
    takes_overrides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        at_least(0, {"--step": self.step})
        _check_base(self.base, allowed=self.allow_other_base)

    def run(self, _: Sequence[str]) -> None:
        """Calls run.composing.merge."""
        from t5x_lite.run.composing import merge

        with trusting_checkpoints(self.trust_project):
            merge(
                self.source,
                self.destination,
                step=self.step,
                base=self.base,
                use=self.adapters.use,
                dtype=self.dtype,
                allow_other_base=self.allow_other_base,
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fisher:
    """Measure how much each weight of a tuned model matters, for compose 'fisher(a, b)'.

    It is the mean of squared gradients over training examples, one at a time.

    Attributes:
      source: a work directory or a step directory.
      destination: the directory to write; it must not exist yet.
      examples: number of examples.
      labels: empirical, those of the data, or expected, of a classifier all classes by their
        probabilities.
      step: the step to take from a work directory, or best, the one that its run found best; the
        newest if not given.
      trust_project: runs modules of yours that a checkpoint's config names, as a class of your own
        model; without it only classes of t5x_lite are admitted.
    """

    source: Source
    destination: Destination
    examples: Count = 1024
    labels: Literal["empirical", "expected"] = "empirical"
    step: OptionalStep = None
    trust_project: bool = False
    takes_overrides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        at_least(1, {"--examples": self.examples})
        at_least(0, {"--step": self.step})

    def run(self, _: Sequence[str]) -> None:
        """Calls run.fisher.fisher."""
        from t5x_lite.run.fisher import fisher

        with trusting_checkpoints(self.trust_project):
            fisher(
                self.source,
                self.destination,
                examples=self.examples,
                labels=self.labels,
                step=self.step,
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Heads:
    """Measure which attention heads matter least, and write a module that masks them.

    Importance is the mean over training examples of the absolute gradient of a head's mask, divided
    by the length of its layer's importances. `t5x-lite merge` writes the pruned model.

    Attributes:
      source: a work directory or a step directory, without modules.
      destination: the directory to write; it must not exist yet.
      examples: number of examples.
      keep: the share of heads that stay, above 0; 1 only measures.
      step: the step to take from a work directory, or best, the one that its run found best; the
        newest if not given.
      trust_project: runs modules of yours that a checkpoint's config names, as a class of your own
        model; without it only classes of t5x_lite are admitted.
    """

    source: Source
    destination: Destination
    examples: Count = 1024
    keep: Number = 1.0
    step: OptionalStep = None
    trust_project: bool = False
    takes_overrides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        at_least(1, {"--examples": self.examples})
        at_least(0, {"--step": self.step})
        if not 0 < self.keep <= 1:
            raise OptionError(f"--keep must be above 0 and at most 1, got {self.keep}")

    def run(self, _: Sequence[str]) -> None:
        """Calls run.head_pruning.heads."""
        from t5x_lite.run.head_pruning import heads

        with trusting_checkpoints(self.trust_project):
            heads(
                self.source,
                self.destination,
                examples=self.examples,
                keep=self.keep,
                step=self.step,
            )


def _check_base(base: str | None, *, allowed: bool) -> None:
    if allowed and base is None:
        raise OptionError("--allow-other-base needs --base DIR")
