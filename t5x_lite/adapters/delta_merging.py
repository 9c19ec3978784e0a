"""Merging: several deltas into one, and adapters into kernels.

Merging of adapters into kernels, conversion of adapters to deltas, and unions of methods.

`merge_adapters` adds adapters to a model's kernels, if changed kernels can replace them.

`delta_form` converts adapters to delta parts, which are changes of kernels and biases. The method
`parts` of an adapter module returns its changes of a dense layer:

    LowRankBranch.parts()        {"kernel": LowRank(a, b, scale)}

An adapter is converted if all its modules have `parts`. Other adapters, such as bottlenecks, are
kept as adapters, because no kernel can absorb them.

`Union` joins several methods in one adapter, such as "m = seq_bn(reduction=16) + lora(r=8)". Two
methods must not share a site (a position in the layers). (The library `adapters` rejects two
methods only if they share both sites of a layer, and never in layers that are skipped.) Parameters
are at adapters/NAME/METHOD/STACK/SITE. METHOD is the lower-case name of the method's class; the
second and later methods of a class get a number.

Merge methods: frozen configs that combine several deltas (changes of a base model) into one.

    merge([a, b], Ties(density=0.2))
    merge([a, b], Svd(rank=8), weights=(0.5, 0.5))

| method | result for deltas d_i with weights w_i |
|---|---|
| `Linear` | sum w_i d_i; low-rank products are concatenated, which is exact |
| `Svd` | the low-rank products that are nearest to this sum |
| `Ties` | TIES, see below |
| `Dare` | entries dropped with probability p, the others divided by 1 - p, then another method |
| `Fisher` | sum w_i F_i d_i / sum w_i F_i |
| `AverageFactors`, `Zhang`, `PeftLinear` | merges of LoRA's factors, as in other libraries |

An array that a delta lacks counts as 0. Arrays are merged one path at a time.

TIES: trim, elect signs, and take the mean of the entries that agree (Yadav et al. 2023).

    1 trim    keep the fraction `density` of largest magnitude of each weighted delta, over all
              entries of the arrays that it changes
    2 elect   the sign of an entry's sum; if the sum is 0, the sign of the sum of all signs
    3 mean    of the entries with that sign, without zeros; times `scale`

arXiv:2306.01708. Other libraries trim each array by itself, or elect before they weight.
"""

import dataclasses
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from t5x_lite.adapters.adapter_tree import Modules as adapter_tree_Modules
from t5x_lite.adapters.adapter_tree import stacks_of
from t5x_lite.adapters.base import OF_MODEL, Adapter, AdapterModules, Modules, reader_of
from t5x_lite.adapters.delta import Delta
from t5x_lite.adapters.delta_parts import Dense, LowRank, Part
from t5x_lite.adapters.whole_arrays import ArrayAdapter
from t5x_lite.core import trees
from t5x_lite.core.errors import InputError
from t5x_lite.core.options import In, Rate, check_bounds
from t5x_lite.core.trees import Array, Key
from t5x_lite.nn.slots import TokenHost, split


def merge_adapters(model: nnx.Module) -> None:
    """Merge all adapters of a model into its kernels and biases, in place.

    Raises:
      InputError: if an adapter cannot be merged into kernels, such as a bottleneck or a prefix.
    """
    if isinstance(model, TokenHost):
        for site, slot in zip(OF_MODEL, (model.prompt, model.invertible), strict=True):
            if slot is not None:
                raise InputError(f"the adapter at {site} cannot be merged into the model's kernels")
    for stack, layers in stacks_of(model).items():
        full = [site for site in layers.block_sites() if getattr(layers, site) is not None]
        full += [site for site, host in layers.key_sites().items() if host.prefix is not None]
        if full:
            raise InputError(
                f"the adapter at {stack}/{full[0]} cannot be merged into the model's kernels"
            )
        dense_sites = layers.dense_sites()
        for site, dense in dense_sites.items():
            if dense.slot is not None:
                bias = dense.effective_bias()
                if bias is not None and not dense.has_bias:
                    raise InputError(
                        f"the adapter at {stack}/{site} adds a bias and cannot be merged, because "
                        "this layer of the model has no bias"
                    )
                dense.kernel[...] = dense.effective_kernel()
                if bias is not None:
                    dense.bias[...] = bias
                dense.slot = None
        for site, host in layers.hidden_sites().items():
            if host.slot is not None:
                reader = dense_sites[reader_of(site)]
                reader.kernel[...] = host.slot.of_kernel(reader.kernel[...])
                host.slot = None


