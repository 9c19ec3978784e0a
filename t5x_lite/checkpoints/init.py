r"""Rules that select the weights that initialize a run, and the base of partial checkpoints.

Base of a checkpoint that stores only the trained parameters.

A run that freezes parameters from the checkpoint of `init` does not save them again. This other
checkpoint is the base. files/base.json lists the frozen arrays, each with a digest of its values:

    {"version": 1,
     "checkpoint": "/runs/t5/checkpoints/2000",         # absolute path of the base at that time
     "relative": "../../../t5/checkpoints/2000",        # path relative to this checkpoint directory
     "digest": "5d41402a...",                           # digest of all arrays below
     "arrays": {"model/encoder/...": {"path": "model/encoder/...", "digest": "9f86d0818c5e2a11"}}}

Digests are computed from the float32 values. So the base may have another dtype or device layout,
and it may be imported again. A reader looks for the base at the recorded path, or at a link `base`
in the work directory or next to the checkpoint directory. A base may itself have a base.

Rules that select which weights of a checkpoint initialize a run.

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

import contextlib
import contextvars
import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, UInt32

from t5x_lite.core import remote, renames, trees
from t5x_lite.core.errors import InputError
from t5x_lite.core.options import AtLeast, check_bounds
from t5x_lite.core.remote import AnyPath
from t5x_lite.core.tied_parameters import SCALE
from t5x_lite.core.trees import Array
from t5x_lite.models.vector_heads import tower_of

BASE_FILE = "base.json"
LINK = "base"
"""Name of a link to a base checkpoint that was moved, in a work directory or next to a
checkpoint."""

_VERSION = 1

_elsewhere: contextvars.ContextVar[str | None] = contextvars.ContextVar("base", default=None)


@contextlib.contextmanager
def base_at(directory: str | None) -> Iterator[None]:
    """Read base checkpoints from a given directory (option `--base`) within the `with` block.

    If `directory` is None, the recorded paths of base checkpoints are used.
    """
    if directory is not None and not remote.open_path(directory).is_dir():
        raise InputError(f"base {directory}: no such directory")
    token = _elsewhere.set(directory)
    try:
        yield
    finally:
        _elsewhere.reset(token)


@dataclasses.dataclass(frozen=True)
class Leaf:
    """Reference to a frozen array that only the base checkpoint stores.

    Attributes:
      path: path of the array in the base checkpoint.
      digest: digest of the array's float32 values, 16 hexadecimal digits; see `digests`.
    """

    path: str
    digest: str


@dataclasses.dataclass(frozen=True)
class Base:
    """Reference to the base checkpoint that stores the frozen arrays of a checkpoint.

    Attributes:
      checkpoint: checkpoint directory of the base when the run started.
      relative: path of the base, relative to the run's checkpoint directories; "" if unknown.
      arrays: references to the frozen arrays, by their paths in the run's checkpoints.
    """

    checkpoint: str
    relative: str
    arrays: Mapping[str, Leaf]

    @classmethod
    def of(
        cls, params: Mapping[str, Any], sources: Mapping[str, str], *, base: AnyPath, steps: AnyPath
    ) -> "Base":
        """Return a reference to a base checkpoint, with a digest of each frozen array."""
        flat = trees.flatten(params)
        found = digests({path: flat[path] for path in sources})
        where = os.fspath(base) if remote.is_remote(base) else os.path.abspath(base)
        relative = ""
        if not (remote.is_remote(base) or remote.is_remote(steps)):
            relative = os.path.relpath(where, os.path.abspath(steps / "0"))
        arrays = {ours: Leaf(theirs, found[ours]) for ours, theirs in sources.items()}
        return cls(where, relative, arrays)

    @classmethod
    def read(cls, files: Mapping[str, bytes], *, where: object) -> "Base | None":
        """Parse base.json from a checkpoint's files; return None if the checkpoint has no base."""
        if BASE_FILE not in files:
            return None
        try:
            content = json.loads(files[BASE_FILE])
            if content["version"] != _VERSION:
                raise ValueError(
                    f"format version {content['version']} of base.json is not supported, only "
                    f"version {_VERSION}"
                )
            leaves = {str(path): leaf for path, leaf in content["arrays"].items()}
            theirs = {path: str(leaf["path"]) for path, leaf in leaves.items()}
            ours, today = (renames.current_paths(paths) for paths in (leaves, theirs.values()))
            arrays = {
                ours[path]: Leaf(today[theirs[path]], str(leaf["digest"]))
                for path, leaf in leaves.items()
            }
            return cls(str(content["checkpoint"]), str(content["relative"]), arrays)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise InputError(
                f"checkpoint {where}: files/{BASE_FILE} is damaged ({error})"
            ) from error

    def content(self) -> bytes:
        """Return the bytes of base.json."""
        leaves = {path: dataclasses.asdict(leaf) for path, leaf in sorted(self.arrays.items())}
        return json.dumps(
            {
                "version": _VERSION,
                "checkpoint": self.checkpoint,
                "relative": self.relative,
                "digest": self.digest,
                "arrays": leaves,
            },
            indent=1,
        ).encode()

    @property
    def digest(self) -> str:
        """SHA-256 of the paths and digests of all arrays."""
        lines = (f"{path} {leaf.digest}\n" for path, leaf in sorted(self.arrays.items()))
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def rest(self, tree: Mapping[str, Any]) -> dict[str, Any]:
        """Return a parameter tree without the arrays that the base checkpoint stores."""
        return trees.partition(tree, lambda path, _: path.removesuffix(SCALE) not in self.arrays)[0]

    def candidates(self, step_directory: AnyPath) -> Iterator[AnyPath]:
        """Yield the directories in which the base checkpoint may be, in order of priority."""
        elsewhere = _elsewhere.get()
        if elsewhere is not None and not _is_inside(step_directory, elsewhere):
            yield remote.open_path(elsewhere)
            return
        step, is_local = step_directory, not remote.is_remote(step_directory)
        if is_local:
            step = remote.open_path(os.path.abspath(step_directory))
        number = os.path.basename(self.checkpoint)
        for link in (step.parent / LINK, step.parent.parent / LINK):
            yield from (link / "checkpoints" / number, link / number, link)
        yield remote.open_path(self.checkpoint)
        if self.relative and is_local:
            yield remote.open_path(os.path.normpath(step / self.relative))

    def missing(self, step_directory: AnyPath) -> InputError:
        """Return the InputError for a missing base checkpoint."""
        elsewhere = _elsewhere.get()
        if elsewhere is not None and not _is_inside(step_directory, elsewhere):
            return InputError(
                f"checkpoint {step_directory} holds only the trained parameters, but "
                f"{elsewhere} holds no checkpoint; pass --base with a copy of the base "
                f"checkpoint {self.checkpoint}"
            )
        work = step_directory.parent
        work = work.parent if work.name == "checkpoints" else work
        return InputError(
            f"checkpoint {step_directory} holds only the trained parameters, but its base "
            f"checkpoint {self.checkpoint} is missing; restore the base, or put a copy or a "
            f"link at {work / LINK}"
        )

    def other(self, found: Mapping[str, Any]) -> str | None:
        """Return the path of the first array that does not match its recorded digest, or None."""
        for path, digest in digests(found).items():
            if digest != self.arrays[path].digest:
                return self.arrays[path].path
        return None


