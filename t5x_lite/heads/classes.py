"""Heads whose logits are those of classes: their names, and the order that a task has them in."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from t5x_lite.errors import InputError
from t5x_lite.heads.base import Head, by_name


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassHead(Head):
    """Base of the heads that give a logit for each class.

    Attributes:
      num_classes: number of classes.
      dropout_rate: dropout rate of the head; None is the model's.
      labels: names of the classes, where they are known.
    """

    num_classes: int = 2
    dropout_rate: float | None = None
    labels: tuple[str, ...] = ()

    fewest: ClassVar[int] = 1
    """Classes that such a head has at least."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_classes < self.fewest:
            raise InputError(f"num_classes must be at least {self.fewest}: got {self.num_classes}")
        if self.labels and len(self.labels) != self.num_classes:
            raise InputError(
                f"labels must be {self.num_classes}, as many as num_classes: got {self.labels}"
            )
        check_rate(self.dropout_rate)

    def order_of(self, labels: Sequence[str]) -> tuple[str, ...] | None:
        """A task's labels in the order of the classes, which may be another one.

        Returns:
          None where the classes have no names, or other ones than the labels; case does not matter.
        """
        names = {label.lower(): label for label in labels}
        found = [names[label.lower()] for label in self.labels if label.lower() in names]
        whole = len(set(found)) == len(found) == len(self.labels) == len(labels)
        return tuple(found) if found and whole else None


def with_labels(heads: Sequence[Head], own: Head, labels: Sequence[str]) -> tuple[Head, ...]:
    """Heads, one of which has the names of a task's classes from now on.

    Args:
      heads: of an experiment.
      own: the one that is trained; it need not be among them.
      labels: of the task, in their order.

    Raises:
      InputError: its classes are these in another order, so that it would learn them anew.
    """
    if not isinstance(own, ClassHead) or own.num_classes != len(labels):
        return tuple(heads)
    order = own.order_of(labels)
    if order is not None and order != tuple(labels):
        raise InputError(
            f"the classes of head {own.name!r} are {', '.join(order)}, and the task has them in "
            f"the order {', '.join(labels)}: --init.fresh heads/{own.name} starts the head over"
        )
    # Training makes the classes exclusive, whatever they were before.
    exclusive = {"problem_type": "auto"} if hasattr(own, "problem_type") else {}
    named = dataclasses.replace(own, labels=tuple(labels), **exclusive)
    return (*(head for head in heads if head.name != own.name), named)


def as_before(heads: Sequence[Head], earlier: Sequence[Head]) -> tuple[Head, ...]:
    """The heads of a run that goes on: those that it had, which may have got names of classes.

    Args:
      heads: of the config.
      earlier: of the run so far, in whose order they are.
    """
    ours, before = by_name(heads), by_name(earlier)
    found = [ours.get(name, head) for name, head in before.items()]
    for i, (now, then) in enumerate(zip(found, earlier, strict=True)):
        if isinstance(then, ClassHead) and dataclasses.replace(then, labels=()) == now:
            found[i] = then
    return (*found, *(head for name, head in ours.items() if name not in before))


def check_rate(rate: float | None) -> None:
    """Refuses, by an InputError, what is no rate of dropout, nor None."""
    if rate is not None and not 0.0 <= rate < 1.0:
        raise InputError(f"dropout_rate must be in [0, 1): got {rate}")