@runtime_checkable
class HasParts(Protocol):
    """Protocol of adapter modules that change the kernel or bias of one dense layer."""

    def parts(self) -> dict[str, Part]:
        """Return the changes of the dense layer's "kernel" and "bias", by name."""
        ...


def delta_form(
    modules: AdapterModules, adapters: Sequence[Adapter], model: nnx.Module
) -> tuple[dict[str, Part], tuple[Adapter, ...]]:
    """Convert adapters to changes of the model's kernels and biases, where this is possible.

    Args:
      modules: adapter modules with their parameters.
      adapters: configs of the adapters.
      model: model with a method `stacks`; its arrays may be jax.ShapeDtypeStructs.

    Returns:
      Changes by path in the model, and the configs of the adapters that cannot be
      converted.

    Raises:
      InputError: if two adapters change one array in an unsupported order, or a composition is
        not a Stack.
    """
    places = {id(node): "/".join(map(str, path)) for path, node in nnx.iter_graph(model)}
    stacks, parts, rest = stacks_of(model), {}, []
    shapes = {path: tuple(x.shape) for path, x in trees.flatten(split(model)[1]).items()}
    configs = {adapter.name: adapter for adapter in adapters}
    for adapter in (configs[name] for name in modules.in_order()):
        its_modules = getattr(modules, adapter.name)
        own = _parts_of(its_modules, stacks, places)
        if own is None:
            rest.append(adapter)
            continue
        for path, part in (*its_modules.array_parts(shapes).items(), *own):
            parts[path] = parts[path].then(part) if path in parts else part
    modules.check_sum(rest)
    return parts, tuple(rest)


def _parts_of(
    modules: Modules, stacks: dict[str, Any], places: dict[int, str]
) -> list[tuple[str, Part]] | None:
    """Return the array changes of one adapter by path, or None if it cannot be converted."""
    found = []
    for stack, site in modules.places:
        layers, module = stacks[stack], modules.at(stack, site)
        hosts = layers.dense_sites()
        if (
            site in layers.hidden_sites()
        ):  # a scale of the hidden states scales rows of the layer that reads them
            hosts = {site: hosts[f"{site.removesuffix('hidden')}out"]}
        if site not in hosts or not isinstance(module, HasParts):
            return None
        dense = hosts[site]
        for name, part in module.parts().items():
            if name != "bias" or dense.has_bias:
                found.append((f"{places[id(dense)]}/{name}", part))
            elif part.additive:
                return None
    return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class Union(Adapter):
    """Configuration of several adapter methods under one name, such as bottleneck plus LoRA.

    Attributes:
      sites: unused; each method has its own layer positions.
      members: configs of the methods, all with the name of the union.
    """

    name: str = "union"
    sites: tuple[str, ...] = (".*",)
    members: tuple[Adapter, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.members) < 2:
            raise InputError("a union adapter must combine at least two adapter methods")
        if any(isinstance(member, Union) for member in self.members):
            raise InputError("a union adapter must not contain another union adapter")
        for member in self.members:
            if member.has_frozen:
                raise InputError(
                    f"method {type(member).__name__.lower()} with parameters that are not trained, "
                    "such as init='pissa', cannot be part of a union; use it as a separate adapter"
                )
            if isinstance(member, ArrayAdapter):
                raise InputError(
                    f"method {type(member).__name__.lower()} changes whole arrays of the model and "
                    "cannot be combined in a union adapter; use the method as a separate adapter"
                )
        named = tuple(dataclasses.replace(member, name=self.name) for member in self.members)
        object.__setattr__(self, "members", named)

    @property
    def unpackable(self) -> str:
        return next((why for member in self.members if (why := member.unpackable)), "")

    def trains(self, paths: Iterable[str]) -> tuple[str, ...]:
        paths = tuple(paths)
        meant = [each for member in self.members for each in member.trains(paths)]
        return tuple(dict.fromkeys(meant))

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> adapter_tree_Modules:
        """Build the modules of all combined adapter methods.

        Raises:
          InputError: if two methods share a layer position.
        """
        return UnionModules(
            self.name,
            [type(member).__name__.lower() for member in self.members],
            [member.build(model, rngs=rngs) for member in self.members],
        )


