"""The words of a task's inputs, a hyperparameter (Raffel et al. 2020, section 2.4).

    mnli = Wording(prefix="mnli", template="hypothesis: {hypothesis} premise: {premise}")
    mnli.changed(arguments)     # with --data.template "{premise} So {hypothesis}?"
    # Wording(prefix="mnli", template="{premise} So {hypothesis}?", ...)

A task that takes data.template and data.prefix says so by `mark`; others are refused where they are
set (`live.tasks.load_task`), a task function of a user's own as well.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

from t5x_lite.data.config import TaskArguments
from t5x_lite.data.preprocess.templates import fill, places
from t5x_lite.errors import InputError

_MARK = "t5x_lite_is_worded"


@dataclass(frozen=True, kw_only=True)
class Wording:
    """What stands around the columns of a record.

    Attributes:
      prefix: what the text begins with, before a space; "" is nothing.
      template: the text behind it, with columns in braces.
      columns: those that a template may name; () are those of this template, and None any.
    """

    prefix: str
    template: str
    columns: tuple[str, ...] | None = ()

    @property
    def inputs(self) -> str:
        """The template of the whole text."""
        if not self.prefix:
            return self.template
        literal = self.prefix.replace("{", "{{").replace("}", "}}")
        return f"{literal} {self.template}"

    def changed(self, arguments: TaskArguments) -> "Wording":
        """The words that a config asks for; those that it leaves alone are the task's own.

        Raises:
          InputError: data.template has a single brace, or names no column or an unknown one.
        """
        known = places(self.template) if self.columns == () else self.columns
        prefix = self.prefix if arguments.prefix is None else arguments.prefix
        template = arguments.template or self.template
        named = places(template)
        fill(template, dict.fromkeys(named, ""))  # whether its braces are right
        listed = "" if known is None else f"; the task's columns are {', '.join(known)}"
        if arguments.template and not named:
            raise InputError(f"data.template {template!r} names no column in braces{listed}")
        unknown = [name for name in named if known is not None and name not in known]
        if unknown:
            raise InputError(f"data.template {template!r} names {unknown[0]!r}{listed}")
        return dataclasses.replace(self, prefix=prefix, template=template, columns=known)


def mark(task: Any) -> Any:
    """The same seqio.Task, which says that data.template and data.prefix reach it."""
    setattr(task, _MARK, True)
    return task


def is_marked(task: Any) -> bool:
    """Whether data.template and data.prefix reach a task."""
    return getattr(task, _MARK, False)
