"""The metrics by which a checkpoint is chosen, by name: "validation/glue_rte/score".

    matching("validation/*/score", ["validation/loss", "validation/glue_rte/score"])
    mode_of("validation/loss")                              # "min": the lowest is best
    best_step({100: 5.7, 200: 5.5}, mode="min")             # 200
    refuse_test("checkpoints.best", "test/accuracy")        # InputError

Checkpoints that stay, early stopping, `--step best` and the report all choose by these functions.
What is chosen by a test split is no longer measured by it: that is refused.
"""

import fnmatch
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

from t5x_lite.errors import InputError

Mode: TypeAlias = Literal["max", "min"]
"""Whether the highest or the lowest value of a metric is best."""

_LOWEST_IS_BEST = re.compile(
    r"(?:.*[_-])?"
    r"(?:loss|(?:cross[_-]?)?entropy|perplexity|ppl|nll|error(?:[_-]rate)?|wer|cer|mse|rmse|mae"
    r"|bag_of_words)"
)
"""The last part of the names of losses and errors; all other metrics are best where highest."""
_LISTED = 3


def mode_of(name: str, mode: Mode | None = None) -> Mode:
    """Whether the highest or the lowest value of a metric is best.

    Args:
      name: of the metric; losses, cross entropies, perplexities and errors are best where lowest.
      mode: the one that a config sets; None goes by the name.
    """
    if mode is not None:
        return mode
    own = name.rpartition("/")[2].lower()
    return "min" if _LOWEST_IS_BEST.fullmatch(own) else "max"


def best_step(values: Mapping[int, float], *, mode: Mode) -> int | None:
    """The step that has the best value, the last of equals; what is not finite is never best."""
    sign = 1 if mode == "max" else -1
    finite = {step: sign * value for step, value in values.items() if math.isfinite(value)}
    return max(finite, key=lambda step: (finite[step], step), default=None)


def described(names: Sequence[str], mode: Mode | None = None) -> str:
    """What is best, in words: "the lowest validation/loss, the highest validation/accuracy"."""
    groups = {
        word: [name for name in names if mode_of(name, mode) == one]
        for word, one in (("lowest", "min"), ("highest", "max"))
    }
    return ", ".join(f"the {word} {_listed(group)}" for word, group in groups.items() if group)


def contradiction(field: str, names: Sequence[str], mode: Mode | None) -> str | None:
    """A warning that a mode is not what the names of the metrics say; None where it agrees.

    Args:
      field: the setting that has the mode, such as "checkpoints.best_mode".
      names: of the metrics.
      mode: its value; None goes by the names.
    """
    against = [name for name in names if mode is not None and mode_of(name) != mode]
    if not against:
        return None
    return (
        f"{field} {mode!r} takes {described(against, mode)} for the best, and by the name it is "
        f"{described(against)}; set {field} None to go by the name"
    )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """The names that a pattern with *, ? and [...] matches as a whole, in their order."""
    return [name for name in names if name == pattern or fnmatch.fnmatchcase(name, pattern)]


def is_test(split: str) -> bool:
    """Whether a split is one to be measured on and not to be chosen by."""
    return split.strip().lower().startswith("test")


def refuse_test(field: str, name: str | None) -> None:
    """Refuses a metric of a test split as the one that chooses.

    Args:
      field: the setting that names it.
      name: "<split>/<metric>", or a pattern; None chooses nothing.

    Raises:
      InputError: it is of a test split.
    """
    if name is not None and is_test(name.partition("/")[0]):
        raise InputError(
            f"{field} {name!r} would choose a model by a test split, which could not measure it "
            "any more: choose by validation, and measure the test split with t5x-lite evaluate"
        )
