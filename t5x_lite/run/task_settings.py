"""Which settings of an evaluation a task has, by evaluation.per_task (`config.per_task`).

settings = TaskSettings(experiment.evaluation, experiment.data)
settings.evaluation("wmt_ende").num_beams       # 4, by "wmt_*: num_beams=4"
settings.data("wmt_ende", data).inputs_length
"""

import dataclasses
import logging
from typing import Any

from t5x_lite.config import Evaluation
from t5x_lite.config.per_task import Line
from t5x_lite.data.config import Data
from t5x_lite.data.mixtures import Member, find_mixture
from t5x_lite.errors import InputError
from t5x_lite.options import did_you_mean

_logger = logging.getLogger(__name__)


class TaskSettings:
    """The settings of the tasks of a config, by name.

    Args:
      evaluation: the settings of all, and the lines of single tasks.
      data: says which tasks there are.

    Raises:
      InputError: a line is about no task of a mixture, with the nearest name; or it gives inputs of
        another length to a task that a head answers.
    """

    def __init__(self, evaluation: Evaluation, data: Data):
        self._evaluation = evaluation
        self._lines = evaluation.lines
        # Those that are left out, too: a line about them is no mistake.
        mixing = dataclasses.replace(data.mixing, leave_out=())
        mixture = find_mixture(dataclasses.replace(data, mixing=mixing))
        members = (Member(task=data.task),) if mixture is None else mixture.members
        self._names = {member.name: _names(member) for member in members}
        for line in self._lines:
            self._check(line, is_mixture=mixture is not None)
            if "inputs_length" in line.values and data.layout.answered_by_head:
                raise InputError(
                    f"evaluation.per_task {line.pattern!r}: data.layout {data.layout.name} is "
                    "answered by a head, whose rows have one length: set --data.inputs-length"
                )

    def _check(self, line: Line, *, is_mixture: bool) -> None:
        if any(map(line.matches, self._names.values())):
            return
        if not is_mixture:  # the config of a mixture, of which one task is measured
            _logger.info("evaluation.per_task %r is not about data.task", line.pattern)
            return
        known = [name for names in self._names.values() for name in names]
        hint = did_you_mean(line.pattern, known) or f": the tasks are {', '.join(self._names)}"
        raise InputError(f"evaluation.per_task: no task is called {line.pattern!r}{hint}")

    def _values(self, name: str) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for line in self._lines:
            values |= line.values if line.matches(self._names[name]) else {}
        return values

    def evaluation(self, name: str) -> Evaluation:
        """The evaluation of one task."""
        return self._evaluation.changed(self._values(name))

    def data(self, name: str, data: Data) -> Data:
        """The config by which one task is read, with the length of its inputs."""
        length = self._values(name).get("inputs_length", data.inputs_length)
        return (
            data
            if length == data.inputs_length
            else dataclasses.replace(data, inputs_length=length)
        )

    def shown(self, name: str, data: Data) -> Data:
        """The config of the task whose examples a task's prompts show: its own, as a rule."""
        task = self._values(name).get("examples_of", data.task)
        return data if task == data.task else dataclasses.replace(data, task=task)


def _names(member: Member) -> tuple[str, ...]:
    """The names that stand for a task."""
    module, _, function = member.task.partition(":")
    return member.name, member.task, module, function