class UnionModules(adapter_tree_Modules):
    """Modules of an adapter that combines several methods, such as bottleneck and LoRA.

    Args:
      name: name of the adapter.
      methods: names of the methods, such as "lora".
      members: adapter modules of each method.

    Raises:
      InputError: if two methods share a layer position.
    """

    def __init__(self, name: str, methods: Sequence[str], members: Sequence[adapter_tree_Modules]):
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
                        f"union adapter {name} has both {taken[place]} and {names[-1]} at the site "
                        f"{place}; set different sites, or use two adapters in a Stack"
                    )
                taken[place] = names[-1]
        self.methods = tuple(names)
        self.places = tuple(place for modules in members for place in modules.places)

    def _members(self) -> list[adapter_tree_Modules]:
        return [getattr(self, method) for method in self.methods]

    def complete(self) -> None:
        for modules in self._members():
            modules.complete()

    def claims(self) -> tuple[str, ...]:
        return tuple(place for modules in self._members() for place in modules.claims())

    def copied(self) -> tuple[str, ...]:
        return tuple(path for modules in self._members() for path in modules.copied())

    def read(self, model: Mapping[str, Any], *, key: Key | None = None) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for number, modules in enumerate(self._members()):
            own = None if key is None else jax.random.fold_in(key, number)
            made |= modules.read({**model, **made}, key=own)
        return made

    def penalty(self) -> Array | None:
        each = [x for modules in self._members() if (x := modules.penalty()) is not None]
        return sum(each, jnp.float32(0)) if each else None

    def array_parts(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Part]:
        made: dict[str, Part] = {}
        for modules in self._members():
            made |= modules.array_parts(shapes)
        return made

    def num_unused(self) -> int:
        return sum(modules.num_unused() for modules in self._members())

    def at(self, stack: str, site: str) -> Any:
        for modules in self._members():
            if (stack, site) in modules.places:
                return modules.at(stack, site)
        raise KeyError((stack, site))


@dataclasses.dataclass(frozen=True)
class How:
    """Base class of the merge method configs, such as `Ties`."""

    def __post_init__(self) -> None:
        check_bounds(self)

    def merged(self, deltas: Sequence[Delta], weights: Sequence[float | int]) -> Delta:
        """Merge several deltas (changes of one base model's arrays) into one delta."""
        raise TypeError(f"class {type(self).__name__} does not define the method merged")


def merge(
    deltas: Sequence[Delta], how: How | None = None, *, weights: Sequence[float | int] = ()
) -> Delta:
    """Merge several deltas (changes of one base model's arrays) into one delta.

    Args:
      deltas: at least one delta; heads of the same name must be equal.
      how: merge method; default: `Linear()`.
      weights: one weight for each delta; default: 1 for each.

    Raises:
      InputError: if the base models differ, the number of weights is wrong, or the method does not
        support the deltas.
    """
    if not deltas:
        raise InputError("merge needs at least one delta, got none")
    weights = tuple(weights) or (1.0,) * len(deltas)
    if len(weights) != len(deltas):
        raise InputError(
            f"the number of weights, {len(weights)}, must be the number of deltas, {len(deltas)}"
        )
    for delta in deltas:
        delta.check_additive()
    return (how or Linear()).merged(deltas, weights)


