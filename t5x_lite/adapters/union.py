"""A union: one module of several methods, as "m = seq_bn(reduction=16) + lora(r=8)".

Its methods stand at different sites: two at one site are refused, whatever their other sites are.
(The library `adapters` refuses two methods only where both sites of a layer meet, and not at all
where a layer is left out.) Parameters are at adapters/NAME/METHOD/STACK/SITE, METHOD being the
method's class in small letters, with a number from the second of its class on.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from t5x_lite.adapters.base import Adapter
from t5x_lite.adapters.places import Modules
from t5x_lite.adapters.whole_arrays import ArrayAdapter
from t5x_lite.deltas.parts import Part
from t5x_lite.errors import InputError
from t5x_lite.types import Array, Key


@dataclasses.dataclass(frozen=True, kw_only=True)
class Union(Adapter):
    """Several methods under one name.

    Attributes:
      sites: of all methods, which have their own.
      members: their configs; all have the union's name.
    """

    name: str = "union"
    sites: tuple[str, ...] = (".*",)
    members: tuple[Adapter, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.members) < 2:
            raise InputError("a union has two methods or more")
        if any(isinstance(member, Union) for member in self.members):
            raise InputError("a union has methods, and no unions")
        for member in self.members:
            if isinstance(member, ArrayAdapter):
                raise InputError(
                    f"{type(member).__name__.lower()} changes whole arrays of the model, and is "
                    "in no union: make a module of its own of it"
                )
        named = tuple(dataclasses.replace(member, name=self.name) for member in self.members)
        object.__setattr__(self, "members", named)

    @property
    def unpackable(self) -> str:
        """Why a method cannot have packed rows."""
        return next((why for member in self.members if (why := member.unpackable)), "")

    def trains(self, paths: Iterable[str]) -> tuple[str, ...]:
        """What the methods train."""
        paths = tuple(paths)
        meant = [each for member in self.members for each in member.trains(paths)]
        return tuple(dict.fromkeys(meant))

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> Modules:
        """Makes the modules of all methods.

        Raises:
          InputError: two stand at one site.
        """
        return UnionModules(
            self.name,
            [type(member).__name__.lower() for member in self.members],
            [member.build(model, rngs=rngs) for member in self.members],
        )


class UnionModules(Modules):
    """The modules of several methods.

    Args:
      name: of the union.
      methods: the methods' names.
      members: their modules.

    Raises:
      InputError: two stand at one site.
    """

    def __init__(self, name: str, methods: Sequence[str], members: Sequence[Modules]):
        super().__init__()
        times: Counter[str] = Counter()
        names, taken = [], {}
        for method, modules in zip(methods, members, strict=True):
            times[method] += 1
            names.append(f"{method}_{times[method]}" if times[method] > 1 else method)
            setattr(self, names[-1], modules)
            for place in modules.claims():
                if place in taken:
                    raise InputError(
                        f"the union {name} has {taken[place]} and {names[-1]} at {place}: give "
                        "them other sites, or make two modules and Stack them"
                    )
                taken[place] = names[-1]
        self.methods = tuple(names)
        self.places = tuple(place for modules in members for place in modules.places)

    def _members(self) -> list[Modules]:
        return [getattr(self, method) for method in self.methods]

    def complete(self) -> None:
        """Puts into each module what is not stored with it; in place."""
        for modules in self._members():
            modules.complete()

    def claims(self) -> tuple[str, ...]:
        """The places of all."""
        return tuple(place for modules in self._members() for place in modules.claims())

    def copied(self) -> tuple[str, ...]:
        """Paths of the model's arrays in whose place one of them has others."""
        return tuple(path for modules in self._members() for path in modules.copied())

    def read(self, model: Mapping[str, Any], *, key: Key | None = None) -> dict[str, Any]:
        """The arrays that stand in place of some of the model's, by path.

        Args:
          model: its arrays by path.
          key: of what is drawn in training.
        """
        made: dict[str, Any] = {}
        for number, modules in enumerate(self._members()):
            own = None if key is None else jax.random.fold_in(key, number)
            made |= modules.read({**model, **made}, key=own)
        return made

    def penalty(self) -> Array | None:
        """The sum of the methods' penalties."""
        each = [x for modules in self._members() if (x := modules.penalty()) is not None]
        return sum(each, jnp.float32(0)) if each else None

    def array_parts(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Part]:
        """Changes of the model's arrays that are made in no slot, by the arrays' paths.

        Args:
          shapes: path -> the shape of the model's array.
        """
        made: dict[str, Part] = {}
        for modules in self._members():
            made |= modules.array_parts(shapes)
        return made

    def num_unused(self) -> int:
        """Numbers that nothing reads."""
        return sum(modules.num_unused() for modules in self._members())

    def at(self, stack: str, site: str) -> Any:
        """The module of a place."""
        for modules in self._members():
            if (stack, site) in modules.places:
                return modules.at(stack, site)
        raise KeyError((stack, site))
