r"""Rules by which the weights of another checkpoint become ours, for fine-tuning from them.

    rules = InitRules.of(
        rename=(r"model/encoder/(.*) -> model/\1", "model/decoder/.* ->"),
        fresh=("objective/.*",),
    )

A rename rule is "their path -> our path": a regular expression that must match a whole path, and
what it becomes, with \1 for its groups; the first rule that matches is used, and a path that none
matches keeps its name. Nothing behind the arrow leaves the weights out. A fresh pattern names paths
of ours that stay as they are initialised where the checkpoint does not hold them. Everything else
that is missing or unexpected is an error that lists it.
"""

import dataclasses
import re
from collections.abc import Collection, Iterable, Sequence

from t5x_lite import trees
from t5x_lite.errors import InputError

_ARROW = "->"


@dataclasses.dataclass(frozen=True)
class InitRules:
    """Which saved weights initialise which of ours.

    Attributes:
      rename: (pattern, replacement) pairs; "" as the replacement leaves a path out.
      fresh: patterns of our paths that may be missing.
    """

    rename: tuple[tuple[str, str], ...] = ()
    fresh: tuple[str, ...] = ()

    @classmethod
    def of(cls, *, rename: Sequence[str] = (), fresh: Sequence[str] = ()) -> "InitRules":
        """Reads the fields `init_rename` and `init_fresh` of a config.

        Raises:
          InputError: a rule without "->", or an invalid regular expression.
        """
        pairs = []
        for rule in rename:
            pattern, arrow, replacement = (part.strip() for part in rule.partition(_ARROW))
            if not arrow or not pattern:
                raise InputError(
                    f'init_rename {rule!r} must be "their path -> our path", or "their path ->" '
                    "to leave weights out"
                )
            _check(pattern, replacement, where=f"init_rename {rule!r}")
            pairs.append((pattern, replacement))
        for pattern in fresh:
            _check(pattern, where=f"init_fresh {pattern!r}")
        return cls(tuple(pairs), tuple(fresh))

    def sources(
        self, saved: Iterable[str], wanted: Iterable[str], *, optional: Collection[str] = ()
    ) -> dict[str, str]:
        """Which saved path initialises each path of ours.

        Args:
          saved: the paths of the checkpoint.
          wanted: the paths of the model.
          optional: those of them that may be missing, whatever the rules say.

        Returns:
          our path -> their path; what stays fresh is not there.

        Raises:
          InputError: naming what is missing and unexpected, two paths with one name, or a rule
            that nothing matches.
        """
        saved, wanted = list(saved), list(wanted)
        renamed: dict[str, str] = {}
        for theirs in saved:
            ours = self._renamed(theirs)
            if ours is None:
                continue
            if ours in renamed:
                raise InputError(
                    f"init_rename gives {renamed[ours]} and {theirs} the same name {ours}"
                )
            renamed[ours] = theirs
        for pattern, _ in self.rename:
            if not any(re.fullmatch(pattern, path) for path in saved):
                raise InputError(f"init_rename: no weights of the checkpoint match {pattern!r}")
        for pattern in self.fresh:
            if not any(re.fullmatch(pattern, path) for path in wanted):
                raise InputError(f"init_fresh: no parameters of the model match {pattern!r}")
        needed = [
            path
            for path in wanted
            if path in renamed
            or not (path in optional or any(re.fullmatch(each, path) for each in self.fresh))
        ]
        difference = trees.difference(needed, renamed)
        if difference:
            raise InputError(difference)
        return {path: renamed[path] for path in needed}

    def _renamed(self, path: str) -> str | None:
        """Our name of a saved path; None where it is left out."""
        for pattern, replacement in self.rename:
            match = re.fullmatch(pattern, path)
            if match:
                return match.expand(replacement) or None
        return path


def _check(pattern: str, replacement: str = "", *, where: str) -> None:
    """Refuses what is no regular expression, and a replacement that names groups it has not."""
    try:
        # Behind "|" an empty text matches every pattern, with all of its groups.
        match = re.compile(f"(?:{pattern})|").fullmatch("")
        assert match is not None
        match.expand(replacement)
    except (re.error, IndexError) as error:
        raise InputError(
            f"{where}: not a regular expression and its replacement ({error})"
        ) from error