def _is_inside(step_directory: AnyPath, directory: str) -> bool:
    step, above = os.fspath(step_directory), directory
    if remote.is_remote(step_directory) != remote.is_remote(remote.open_path(directory)):
        return False
    if not remote.is_remote(step_directory):
        step, above = os.path.realpath(step), os.path.realpath(above)
    above = above.rstrip("/")
    return step == above or step.startswith(f"{above}/")


def digests(arrays: Mapping[str, Any]) -> dict[str, str]:
    """Return a 64-bit digest of each array, independent of the array's sharding.

    Digests are sums of hashes of float32 values and indices. They detect mistakes, not attacks.
    """
    lanes = jax.device_get(_all_lanes(list(arrays.values())))
    found = {}
    for path, lane in zip(arrays, lanes, strict=True):
        content = repr(tuple(arrays[path].shape)).encode() + np.asarray(lane).tobytes()
        found[path] = hashlib.sha256(content).hexdigest()[:16]
    return found


@jax.jit
def _all_lanes(arrays: list[Array]) -> list[Array]:
    return [_lanes(array.astype(jnp.float32)) for array in arrays]


def _lanes(array: Float[Array, "*axes"]) -> UInt32[Array, " 2"]:
    """Return two 32-bit checksums of an array."""
    bits = jax.lax.bitcast_convert_type(array, jnp.uint32)
    place, stride = jnp.zeros((), jnp.uint32), 1
    for axis in reversed(range(array.ndim)):
        counted = jax.lax.broadcasted_iota(jnp.uint32, array.shape, axis)
        place = place + counted * np.uint32(stride % 2**32)
        stride *= array.shape[axis]
    first = _mixed(bits ^ _mixed(place + np.uint32(0x9E3779B9)))
    second = _mixed(first + place * np.uint32(0x85EBCA77) + np.uint32(0xC2B2AE3D))
    return jnp.stack([jnp.sum(first, dtype=jnp.uint32), jnp.sum(second, dtype=jnp.uint32)])


