r"""Rules that select which weights of a checkpoint initialize a run.

    Init(checkpoint="work/bert")                                  # the usual case
    Init(checkpoint="work/bert", take=("model", "heads/mlm"))     # only these parts
    Init(checkpoint="work/bert", fresh=("heads/classifier",))     # this part is newly initialized
    Init(checkpoint="work/t5", rename=(r"model/encoder/(.*) -> model/\1", "model/decoder/.* ->"))

Parts are groups of parameters such as model, heads/mlm and objective, named by the beginning of
their paths. Parts are matched by name, and the model must be the same. If the checkpoint lacks a
part, the part is initialized as follows:

    a head                                               newly initialized
    a tower (towers/passage)                             the model
    its adapters (adapters/NAME/towers/passage)          the adapters of the model

Parameters of the objective are loaded only from a run with the same objective. All other missing or
unexpected parameters raise an error that lists them. The log lists skipped and newly initialized
parts.

A rename rule is "PATH IN THE CHECKPOINT -> PATH IN THE MODEL". The left side is a regular
expression that must match the complete path; the right side may use its groups as \1. The first
matching rule is applied, and paths without a match keep their name. An empty right side skips the
weights.
"""

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Literal

from t5x_lite.core import patterns, trees
from t5x_lite.core.errors import InputError
from t5x_lite.core.options import AtLeast, check_bounds
from t5x_lite.models.towers import tower_of

_ARROW = "->"
_MODEL = "model"
_OBJECTIVE = "objective"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Init:
    """Checkpoint that initializes a run, and rules that select and rename its weights.

    Attributes:
      checkpoint: a work directory, a checkpoint directory or the output of `t5x-lite import`; ""
        uses random weights. `--init DIR` is a short form.
      step: step of the work directory: a number, "best" for the step with the best evaluation, or
        None for the newest step.
      take: parameter groups of the checkpoint to use, such as model or heads/mlm; () means all.
      rename: rules "checkpoint path -> model path" for names that differ; see `checkpoints.init`.
      fresh: parts of the model, or regular expressions that match complete paths, to initialize
        randomly from the seed.
    """

    checkpoint: str = ""
    step: Annotated[int | Literal["best"] | None, AtLeast(0)] = None
    take: tuple[str, ...] = ()
    rename: tuple[str, ...] = ()
    fresh: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_bounds(self, prefix="init.")
        if not self.checkpoint:
            for name in ("step", "take", "rename", "fresh"):
                if (value := getattr(self, name)) not in (None, ()):
                    raise InputError(
                        f"init.{name} {value} needs a checkpoint, but init.checkpoint is not set; "
                        "pass --init DIR"
                    )
        self.rules()

    def rules(self, bare: Collection[str] = ()) -> "InitRules":
        """Parse `take`, `rename` and `fresh` into `InitRules`."""
        rules = InitRules.of(take=self.take, rename=self.rename, fresh=self.fresh, by_part=True)
        return dataclasses.replace(rules, bare=tuple(bare))

    def keeps(self, part: str, paths: Collection[str]) -> bool:
        """Return True if a parameter group, such as a head, is loaded without a rename."""
        if any(trees.covers(entry, part) for entry in self.fresh):
            return False
        taken = not self.take or any(trees.covers(entry, part) for entry in self.take)
        return taken and (not paths or any(self.rules().renamed(path) == path for path in paths))