@dataclasses.dataclass(frozen=True)
class Linear(How):
    """Merge method: weighted sum of the deltas; low-rank products remain exact."""

    def merged(self, deltas: Sequence[Delta], weights: Sequence[float | int]) -> Delta:
        terms = [weight * delta for delta, weight in zip(deltas, weights, strict=True)]
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total


@dataclasses.dataclass(frozen=True)
class Svd(How):
    """Merge method: best low-rank approximation of the weighted sum of the deltas.

    Attributes:
      rank: rank of the low-rank product, for every kernel.
    """

    rank: int

    def merged(self, deltas: Sequence[Delta], weights: Sequence[float | int]) -> Delta:
        return Linear().merged(deltas, weights).factor(self.rank)


@dataclasses.dataclass(frozen=True)
class Dare(How):
    """Merge method DARE: drop random entries and rescale the rest (arXiv:2311.03099).

    Array PATH of delta number i uses the random key fold_in(k, crc32(PATH)), where k is key(seed)
    for i = 0 and fold_in(key(seed), i) for i > 0.

    Attributes:
      p: probability of dropping an entry; some libraries call 1 - p the density.
      seed: random seed, at least 0 and below 2^31.
      then: merge method for the remaining entries.
    """

    p: Rate
    seed: int = 0
    then: How = dataclasses.field(default_factory=Linear)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.seed < 2**31:
            raise InputError(
                f"seed of merge method dare must be at least 0 and below 2^31, got {self.seed}"
            )

    def merged(self, deltas: Sequence[Delta], weights: Sequence[float | int]) -> Delta:
        thinned = []
        for number, delta in enumerate(deltas):
            parts: dict[str, Part] = {
                path: Dense(self._kept(path, part, number)) for path, part in delta.parts.items()
            }
            thinned.append(dataclasses.replace(delta, parts=parts))
        return self.then.merged(thinned, weights)

    def _kept(self, path: str, part: Part, number: int) -> np.ndarray:
        value = part.dense()
        kept = dare_mask(path, value.shape, p=self.p, seed=self.seed, number=number)
        return np.where(kept, value / np.float32(1.0 - self.p), np.float32(0.0))


def dare_mask(
    path: str, shape: tuple[int, ...], *, p: float, seed: int, number: int = 0
) -> np.ndarray:
    """Return a random boolean mask of the array entries that DARE keeps."""
    key = jax.random.key(seed)
    if number:
        key = jax.random.fold_in(key, number)
    key = jax.random.fold_in(key, np.uint32(zlib.crc32(path.encode())))
    return np.asarray(jax.random.bernoulli(key, 1.0 - p, shape))