def _mixed(x: UInt32[Array, "*axes"]) -> UInt32[Array, "*axes"]:
    """Apply the last step of MurmurHash3, 32 bits (Appleby 2011)."""
    x = (x ^ (x >> 16)) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * np.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


_ARROW = "->"
_MODEL = "model"
_OBJECTIVE = "objective"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Init:
    """Checkpoint that initializes a run, and rules that select and rename its weights.

    Attributes:
      checkpoint: a work directory, a checkpoint directory or the output of `t5x-lite import`; ""
        uses random weights. `--init DIR` sets this option.
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
        rules = InitRules.of(take=self.take, rename=self.rename, fresh=self.fresh, by_part=True)
        return dataclasses.replace(rules, bare=tuple(bare))

    def keeps(self, part: str, paths: Collection[str]) -> bool:
        """Return True if a parameter group, such as "heads/mlm", is loaded under its own name."""
        if any(trees.covers(entry, part) for entry in self.fresh):
            return False
        taken = not self.take or any(trees.covers(entry, part) for entry in self.take)
        return taken and (not paths or any(self.rules().renamed(path) == path for path in paths))


@dataclasses.dataclass(frozen=True)
class InitRules:
    """Rules that select and rename the weights of a checkpoint to initialize a model.

    Attributes:
      rename: (pattern, replacement) pairs; the replacement "" skips a path.
      fresh: parameter groups, or patterns of paths, to initialize randomly.
      take: parameter groups of the checkpoint to use; () means all.
      by_part: True to skip heads and objectives that only the checkpoint or only the model has.
      bare: further names that `take` and `fresh` accept: parameter groups without arrays.
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
        """Parse the rules of an `Init` config, and check their regular expressions."""
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
        """Map each parameter path of the model to the checkpoint path that initializes it."""
        wanted = list(wanted)
        renamed = self._all_renamed(list(saved))
        renamed |= _of_towers(wanted, renamed)
        for entry in self.fresh:
            if not any(trees.covers(entry, path) for path in (*wanted, *self.bare)):
                raise InputError(
                    f"init.fresh: no parameters of the model match {entry!r}; its parameter "
                    f"groups are {', '.join(_parts(wanted))}"
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
                    f"init.take: no parameters of the checkpoint match {entry!r}; its parameter "
                    f"groups are {', '.join(_parts(saved))}"
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
            if not any(trees.fullmatch(pattern, path) for path in saved):
                raise InputError(
                    f"init.rename: no weights of the checkpoint match {pattern!r}; correct or "
                    "remove the rule"
                )
        return renamed

    def _not_taken(self, path: str) -> bool:
        return bool(self.take) and not any(trees.covers(entry, path) for entry in self.take)

    def renamed(self, path: str) -> str | None:
        """Return the model path for a path of the checkpoint, or None to skip the parameter."""
        for pattern, replacement in self.rename:
            match = trees.groups(pattern, path)
            if match:
                return match.expand(replacement) or None
        return path


def summary(saved: Iterable[str], wanted: Iterable[str], sources: dict[str, str]) -> str:
    """Return a log message that lists skipped and randomly initialized parameters, or ""."""
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
    """Return the parameter group of a path, such as "model", "objective" or "heads/mlm"."""
    first, _, rest = path.partition("/")
    if (own := tower_of(path)) is not None and first != "towers":
        return f"{part_of(own[1])}/towers/{own[0]}"
    return first if first in (_MODEL, _OBJECTIVE) else f"{first}/{rest.partition('/')[0]}"


def _of_towers(wanted: Iterable[str], renamed: Mapping[str, str]) -> dict[str, str]:
    """Map each parameter of a new passage encoder to the parameter that initializes it."""
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
    """Raise InputError if a rename rule has an invalid regular expression."""
    try:
        if replacement is None:
            trees.check(where, pattern)
            return
        trees.check_groups(where, pattern)
        # With "|" at its end a pattern matches the empty text, and all its groups exist.
        match = re.compile(f"(?:{pattern})|").fullmatch("")
        assert match is not None
        match.expand(replacement)
    except (InputError, re.error, IndexError) as error:
        reason = str(error).removeprefix(f"{where}: ")
        raise InputError(
            f"{where}: invalid regular expression or replacement ({reason})"
        ) from error
