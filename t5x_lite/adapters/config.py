"""Config of a run's adapters: strings that a config file and the command line can both set.

    adapters = Adapters(add=("rte = lora(r=8)",), load=("nli=work/nli",), use="rte", train=("rte",))

`t5x_lite.adapters.grammar` defines the syntax of these strings.
"""

import dataclasses
import re
from typing import Literal

from t5x_lite.adapters.base import ADAPTERS, Adapter, by_name
from t5x_lite.adapters.composition import Block, trained_of, walk
from t5x_lite.adapters.grammar import (
    RESERVED,
    parse_module,
    parse_trees,
    parse_use,
    reserved,
    write_module,
    write_trees,
)
from t5x_lite.core.errors import InputError, shown
from t5x_lite.core.options import did_you_mean

_LOAD = re.compile(r"([^\W\d]\w*)=(.+)")

HEAD = r"(?:heads|objective)/.*"
"""Regular expression for parameter paths of heads and of the objective's own layers."""

FUSION = r"adapters/fusion/.*"
"""Regular expression for parameter paths of AdapterFusion layers."""

ROUTER = r"adapters/router/.*"
"""Regular expression for parameter paths of the routers between adapters."""

COMPOSING = (FUSION, ROUTER)
"""Regular expressions for the parameters of AdapterFusion layers and routers."""

