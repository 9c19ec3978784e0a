"""Mixtures: named sets of tasks that a model is trained on together, with rates.

    glue = Mixture(members=(Member(task="tasks.glue:cola", examples=8551), ...))

data.task names a mixture like a task, as "module:name", and data.mixing sets the rates:

    --data.task tasks.mixtures:glue --data.mixing.temperature 2 --data.mixing.maximum 2097152
    --data.task tasks.mixtures:all_proportional --data.mixing.leave-out tasks.squad

Each task is evaluated separately, with its name in the metrics:
"validation/glue_cola/matthews_correlation". Reading a mixture does not import its tasks.
`data.reading` samples the examples.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from t5x_lite.core.errors import InputError
from t5x_lite.core.object_store import can_read, data_path
from t5x_lite.core.options import did_you_mean
from t5x_lite.core.remote import is_remote
from t5x_lite.data.config import Data, TaskArguments, names_of, truncation_of, wording_of
from t5x_lite.data.mixing import Mixing
from t5x_lite.data.tasks.names import SEQIO, RegisteredMixture, find_task, parts_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Member:
    """One task of a mixture.

    Attributes:
      task: name of the task, "module:function".
      examples: number of training examples, from which data.mixing computes the rate; None to count
        the examples.
      maximum: limit on the number of training examples when the rate is computed, independent of
        data.mixing.maximum; None for no limit.
      rate: constant rate, instead of a rate from data.mixing; 0 for a task that is only evaluated.
      unlabelled: True for unlabelled text in a mixture with labelled tasks. Then
        data.mixing.unlabelled, if set, replaces the rate. `rate` may then be set together with
        data.mixing.maximum and data.mixing.temperature, which do not change it.
      shared_examples: name of the training examples if several members have the same training
        examples, such as RTE in GLUE and SuperGLUE; these members share the rate of a single one.
      directory: subdirectory of data.directory with the task's files, used if it exists.
      language: language of multilingual text; several members may then belong to one task.
      cache: directory of the cache, if one task has several caches, such as one per language. The
        directory is then the member's name, and leave_out also accepts its last path component.
      measured: True to evaluate the task; False if its held-out splits are separate tasks.
      form_of: for a task that is only evaluated, the tasks with the same form of inputs. The task
        is evaluated only if the mixture trains on one of these tasks, and is excluded from the mean
        score.
    """

    task: str
    examples: int | None = None
    maximum: int | None = None
    rate: float | None = None
    unlabelled: bool = False
    shared_examples: str = ""
    directory: str = ""
    language: str = ""
    cache: str = ""
    measured: bool = True
    form_of: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.examples is not None and self.rate is not None:
            raise InputError(
                f"mixture: task {self.task} has both a rate and a number of examples; give only "
                "one of them"
            )
        if self.maximum is not None and (self.maximum < 1 or self.rate is not None):
            raise InputError(
                f"mixture: the maximum of task {self.task} must be at least 1, or None if the "
                f"rate of the task is constant, but is {self.maximum}"
            )
        if self.shared_examples and self.rate is not None:
            raise InputError(
                f"mixture: task {self.task} has a constant rate, so it cannot have shared_examples"
            )
        for name, value in (("examples", self.examples), ("rate", self.rate)):
            if value is not None and not 0 <= value < math.inf:
                raise InputError(
                    f"mixture: the {name} of task {self.task} must not be negative, but is {value}"
                )

    @property
    def name(self) -> str:
        """Name of the task in metrics, such as "glue_cola" for "tasks.glue:cola".

        A task of seqio's registry keeps its name.
        """
        if self.cache:
            return self.cache
        module, function = parts_of(self.task)
        if self.task.startswith(f"{SEQIO}:"):
            return function
        suffix = f"_{self.language}" if self.language else ""
        return f"{module.rpartition('.')[2]}_{function}{suffix}"

    @property
    def named_task(self) -> str:
        """Name of the task; for one language of a task, such as "module:task[fr]"."""
        return f"{self.task}[{self.language}]" if self.language else self.task

    @property
    def is_trained(self) -> bool:
        """True if training samples examples of this task."""
        return self.rate != 0 and self.examples != 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mixture:
    """Set of tasks that a model is trained on together.

    Attributes:
      members: the tasks, each with its rate or number of examples; no task occurs twice.
    """

    members: tuple[Member, ...]

    def __post_init__(self) -> None:
        names = [member.name for member in self.members]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InputError(
                f"a mixture may have each task only once, but {', '.join(twice)} occurs twice"
            )
        if not any(member.is_trained for member in self.members):
            raise InputError("a mixture has no task with a rate above 0")

    def __call__(self, arguments: TaskArguments) -> list[Any]:
        return [find_task(member.task)(arguments) for member in self.members]

    def unanswered(self, member: Member) -> str:
        """Return the reason why a model trained on this mixture cannot answer a task, or ""."""
        trained = {other.task for other in self.members if other.is_trained}
        if not member.form_of or trained & set(member.form_of):
            return ""
        return (
            f"its inputs have the form of {' and '.join(member.form_of)}, which this mixture "
            f"does not train on; run evaluate --data.task {member.task} with the --checkpoint of "
            "a run that trained on this form, and copy the submission file to the other "
            "submission files"
        )

    def without(self, names: Sequence[str]) -> "Mixture":
        """Return the mixture without some of its tasks (leave-one-out, T5 paper, section 3.5.3)."""
        gone = {member.name for name in names for member in self._named(name)}
        left = tuple(member for member in self.members if member.name not in gone)
        if not any(member.is_trained for member in left):
            raise InputError(
                f"data.mixing.leave_out removes all tasks to train on: {', '.join(names)}"
            )
        return Mixture(members=left)

    def with_unlabelled(self, examples: int | None) -> "Mixture":
        """Return the mixture with another sampling rate of unlabelled text; None keeps the rate."""
        if examples is None:
            return self
        if not any(member.unlabelled and member.is_trained for member in self.members):
            raise InputError(
                f"data.mixing.unlabelled is {examples}, but the mixture has no unlabelled text"
            )
        return Mixture(
            members=tuple(
                dataclasses.replace(
                    member, examples=None, maximum=None, shared_examples="", rate=float(examples)
                )
                if member.unlabelled and member.is_trained
                else member
                for member in self.members
            )
        )

    def _named(self, name: str) -> list[Member]:
        """Return the members to which a name refers; raise InputError for an unknown name."""
        named = [member for member in self.members if name in _labels(member)]
        if named:
            return named
        short = [member for member in self.members if name == parts_of(member.task)[1]]
        if len(short) == 1:
            return short
        if short:
            several = " or ".join(member.name for member in short)
            raise InputError(
                f"data.mixing.leave_out: the name {name!r} is ambiguous and can mean {several}; "
                "give one of these names"
            )
        listed = ", ".join(member.name for member in self.members)
        known = [label for member in self.members for label in _labels(member)]
        hint = did_you_mean(name, known) or f"; its tasks are {listed}"
        raise InputError(f"data.mixing.leave_out: the mixture has no task {name!r}{hint}")

    def rates(self, mixing: Mixing, *, count: Callable[[Member], int]) -> list[float]:
        """Return the relative sampling rate of each task, in the order of `members`.

        Members with the same `shared_examples` share the rate of a single task. If data.mixing.by
        is "equal", each of these members has the full rate.
        """
        constants = self.constants(mixing)
        if constants and len(constants) == sum(member.is_trained for member in self.members):
            raise InputError(
                "data.mixing.maximum and data.mixing.temperature have no effect, because all "
                "tasks of this mixture have constant rates"
            )
        unreached = [member.name for member in constants if not member.unlabelled]
        if unreached:
            raise InputError(
                "data.mixing.maximum and data.mixing.temperature do not change the constant "
                f"rates of {', '.join(unreached)}; unset both, or use a mixture without constant "
                "rates, such as tasks.mixtures:all_proportional"
            )
        sharing = Counter(m.shared_examples for m in self.members if m.is_trained)
        return [
            self._rate(member, mixing, count, of=sharing[member.shared_examples])
            for member in self.members
        ]

    def constants(self, mixing: Mixing) -> list[Member]:
        """Return the tasks with constant sampling rates, which no limit or temperature changes."""
        if mixing.maximum is None and mixing.temperature == 1.0:
            return []
        return [m for m in self.members if m.is_trained and m.rate is not None]

    def _rate(
        self, member: Member, mixing: Mixing, count: Callable[[Member], int], *, of: int
    ) -> float:
        if not member.is_trained:
            return 0.0
        if mixing.by == "equal":
            return mixing.rate(1)
        if member.rate is not None:
            return float(member.rate)
        examples = count(member) if member.examples is None else member.examples
        rate = mixing.rate(examples if member.maximum is None else min(examples, member.maximum))
        return rate / of if member.shared_examples else rate


def _labels(member: Member) -> tuple[str, ...]:
    """Return the names with which data.mixing.leave_out may refer to a member."""
    of_cache = names_of(member.cache) if member.cache else ()
    return member.task, parts_of(member.task)[0], member.name, *of_cache


def mixture_named(name: str) -> Mixture | None:
    """Return the mixture with a name such as "module:name"; None if a task has this name.

    The module is imported.
    """
    found = find_task(name)
    if isinstance(found, RegisteredMixture):
        return Mixture(members=tuple(Member(task=k, rate=v) for k, v in found.rates.items()))
    return found if isinstance(found, Mixture) else None


def find_mixture(data: Data) -> Mixture | None:
    """Return the mixture that data.task names, or None if data.task is a single task.

    Tasks of data.mixing.leave_out are removed, and unlabelled text has the rate
    data.mixing.unlabelled. The module of data.task is imported.
    """
    if not data.task:
        return None
    found = mixture_named(data.task)
    if found is not None and data.languages:
        raise InputError(
            f"data.languages needs a single task, but data.task {data.task!r} is a mixture; set "
            "data.task to one task"
        )
    if len(data.languages) > 1 or "all" in data.languages:
        found = of_languages(data)
    if found is not None:
        if data.layout.answered_by_head:
            raise InputError(
                f"data.task {data.task!r} is a mixture, but a model with an encoder head supports "
                "only one task; set data.task to one task"
            )
        if words := wording_of(data):
            raise InputError(
                f"data.{next(iter(words))} is for one task, but data.task {data.task!r} is a "
                "mixture of tasks with different columns; set data.task to one task, or mix "
                "caches that were each written with a template"
            )
        if data.augment.run:
            raise InputError(
                "data.augment.run contains the example ids of one task, but data.task "
                f"{data.task!r} is a mixture; set data.task to one task, or mix caches that were "
                "each written with a run"
            )
        for name in truncation_of(data):
            raise InputError(
                f"data.{name} limits one task to its first examples, but data.task {data.task!r} "
                f"is a mixture; set data.task to one task, or unset data.{name}"
            )
        left = found.without(data.mixing.leave_out)
        return left.with_unlabelled(data.mixing.unlabelled)
    if data.mixing != Mixing() and not data.cache:
        raise InputError(
            f"data.mixing is set, but data.task {data.task!r} is a single task, not a mixture"
        )
    return None


def of_languages(data: Data) -> Mixture:
    """Return a mixture of the languages in data.languages; each language is one member.

    data.mixing computes the sampling rate of a language from the size of the language's data: the
    number of examples in TFDS, or of bytes in files.
    """
    from t5x_lite.data.tasks.text_source import language_sizes
    from t5x_lite.data.tasks.unsupervised import check_language

    sizes = language_sizes(data.directory)
    names = [*sizes] if "all" in data.languages else [*data.languages]
    for name in names:
        check_language(name, sizes, where=f"data.directory {data.directory}")
    return Mixture(
        members=tuple(
            Member(task=data.task, language=name, examples=max(1, sizes[name])) for name in names
        )
    )


def member_data(data: Data, member: Member) -> Data:
    """Return a config that reads only one task of a mixture."""
    directory = data.directory
    if member.directory and directory and (not is_remote(directory) or can_read(directory)):
        inside = data_path(directory) / member.directory
        directory = str(inside) if inside.is_dir() else directory
    return dataclasses.replace(
        data,
        task=member.task,
        directory=directory,
        languages=(member.language,) if member.language else (),
        cache="",
        mixing=Mixing(),
    )