@dataclasses.dataclass(frozen=True, eq=False)
class Fisher(How):
    """Merge method: mean weighted by Fisher information diagonals (Matena and Raffel 2021).

    Attributes:
      diagonals: Fisher diagonal of each delta, as path -> array. Arrays that the delta does not
        change may be absent; the diagonal of an absent array is `floor`.
      normalize: True to divide each diagonal by its L2 norm.
      floor: minimum value of a diagonal entry.
    """

    diagonals: Sequence[Mapping[str, Any]]
    normalize: bool = True
    floor: float = 1e-6

    def merged(self, deltas: Sequence[Delta], weights: Sequence[float | int]) -> Delta:
        if len(self.diagonals) != len(deltas):
            raise InputError(
                f"the number of Fisher diagonals, {len(self.diagonals)}, must be the number of "
                f"deltas, {len(deltas)}"
            )
        if any(weight <= 0 for weight in weights):
            raise InputError(
                f"weights of merge method fisher must be above 0, got {tuple(weights)}"
            )
        norms = [self._norm(diagonal) for diagonal in self.diagonals]

        def combined(path: str, values: Sequence[np.ndarray]) -> np.ndarray:
            above, below = np.zeros_like(values[0]), np.zeros_like(values[0])
            for i, value in enumerate(values):
                if path in deltas[i].parts and path not in self.diagonals[i]:
                    raise InputError(
                        f"a Fisher diagonal lacks {path}, which its delta changes; use a diagonal "
                        "of the same model"
                    )
                diagonal = self.diagonals[i].get(path, np.zeros(value.shape, np.float32))
                if tuple(diagonal.shape) != value.shape:
                    raise InputError(
                        f"the Fisher diagonal of {path} has shape {tuple(diagonal.shape)}, but "
                        f"the array has shape {value.shape}"
                    )
                share = np.maximum(np.asarray(diagonal, np.float32), np.float32(self.floor))
                share = np.float32(weights[i] / norms[i]) * share
                above, below = above + share * value, below + share
            return above / below

        return by_path(deltas, combined)

    def _norm(self, diagonal: Mapping[str, Any]) -> float:
        if not self.normalize:
            return 1.0
        squares = (float(np.sum(np.square(np.asarray(x, np.float64)))) for x in diagonal.values())
        return math.sqrt(sum(squares)) or 1.0


@dataclasses.dataclass(frozen=True)
class AverageFactors(How):
    """Merge method for LoRA factors: A = sum w_i A_i, B = sum w_i B_i.

    The merged product has cross terms w_i w_j A_i B_j, so it is exact only for equal factors. A
    weight of -1 negates both factors and has no effect on the product. The library `adapters` calls
    this method `linear`.
    """

    def merged(self, deltas: Sequence[Delta], weights: Sequence[float | int]) -> Delta:
        return _of_factors(deltas, weights, weights, what="average_factors")


@dataclasses.dataclass(frozen=True)
class Zhang(How):
    """Merge method for LoRA factors: A = sum abs(w_i) A_i, B = sum w_i B_i (arXiv:2306.14870).

    The weight -1 negates a single LoRA exactly; a sum of several has cross terms w_i w_j A_i B_j.
    Source: Zhang et al. 2023. The library `adapters` computes the same result.
    """

    def merged(self, deltas: Sequence[Delta], weights: Sequence[float | int]) -> Delta:
        return _of_factors(deltas, [abs(w) for w in weights], weights, what="zhang")


@dataclasses.dataclass(frozen=True)
class PeftLinear(How):
    """Merge method for LoRA factors, PEFT's `linear`: A = sum sgn(w_i) r_i A_i, B = sum r_i B_i.

    r_i is sqrt(abs(w_i s_i)), where s_i is the scale of LoRA i. As in PEFT, merging n equal LoRAs
    with weights 1 / n gives n times the LoRA.
    """

    def merged(self, deltas: Sequence[Delta], weights: Sequence[float | int]) -> Delta:
        return _of_factors(deltas, weights, weights, what="peft_linear", roots=True)


def _of_factors(
    deltas: Sequence[Delta],
    for_a: Sequence[float | int],
    for_b: Sequence[float | int],
    *,
    what: str,
    roots: bool = False,
) -> Delta:
    """Merge deltas that consist of LoRA factors, with one weight for each factor."""
    whole = together(deltas)
    parts: dict[str, Part] = {}
    for path in sorted({path for delta in deltas for path in delta.parts}):
        low = [part for d in deltas if isinstance(part := d.parts.get(path), LowRank)]
        if len(low) < len(deltas) or len({part.rank for part in low}) > 1:
            raise InputError(
                f"merge method {what} requires LoRAs of the same rank at the same sites, but the "
                f"LoRAs differ at {path}"
            )
        if roots:
            sizes = [math.sqrt(abs(w * part.scale)) for w, part in zip(for_a, low, strict=True)]
            signs = [math.copysign(1.0, w * p.scale) for w, p in zip(for_a, low, strict=True)]
            ones, twos = [s * r for s, r in zip(signs, sizes, strict=True)], sizes
        elif len({part.scale for part in low}) > 1:
            raise InputError(
                f"merge method {what} requires LoRAs of the same scale, but the scales of {path} "
                "differ"
            )
        else:
            ones, twos = list(for_a), list(for_b)
        scale = 1.0 if roots else low[0].scale
        a = sum(np.float32(w) * np.asarray(p.a) for w, p in zip(ones, low, strict=True))
        b = sum(np.float32(w) * np.asarray(p.b) for w, p in zip(twos, low, strict=True))
        parts[path] = LowRank(a, b, scale)
    return dataclasses.replace(whole, parts=parts)