@dataclasses.dataclass(frozen=True)
class InitRules:
    """Rules that map the weights of a checkpoint to the model's weights that they initialize.

    Attributes:
      rename: (pattern, replacement) pairs; the replacement "" skips a path.
      fresh: parts of the model, or patterns of paths, to initialize randomly.
      take: parts of the checkpoint to use; () means all.
      by_part: True to skip heads and objectives that only the checkpoint has, and to initialize
        heads and objectives that only the model has.
      bare: parameter groups that are empty, but that `take` and `fresh` may name without an error.
    """

    rename: tuple[tuple[str, str], ...] = ()
    fresh: tuple[str, ...] = ()
    take: tuple[str, ...] = ()
    by_part: bool = False
    bare: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        *,
        rename: Sequence[str] = (),
        fresh: Sequence[str] = (),
        take: Sequence[str] = (),
        by_part: bool = False,
    ) -> "InitRules":
        """Parse the fields of an `Init`, and check their regular expressions."""
        pairs = []
        for rule in rename:
            pattern, arrow, replacement = (part.strip() for part in rule.partition(_ARROW))
            if not arrow or not pattern:
                raise InputError(
                    f'init.rename {rule!r} must be "checkpoint path -> model path", or '
                    '"checkpoint path ->" to skip weights'
                )
            _check(pattern, replacement, where=f"init.rename {rule!r}")
            pairs.append((pattern, replacement))
        for name, entries in (("fresh", fresh), ("take", take)):
            for entry in entries:
                _check(entry, where=f"init.{name} {entry!r}")
        return cls(tuple(pairs), tuple(fresh), tuple(take), by_part)

    def sources(
        self, saved: Iterable[str], wanted: Iterable[str], *, optional: Collection[str] = ()
    ) -> dict[str, str]:
        """Return for each parameter path of the model the checkpoint path that initializes it."""
        wanted = list(wanted)
        renamed = self._all_renamed(list(saved))
        renamed |= _of_towers(wanted, renamed)
        for entry in self.fresh:
            if not any(trees.covers(entry, path) for path in (*wanted, *self.bare)):
                raise InputError(
                    f"init.fresh: no parameters of the model match {entry!r}; its parts are "
                    f"{', '.join(_parts(wanted))}"
                )
        needed, anew = [], set()
        for path in wanted:
            if any(trees.covers(entry, path) for entry in self.fresh):
                anew.add(path)
            elif path in renamed or not (path in optional or self._not_taken(path)):
                needed.append(path)
        renamed = {ours: theirs for ours, theirs in renamed.items() if ours not in anew}
        if self.by_part:
            alone = _alone(needed, renamed)
            needed = [path for path in needed if part_of(path) not in alone]
            renamed = {o: theirs for o, theirs in renamed.items() if part_of(o) not in alone}
        difference = trees.difference(needed, renamed)
        if difference:
            raise InputError(difference)
        return {path: renamed[path] for path in needed}

    def _all_renamed(self, saved: Sequence[str]) -> dict[str, str]:
        for entry in self.take:
            if not any(trees.covers(entry, path) for path in (*saved, *self.bare)):
                raise InputError(
                    f"init.take: the checkpoint has no {entry!r}; its parts are "
                    f"{', '.join(_parts(saved))}"
                )
        renamed: dict[str, str] = {}
        for theirs in saved:
            if self.take and not any(trees.covers(entry, theirs) for entry in self.take):
                continue
            ours = self.renamed(theirs)
            if ours is None:
                continue
            if ours in renamed:
                raise InputError(
                    f"init.rename maps both {renamed[ours]} and {theirs} to {ours}; change "
                    "a rule, or skip one of them"
                )
            renamed[ours] = theirs
        for pattern, _ in self.rename:
            if not any(patterns.fullmatch(pattern, path) for path in saved):
                raise InputError(
                    f"init.rename: no weights of the checkpoint match {pattern!r}; correct or "
                    "remove the rule"
                )
        return renamed

    def _not_taken(self, path: str) -> bool:
        return bool(self.take) and not any(trees.covers(entry, path) for entry in self.take)

    def renamed(self, path: str) -> str | None:
        """Return the model path for a path of the checkpoint, or None if a rule skips it."""
        for pattern, replacement in self.rename:
            match = patterns.groups(pattern, path)
            if match:
                return match.expand(replacement) or None
        return path


def summary(saved: Iterable[str], wanted: Iterable[str], sources: dict[str, str]) -> str:
    """Describe the skipped and the newly initialized parameter groups for the log; "" if none."""
    used = set(sources.values())
    left = _parts(path for path in saved if path not in used)
    anew = _parts(path for path in wanted if path not in sources)
    phrases = []
    if anew:
        phrases.append(f"{', '.join(anew)} {'is' if len(anew) == 1 else 'are'} newly initialized")
    if left:
        stays = "is" if len(left) == 1 else "are"
        phrases.append(f"{', '.join(left)} of the checkpoint {stays} not used")
    return "; ".join(phrases)


def part_of(path: str) -> str:
    """Return a path's group (part): model, objective, heads/mlm or adapters/NAME/towers/passage."""
    first, _, rest = path.partition("/")
    if (own := tower_of(path)) is not None and first != "towers":
        return f"{part_of(own[1])}/towers/{own[0]}"
    return first if first in (_MODEL, _OBJECTIVE) else f"{first}/{rest.partition('/')[0]}"


def _of_towers(wanted: Iterable[str], renamed: Mapping[str, str]) -> dict[str, str]:
    """Return the model path that initializes each parameter of a new second encoder (tower)."""
    there = {part_of(path) for path in renamed}
    found = {}
    for path in wanted:
        own = tower_of(path)
        if own is not None and part_of(path) not in there and own[1] in renamed:
            found[path] = renamed[own[1]]
    return found


def _parts(paths: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(part_of(path) for path in paths))


def _alone(needed: Iterable[str], renamed: Iterable[str]) -> set[str]:
    ours, theirs = set(needed), set(renamed)
    alone = {*map(part_of, ours)} ^ {*map(part_of, theirs)}
    if not any(part_of(path) == _OBJECTIVE for path in ours & theirs):
        alone.add(_OBJECTIVE)
    return alone - {_MODEL}


def _check(pattern: str, replacement: str | None = None, *, where: str) -> None:
    """Raise InputError if a regular expression is invalid or a replacement uses unknown groups."""
    try:
        if replacement is None:
            patterns.check(where, pattern)
            return
        patterns.check_groups(where, pattern)
        # With "|" at its end a pattern matches the empty text, and all its groups exist.
        match = re.compile(f"(?:{pattern})|").fullmatch("")
        assert match is not None
        match.expand(replacement)
    except (InputError, re.error, IndexError) as error:
        reason = str(error).removeprefix(f"{where}: ")
        raise InputError(
            f"{where}: invalid regular expression or replacement ({reason})"
        ) from error