_PARTS = {
    "head": HEAD,
    "fusion": FUSION,
    "router": ROUTER,
    "norms": r"(?:model|towers)/(?:.*/)?\w*norm(?:/.*)?",
    "base": r"(?:model|towers)/.*",
}
"""Names other than adapter names in `train` -> regular expressions for parameter paths."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adapters:
    """Configuration of a run's adapters; the model itself is frozen.

    Attributes:
      add: new adapters, "NAME = METHOD(OPTION=VALUE, ...)", such as "rte = lora(r=8)".
      load: trained adapters, NAME=DIR. If work directory DIR has no adapter NAME, its only adapter
        is loaded with this name. Loaded adapters are frozen unless `train` names them.
      use: adapters in use, separated by commas, or composition blocks such as "Stack(en, Fuse(sst2,
        nli))" (`t5x_lite.adapters.grammar`); "" uses all added and loaded adapters.
      train: names of adapters to train, "fusion" or "router" for the layers of Fuse or Route
        compositions, "head" for heads and the objective's own layers, "norms" for the model's layer
        norms, "base" for the complete base model; () trains the adapters of `add`, fusions, routers
        and the head.
      base_dtype: dtype of the frozen model during training; adapters stay in float32. int8 stores
        the kernels in int8, with a scale for each column, and all other arrays in float32.
    """

    add: tuple[str, ...] = ()
    load: tuple[str, ...] = ()
    use: str = ""
    train: tuple[str, ...] = ()
    base_dtype: Literal["float32", "bfloat16", "int8"] = "float32"

    def __post_init__(self) -> None:
        if self.base_dtype not in ("float32", "bfloat16", "int8"):
            raise InputError(
                f"adapters.base_dtype must be float32, bfloat16 or int8, got {self.base_dtype!r}"
            )
        added = self.added
        if self.base_dtype != "float32" and not (added or self.load):
            raise InputError(
                f"adapters.base_dtype {self.base_dtype} needs a frozen base model; add an adapter "
                "with --adapters.add"
            )
        names = dict.fromkeys([*added, *self.loaded])
        self._check_use(tuple(names))
        for name in self.train:
            if name in _PARTS:
                continue
            if name not in names:
                raise InputError(
                    "adapters.train names the unknown adapter "
                    f"{shown(name)}{did_you_mean(name, [*names, *_PARTS])}; valid names are "
                    f"{', '.join([*names, *_PARTS])}"
                )
            if name not in self.used:
                raise InputError(
                    f"adapters.train names {name!r}, which is not in use and would not be trained; "
                    f"add it to --adapters.use, which is {shown(self.use)}"
                )
        for part, block in (("fusion", "Fuse"), ("router", "Route")):
            if part in self.train and not trained_of(self.composition).get(part):
                raise InputError(
                    f"adapters.train names {part}, which needs a {block} block, but adapters.use "
                    f"{shown(self.use)} has no such block"
                )
        for name in added:
            if name in self.loaded:
                continue
            by = f"adapters.use {shown(self.use)}" if name not in self.used else "adapters.train"
            if name not in self.used or (self.train and name not in self.train):
                raise InputError(
                    f"adapter {name!r} of adapters.add would never be trained, because {by} does "
                    "not name it; add its name, or remove the adapter"
                )

    def _check_use(self, names: tuple[str, ...]) -> None:
        if not self.use.strip():
            return
        try:
            used = parse_use(self.use)
        except InputError as error:
            raise InputError(f"adapters.use: {error}") from error
        for name in used:
            if name not in names:
                raise InputError(
                    "adapters.use names the unknown adapter "
                    f"{shown(name)}{did_you_mean(name, names)}; "
                    + (
                        f"the adapters are {', '.join(names)}"
                        if names
                        else "add it with --adapters.add, or load it with --adapters.load"
                    )
                )

    @property
    def added(self) -> dict[str, Adapter]:
        """Parsed configs of the adapters in `add`, by name.

        Raises:
          InputError: if an entry is invalid, or two adapters have the same name.
        """
        try:
            return by_name(map(parse_module, self.add))
        except InputError as error:
            raise InputError(f"adapters.add: {error}") from error

    @property
    def loaded(self) -> dict[str, str]:
        """Checkpoint directories of the adapters in `load`, by adapter name.

        Raises:
          InputError: if an entry is not NAME=DIR, or two adapters have the same name.
        """
        found: dict[str, str] = {}
        for line in self.load:
            match = _LOAD.fullmatch(line.strip())
            if match is None:
                raise InputError(f"adapters.load must be NAME=DIR, got {shown(line)}")
            name, directory = match.groups()
            if name in RESERVED:
                raise InputError(f"adapters.load: {reserved(name)}")
            if name in found:
                raise InputError(
                    f"adapters.load has two adapters called {name}; rename one of them"
                )
            found[name] = directory
        return found

    @property
    def used(self) -> tuple[str, ...]:
        """Names of the adapters in use."""
        if self.use.strip():
            return parse_use(self.use)
        return tuple(dict.fromkeys([*self.added, *self.loaded]))

    @property
    def composition(self) -> tuple[str | Block, ...]:
        """Parsed compositions of the adapters in use."""
        return parse_trees(self.use) or self.used

    @property
    def unpackable(self) -> str:
        """Reason why packed rows are not supported; "" if they are supported."""
        blocks = [b for tree in self.composition for b, _ in walk(tree) if isinstance(b, Block)]
        return next((why for one in (*self.added.values(), *blocks) if (why := one.unpackable)), "")

    @property
    def modules(self) -> tuple[Adapter, ...]:
        """Configs of the adapters in use, in order.

        The config of a loaded adapter is available only after a command has read its checkpoint.

        Raises:
          InputError: if the checkpoint of a loaded adapter has not been read.
        """
        added = self.added
        for name in self.used:
            if name not in added:
                raise InputError(
                    f"adapter {name!r} of adapters.load {self.loaded[name]} has not been read; "
                    "only commands that read checkpoints can use it"
                )
        return tuple(added[name] for name in self.used)

    @property
    def trained(self) -> tuple[str, ...]:
        """Regular expressions for the parameters to train; () for all adapters and heads.

        "adapters/NAME" also selects the base model parameters that adapter NAME trains, such as
        biases.
        """
        if self.train:
            return tuple(_PARTS.get(name, f"{ADAPTERS}{name}") for name in self.train)
        if not self.load:
            return ()
        fresh = [name for name in self.used if name in self.added and name not in self.loaded]
        composing = [_PARTS[part] for part in trained_of(self.composition)]
        return (HEAD, *composing, *(f"{ADAPTERS}{name}" for name in fresh))

    def canonical(self) -> "Adapters":
        """Return this config with the strings of `add` and `use` in canonical form."""
        use = write_trees(parse_trees(self.use))
        return dataclasses.replace(self, add=tuple(map(write_module, self.added.values())), use=use)