def together(deltas: Sequence[Delta]) -> Delta:
    """Return a delta with the heads and adapters of several deltas, without array changes.

    Raises:
      InputError: if base models differ, heads conflict, or any of several deltas has adapters.
    """
    for delta in deltas:
        if delta.config and len(deltas) > 1:
            raise InputError(
                f"adapter {delta.config[0].name} is not a change of the model's arrays, so only "
                "the merge method linear can merge it"
            )
    total = dataclasses.replace(deltas[0], parts={})
    for delta in deltas[1:]:
        total = total + dataclasses.replace(delta, parts={})
    return total


def by_path(
    deltas: Sequence[Delta], combined: Callable[[str, Sequence[np.ndarray]], np.ndarray]
) -> Delta:
    """Merge several deltas array by array with the function `combined`."""
    whole = together(deltas)
    parts: dict[str, Part] = {}
    for path in sorted({path for delta in deltas for path in delta.parts}):
        parts[path] = Dense(combined(path, values_at(deltas, path)))
    return dataclasses.replace(whole, parts=parts)


def values_at(deltas: Sequence[Delta], path: str) -> list[np.ndarray]:
    """Return the change of one array in each delta, or zeros where a delta has no change."""
    shapes = {delta.parts[path].shape for delta in deltas if path in delta.parts}
    if len(shapes) > 1:
        raise InputError(f"the deltas change {path} with different shapes: {sorted(shapes)}")
    [shape] = shapes
    return [
        delta.parts[path].dense() if path in delta.parts else np.zeros(shape, np.float32)
        for delta in deltas
    ]


@dataclasses.dataclass(frozen=True)
class Ties(How):
    """Merge method TIES: trim small entries, elect signs, and average entries of the elected sign.

    Attributes:
      density: fraction of each delta's entries to keep.
      scale: factor of the result (lambda in the paper).
    """

    density: Annotated[float, In(0, 1, "(]")] = 0.2
    scale: float = 1.0

    def merged(self, deltas: Sequence[Delta], weights: Sequence[float | int]) -> Delta:
        if any(weight < 0 for weight in weights):
            raise InputError(
                f"weights of merge method ties must not be negative, got {tuple(weights)}; "
                "subtract the delta from the merged result instead"
            )
        kept = [delta.sparsify(density=self.density) for delta in deltas]
        thin = [weight * delta for delta, weight in zip(kept, weights, strict=True)]
        paths = sorted({path for delta in thin for path in delta.parts})
        signs = sum(float(np.sum(np.sign(sum(values_at(thin, path))))) for path in paths)
        majority = np.float32(np.sign(signs))
        return by_path(thin, self._mean(majority))

    def _mean(self, majority: np.float32) -> Callable[[str, Sequence[np.ndarray]], np.ndarray]:
        def mean(path: str, values: Sequence[np.ndarray]) -> np.ndarray:
            del path
            sign = np.sign(sum(values))
            sign = np.where(sign == 0, majority, sign)
            total, count = np.zeros_like(values[0]), np.zeros_like(values[0])
            for value in values:
                agrees = (np.sign(value) == sign) & (value != 0)
                total += np.where(agrees, value, 0)
                count += agrees
            return np.float32(self.scale) * total / np.maximum(count, 1)

        return mean
