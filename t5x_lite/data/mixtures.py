"""Mixtures of tasks: what is trained on together, by name, and at what rates.

    glue = Mixture(members=(Member(task="tasks.glue:cola", examples=8551), ...))

data.task names a mixture as it names a task, "module:name", and data.mixing says how to mix:

    --data.task tasks.mixtures:glue --data.mixing.temperature 2 --data.mixing.maximum 2097152
    --data.task tasks.mixtures:all_proportional --data.mixing.leave-out tasks.squad

Each task is measured by itself, under its own name: "validation/glue_cola/matthews_correlation".
Reading a mixture imports none of its tasks. How examples are drawn stands in mixture_pipeline.py.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from t5x_lite.data.config import Data, TaskArguments
from t5x_lite.data.rates import Mixing
from t5x_lite.data.task_names import find_task
from t5x_lite.errors import InputError
from t5x_lite.options import did_you_mean
from t5x_lite.remote import is_remote


@dataclasses.dataclass(frozen=True, kw_only=True)
class Member:
    """One task of a mixture.

    Attributes:
      task: its name, "module:function".
      examples: training examples, from which data.mixing makes the rate; None counts them.
      rate: the rate itself, whatever data.mixing says of numbers of examples; 0 is a task that is
        measured and not trained on.
      directory: its folder in data.directory, where there is such a folder.
      measured: whether it has metrics of its own; one whose held-out splits are tasks has none.
    """

    task: str
    examples: int | None = None
    rate: float | None = None
    directory: str = ""
    measured: bool = True

    def __post_init__(self) -> None:
        if self.examples is not None and self.rate is not None:
            raise InputError(f"mixture: {self.task} has a rate and a number of examples")
        for name, value in (("examples", self.examples), ("rate", self.rate)):
            if value is not None and not 0 <= value < math.inf:
                raise InputError(f"mixture: {name} of {self.task} must not be negative: {value}")

    @property
    def name(self) -> str:
        """The name that its metrics have: "glue_cola" of "tasks.glue:cola"."""
        module, _, function = self.task.partition(":")
        return f"{module.rpartition('.')[2]}_{function}"

    @property
    def is_trained(self) -> bool:
        """Whether training draws from it."""
        return self.rate != 0 and self.examples != 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mixture:
    """Tasks that are trained on together.

    Attributes:
      members: the tasks; each once.
    """

    members: tuple[Member, ...]

    def __post_init__(self) -> None:
        names = [member.name for member in self.members]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InputError(f"a mixture has each task once; {', '.join(twice)} is there again")
        if not any(member.is_trained for member in self.members):
            raise InputError("a mixture needs a task with a rate above 0")

    def __call__(self, arguments: TaskArguments) -> list[Any]:
        """Its tasks, as its name is in the place of a task function's."""
        return [find_task(member.task)(arguments) for member in self.members]

    def without(self, names: Sequence[str]) -> "Mixture":
        """The mixture without some of its tasks (leave-one-out, section 3.5.3).

        Args:
          names: "tasks.glue:rte", "tasks.glue" for all of a module, or "glue_rte".

        Raises:
          InputError: it has no such task, or none is left to train on.
        """
        for name in names:
            known = [label for member in self.members for label in _labels(member)]
            if name not in known:
                listed = ", ".join(member.name for member in self.members)
                hint = did_you_mean(name, known) or f": it has {listed}"
                raise InputError(f"data.mixing.leave_out: the mixture has no {name!r}{hint}")
        left = tuple(m for m in self.members if not set(_labels(m)) & set(names))
        if not any(member.is_trained for member in left):
            raise InputError(
                f"data.mixing.leave_out leaves no task to train on: {', '.join(names)}"
            )
        return Mixture(members=left)

    def rates(self, mixing: Mixing, *, count: Callable[[Member], int]) -> list[float]:
        """The relative rates of its tasks, in their order.

        Args:
          mixing: how numbers of examples become rates.
          count: gives the training examples of a task that does not say how many it has.

        Raises:
          InputError: `mixing` has a limit or a temperature, and all rates are constants.
        """
        by_number = [m for m in self.members if m.is_trained and m.rate is None]
        if not by_number and (mixing.maximum is not None or mixing.temperature != 1.0):
            raise InputError(
                "data.mixing.maximum and data.mixing.temperature change nothing: all tasks of this "
                "mixture have constant rates"
            )
        return [self._rate(member, mixing, count) for member in self.members]

    def _rate(self, member: Member, mixing: Mixing, count: Callable[[Member], int]) -> float:
        if not member.is_trained:
            return 0.0
        if member.rate is not None and mixing.by != "equal":
            return float(member.rate)
        if mixing.by == "equal":
            return mixing.rate(1)
        return mixing.rate(count(member) if member.examples is None else member.examples)


def _labels(member: Member) -> tuple[str, str, str]:
    """What a member may be called."""
    return member.task, member.task.partition(":")[0], member.name


def find_mixture(data: Data) -> Mixture | None:
    """The mixture that data.task names, without what data.mixing leaves out; None for a task.

    The module of data.task is imported.

    Raises:
      InputError: there is no such name; it is a task, and data.mixing is set; or it is a mixture,
        and data.layout is that of one task's labels.
    """
    if not data.task:
        return None
    found = find_task(data.task)
    if isinstance(found, Mixture):
        if data.layout == "labelled":
            raise InputError(
                f"data.task {data.task!r} is a mixture, and a head on an encoder answers one task: "
                "name that task"
            )
        return found.without(data.mixing.leave_out)
    if data.mixing != Mixing() and not data.cache:
        raise InputError(
            f"data.mixing is set, but data.task {data.task!r} is one task and no mixture"
        )
    return None


def member_data(data: Data, member: Member) -> Data:
    """The config by which one task of a mixture is read alone, and on the fly."""
    directory = data.directory
    if member.directory and directory and not is_remote(directory):
        inside = Path(directory, member.directory)
        directory = str(inside) if inside.is_dir() else directory
    return dataclasses.replace(
        data, task=member.task, directory=directory, cache="", mixing=Mixing()
    )
