"""Compositions of modules, routers between them, and gates.

Blocks that compose modules: a tree whose leaves are names of modules, and None the bare model.

    Stack(("en", Fuse(("sst2", "nli"))))            a frozen tree
    str(...)                                        "Stack(en, Fuse(sst2, nli))", which is read back
    names_of((tree,))                               ("en", "sst2", "nli")

| block | what it does with a state h | |
|---|---|---|
| Stack(a, b) | b of a of h | |
| Average(a, b) | sum w_i h_i | weights 1 / n unless they are given |
| Fuse(a, b) | a weighted sum of contributions, by attention | AdapterFusion (arXiv:2005.00247) |
| Route(a, b) | h + sum w_k (h_k - h), w by a router that reads the tokens | |
| Split(a, b) | of columns of the row | modules after blocks of an encoder |
| BatchSplit(a, b) | of contiguous rows | |
| MultiTask(a, b) | of each row its own, by `adapter_ids` | |
| Task(h, of=1) | of a hypernetwork what it makes for a task | |
| Drop(a, layers=(0, 1)) | nothing in some layers | AdapterDrop (arXiv:2010.11918) |
| Parallel(a, b) | the batch K times, child after child | one of a tree, with Stack alone above it |

`t5x_lite.adapters.evaluation` runs such a tree in a slot. A module that has nothing at a site
passes the state on there. Blocks and defaults are those of the library `adapters`.

Routing: which of several modules a token gets, by a router that is trained with them.

    w = softmax((mean of x) W + b)       or of each token's x; W [D, K] begins as N(0, 0.02), b as 0
    h + sum_k w_k (h_k - h)              h_k what child k makes of the state h

"hard" takes the likeliest child alone; its weight is 1, and has the gradient of its probability
(straight through). "free" are K trained numbers, 1 / K at first: a linear combination of modules.
Where a row has one choice and the children are alike, the arrays of the chosen module are gathered
and nothing else is computed; else all children are, and weighed.

The loss has the metrics NAME_entropy, of w in nats, and NAME_share_k, the mean of w_k, over the
tokens of all sites and layers, and with `balance` the term NAME_balance, a sum over them. Of a
batch in microbatches that is the mean of those of its parts. Tokens are those that are no padding;
a decoder, which does not know, counts all.

Gates: how much of a module a row gets (UniPELT, Mao et al. 2022, arXiv:2110.07577).

    g = mean over tokens of sigmoid(x w + b)        w [D, 1] begins as N(0, 0.02), b as 0

In the library `adapters` the mean is that of a whole row, padding and, in a decoder, the future
included. Here it is that of the tokens that a token of an encoder sees, and in a decoder each
token's own. The library's, "all_tokens", is for encoders alone.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Bool, Float

from t5x_lite.core.errors import InputError
from t5x_lite.core.options import Above, AtLeast, Whole, check_bounds
from t5x_lite.core.trees import Array
from t5x_lite.nn import experts
from t5x_lite.nn.dense import Dense
from t5x_lite.nn.masks import Visibility


@dataclasses.dataclass(frozen=True)
class Block:
    """Base of the blocks.

    Attributes:
      children: names of modules, blocks, or where `bare` None for the bare model.
    """

    children: "tuple[str | Block | None, ...]"

    bare: ClassVar[bool] = False
    """Whether a child may be None."""

    of_rows: ClassVar[bool] = False
    """Whether rows of a batch differ in what they get, by their numbers."""

    by_content: ClassVar[bool] = False
    """Whether they do by what they hold."""

    @property
    def unpackable(self) -> str:
        """Why rows must be of one text; "" where they may be packed."""
        return ""

    def __post_init__(self) -> None:
        if not self.children:
            raise InputError(f"{type(self).__name__} needs children: modules or blocks")
        if None in self.children and not self.bare:
            raise InputError(f"{type(self).__name__} has no place for None, the bare model")
        check_bounds(self)

    def __str__(self) -> str:
        options = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in dataclasses.fields(self)
            if field.name != "children" and getattr(self, field.name) != field.default
        ]
        return f"{type(self).__name__}({', '.join([*map(str, self.children), *options])})"


@dataclasses.dataclass(frozen=True)
class Stack(Block):
    """One after the other."""


@dataclasses.dataclass(frozen=True)
class Average(Block):
    """The weighted sum of what the children make of one state.

    Attributes:
      weights: one for each child; () is 1 / n for each.
      normalize: whether they are divided by their sum.
    """

    weights: tuple[float, ...] = ()
    normalize: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_number("weights", self.weights, self.children)
        if self.normalize and not sum(self.weights):
            raise InputError("Average cannot normalize weights whose sum is 0")

    @property
    def shares(self) -> tuple[float, ...]:
        """The weights of the sum."""
        if not self.weights:
            return (1.0 / len(self.children),) * len(self.children)
        total = sum(self.weights) if self.normalize else 1.0
        return tuple(weight / total for weight in self.weights)


@dataclasses.dataclass(frozen=True)
class Drop(Block):
    """The child in some layers, and nothing in the others (Rücklé et al. 2021, arXiv:2010.11918).

    Attributes:
      layers: those without it; they count from 0, a decoder's after the encoder's.
    """

    layers: Annotated[tuple[int, ...], AtLeast(0)] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.children) != 1:
            raise InputError(f"Drop has one child: got {len(self.children)}; a Stack holds more")
        if not self.layers:
            raise InputError("Drop needs layers: the numbers of those that have no module")


@dataclasses.dataclass(frozen=True)
class Task(Block):
    """What a hypernetwork makes for one of its tasks.

    Attributes:
      of: the task's number.
    """

    of: Whole = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.children) != 1 or not isinstance(self.children[0], str):
            raise InputError("Task has one child, the name of a hypernetwork")


@dataclasses.dataclass(frozen=True)
class Trained(Block):
    """Base of the blocks that have parameters of their own.

    Attributes:
      name: the parameters are at adapters/PART/NAME; "" joins the names of the modules by "_".
    """

    part: ClassVar[str]
    """PART of the path; `adapters.train` takes the same word."""

    name: str = ""

    @property
    def title(self) -> str:
        """The name of its parameters."""
        return self.name or "_".join(names_of((self,)))

    @property
    def key(self) -> str:
        """The name of its layers in a slot."""
        return f"{self.part}__{self.title}"


@dataclasses.dataclass(frozen=True)
class Fuse(Trained):
    """Attention over the children's contributions (Pfeiffer et al. 2021, arXiv:2005.00247).

    Attributes:
      temperature: of the softmax.
      static: whether contributions have no value projection.
    """

    part: ClassVar[str] = "fusion"

    temperature: Annotated[float, Above(0)] = 1.0
    static: bool = False


@dataclasses.dataclass(frozen=True)
class Route(Trained):
    """h + sum_k w_k (h_k - h), whose weights a trained router makes of what the tokens are.

    Attributes:
      by: "example", the mean of a row's tokens in an encoder (in a decoder each token by itself),
        or "token".
      kind: "soft", a softmax; "hard", the likeliest child alone, whose gradient is that of its
        probability; "free", trained numbers, the same for all tokens, which need not sum to 1.
      temperature: of the softmax.
      balance: weight in the loss of K sum_k f_k P_k at each site, f_k the share of the tokens (of
        rows, by example) whose likeliest child is k, and P_k the mean of w_k: 1 where all children
        have as much (Fedus et al. 2022, arXiv:2101.03961, section 2.2, weigh it by 0.01).
    """

    part: ClassVar[str] = "router"
    bare: ClassVar[bool] = True
    by_content: ClassVar[bool] = True

    by: Literal["example", "token"] = "example"
    kind: Literal["soft", "hard", "free"] = "soft"
    temperature: Annotated[float, Above(0)] = 1.0
    balance: float = 0.0

    @property
    def unpackable(self) -> str:
        """A choice by example is one of a row."""
        is_one = self.by == "example" and self.kind != "free"
        return "Route by example chooses once for a row" if is_one else ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.balance < 0 or (self.balance and self.kind == "free"):
            raise InputError(
                "balance must not be negative, and free weights have none to balance: got "
                f"{self.balance}"
            )


@dataclasses.dataclass(frozen=True)
class Split(Block):
    """Columns of a row, one part after the other.

    Attributes:
      splits: how many of each child; one may be "rest".
    """

    splits: Annotated[tuple[int | Literal["rest"], ...], AtLeast(1)] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.splits:
            raise InputError("Split needs splits: how many tokens each child has, one 'rest'")
        _check_number("splits", self.splits, self.children)
        if self.splits.count("rest") > 1:
            raise InputError("Split has one 'rest' at most")

    def sizes(self, length: int) -> tuple[int, ...]:
        """The columns of each child.

        Raises:
          InputError: they do not make a row of this length.
        """
        known = sum(size for size in self.splits if size != "rest")
        rest = length - known
        if rest < 0 or (rest and "rest" not in self.splits):
            raise InputError(f"{self}: a row has {length} tokens, which the splits do not make")
        return tuple(rest if size == "rest" else size for size in self.splits)


@dataclasses.dataclass(frozen=True)
class BatchSplit(Block):
    """Contiguous rows of a batch, one part after the other.

    Attributes:
      sizes: rows of each child; () is as many for each.
    """

    sizes: Annotated[tuple[int, ...], AtLeast(1)] = ()

    bare: ClassVar[bool] = True
    of_rows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_number("sizes", self.sizes, self.children)

    def rows(self, num: int) -> tuple[int, ...]:
        """The rows of each child.

        Raises:
          InputError: they do not make a batch of this many rows.
        """
        sizes = self.sizes or (num // len(self.children),) * len(self.children)
        if sum(sizes) != num:
            remedy = (
                f"add up to {num}: --data.batch-size must be {sum(sizes)}, or give other sizes"
                if self.sizes
                else f"be as many for {len(self.children)} children: give sizes=(...)"
            )
            raise InputError(f"{self}: a batch has {num} rows, which cannot {remedy}")
        return sizes


@dataclasses.dataclass(frozen=True)
class MultiTask(Block):
    """Each row its own child, whose number stands in the batch's `adapter_ids`."""

    bare: ClassVar[bool] = True
    of_rows: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True)
class Parallel(Block):
    """The batch once for each child: rows b of child k are at k B + b."""

    bare: ClassVar[bool] = True
    of_rows: ClassVar[bool] = True

    def rows(self, num: int) -> tuple[int, ...]:
        """The rows of each child.

        Raises:
          InputError: the batch is not repeated for each child.
        """
        if num % len(self.children):
            raise InputError(f"{self}: a batch of {num} rows is not one for each child")
        return (num // len(self.children),) * len(self.children)


BLOCKS: dict[str, type[Block]] = {
    each.__name__: each
    for each in (Stack, Average, Drop, Task, Fuse, Route, Split, BatchSplit, MultiTask, Parallel)
}
"""Name in the grammar -> block."""


def _check_number(name: str, values: Sequence[object], children: Sequence[object]) -> None:
    if values and len(values) != len(children):
        raise InputError(f"{name} must be one for each of {len(children)} children: got {values}")


def walk(
    tree: "str | Block | None", above: tuple[Block, ...] = ()
) -> Iterator[tuple["str | Block", tuple[Block, ...]]]:
    """Blocks and leaves of a tree with the blocks above them, first the root; without None."""
    if tree is None:
        return
    yield tree, above
    if isinstance(tree, Block):
        for child in tree.children:
            yield from walk(child, (*above, tree))


def names_of(use: "Sequence[str | Block]") -> tuple[str, ...]:
    """The names of the modules of some trees, in their order, each once."""
    leaves = [node for tree in use for node, _ in walk(tree) if isinstance(node, str)]
    return tuple(dict.fromkeys(leaves))


def trained_of(use: "Sequence[str | Block]") -> dict[str, dict[str, Trained]]:
    """The blocks of some trees that have parameters: part -> name of the parameters -> block.

    Raises:
      InputError: two that differ have one name.
    """
    known: dict[str, dict[str, Trained]] = {}
    for tree in use:
        for node, _ in walk(tree):
            if not isinstance(node, Trained):
                continue
            blocks = known.setdefault(node.part, {})
            if blocks.setdefault(node.title, node) != node:
                raise InputError(
                    f"two {node.part}s are called {node.title}: give one another name="
                )
    return known


def parallel_of(use: "Sequence[str | Block]") -> int:
    """How often the batch is repeated; 1 without Parallel."""
    for tree in use:
        for node, _ in walk(tree):
            if isinstance(node, Parallel):
                return len(node.children)
    return 1


def check_answers(use: "Sequence[str | Block]") -> None:
    """Refuses, by an InputError, blocks that give rows of a batch different modules.

    Who answers texts one by one does not know which rows of a batch these become.
    """
    for tree in use:
        for node, above in walk(tree):
            if isinstance(node, Block) and node.of_rows:
                raise InputError(
                    f"{path_of(above, str(node))} gives rows of a batch different modules, which "
                    "is for training and `Learner.bind`: name one module by --adapters.use, or by "
                    "use= of t5x_lite.load"
                )


def check_nesting(use: "Sequence[str | Block]") -> None:
    """Refuses, by an InputError, a Parallel that is not below Stack alone, or a second one."""
    parallel = [above for tree in use for node, above in walk(tree) if isinstance(node, Parallel)]
    if len(parallel) > 1:
        raise InputError("there is one Parallel at most: it repeats the whole batch")
    for above in parallel:
        other = next((block for block in above if not isinstance(block, Stack)), None)
        if other is not None:
            raise InputError(
                f"Parallel repeats the whole batch, so only Stack may stand above it: got "
                f"{path_of(above, 'Parallel')}"
            )


def path_of(above: Sequence[Block], last: str) -> str:
    """Where a node stands: "Fuse > Stack > lora 'x'"."""
    return " > ".join([*(type(block).__name__ for block in above), last])


def pruned(tree: "str | Block | None", present: "frozenset[str]") -> bool:
    """Whether a tree has one of some modules."""
    return any(node in present for node, _ in walk(tree) if isinstance(node, str))


Gate = Literal["none", "real_tokens", "all_tokens"]


def make_gate(features: int, axis: str | None, *, rngs: nnx.Rngs, num: int = 1) -> Dense:
    """w and b.

    Args:
      features: D.
      axis: its logical name.
      rngs: the stream "params" is used.
      num: gates, each of the same input.
    """
    init = jax.nn.initializers.normal(0.02)
    return Dense(features, num, axes=(axis, None), initializer=init, bias=True, rngs=rngs)


def gates_of(
    dense: Dense, read: Float[Array, "*B T D"], seen: Any, kind: Gate
) -> Float[Array, "*B #T G"]:
    """The gate of each token, in float32.

    Args:
      dense: w and b.
      read: x.
      seen: which positions of the row a position sees, as of `slots.Around.mask`.
      kind: of the gate.
    """
    gates = jax.nn.sigmoid(dense.product(read))
    if kind == "all_tokens":
        return jnp.mean(gates, axis=-2, keepdims=True)
    return mean_of_seen(gates, seen)


def mean_of_seen(values: Float[Array, "*B T G"], seen: Any) -> Float[Array, "*B #T G"]:
    """The mean over the tokens that each token sees; None is itself alone.

    Args:
      values: of each token, in float32.
      seen: which positions of the row a position sees, as of `slots.Around.mask`.
    """
    if isinstance(seen, Visibility):
        seen = seen.dense(values.shape[1])
    if seen is None:
        return values
    weights = seen[:, 0].astype(jnp.float32)  # [B, 1 or T, T]
    return (weights @ values) / jnp.maximum(jnp.sum(weights, axis=-1, keepdims=True), 1.0)


def check_stacks(gate: str, stacks: Any) -> None:
    """Refuses, by an InputError, a gate that reads tokens that a decoder does not know yet."""
    if gate == "all_tokens" and "decoder" in stacks:
        raise InputError(
            "gate 'all_tokens' reads tokens that a decoder does not know yet: take 'real_tokens'"
        )


ROUTER = "router/"
"""Beginning of the names by which `tally` has what a router says."""


class RouterLayer(nnx.Module):
    """The router of a site.

    Args:
      block: its config.
      features: D, of what it reads.
      axis: the logical name of that.
      rngs: the stream "params" is used.
    """

    def __init__(self, block: Route, features: int, *, axis: str | None, rngs: nnx.Rngs):
        num = len(block.children)
        if block.kind == "free":
            self.weights = nnx.Param(jnp.full((num,), 1.0 / num, jnp.float32), logical=(None,))
            return
        init = jax.nn.initializers.normal(0.02)
        axes = (axis, None)
        self.logits = Dense(features, num, axes=axes, initializer=init, bias=True, rngs=rngs)

    def __call__(
        self, block: Route, x: Float[Array, "B T D"], seen: Any
    ) -> Float[Array, "#B #T K"]:
        """The weights of the children, in float32.

        Args:
          block: its config.
          x: what the site reads.
          seen: which positions of the row a position sees, as of `slots.Around.mask`.
        """
        if block.kind == "free":
            return self.weights[...].astype(jnp.float32)[None, None]
        logits = self.logits.product(x)
        if block.by == "example" and seen is not None:
            logits = mean_of_seen(logits, seen)[:, :1]  # what the first token sees is the row
        weights = jax.nn.softmax(logits / block.temperature, axis=-1)
        if experts.is_collected():
            experts.add(f"{ROUTER}{block.title}", told(weights, seen, length=x.shape[1]))
        if block.kind == "soft":
            return weights
        chosen = jax.nn.one_hot(jnp.argmax(weights, axis=-1), weights.shape[-1])
        return chosen * (1.0 + weights - jax.lax.stop_gradient(weights))

    def penalty(self) -> Float[Array, ""]:
        """None."""
        return jnp.float32(0)


def told(weights: Float[Array, "B _ K"], seen: Any, *, length: int) -> Float[Array, " _"]:
    """What a router says of a batch: 1, the balance, the entropy, and the mean of each w_k.

    Args:
      weights: of each token, or of each row, which add up to 1.
      seen: which positions of the row a position sees, as of `slots.Around.mask`.
      length: T.
    """
    num = weights.shape[-1]
    real = jnp.ones((weights.shape[0], length), bool) if seen is None else _real(seen, length)
    if weights.shape[1] == 1:
        real = jnp.any(real, axis=1, keepdims=True)
    count = real.astype(jnp.float32)[..., None] / jnp.maximum(jnp.sum(real), 1)
    shares = jnp.sum(count * weights, axis=(0, 1))
    likeliest = jax.nn.one_hot(jnp.argmax(weights, axis=-1), num)
    balance = num * jnp.sum(jnp.sum(count * likeliest, axis=(0, 1)) * shares)
    entropy = -jnp.sum(count * weights * jnp.log(jnp.maximum(weights, 1e-30)))
    return jnp.concatenate([jnp.stack([jnp.float32(1), balance, entropy]), shares])


def _real(seen: Any, length: int) -> Bool[Array, "B T"]:
    """Which tokens are no padding: they see themselves."""
    mask: Array = jnp.asarray(seen.dense(length) if isinstance(seen, Visibility) else seen)
    return mask[:, 0, 0] if mask.shape[2] == 1 else jnp.diagonal(mask[:, 0], axis1=1, axis2=2)


def routers_of(adapters: Sequence[Any], use: Sequence[str | Block]) -> dict[str, float]:
    """The routers of a composition and of its modules: name -> the weight of its balance.

    Args:
      adapters: configs of the modules.
      use: the trees.
    """
    blocks = trained_of(use).get(Route.part, {})
    found = {title: block.balance for title, block in blocks.items() if isinstance(block, Route)}
    own = {each.name: each.router_balance for each in adapters}
    return found | {name: balance for name, balance in own.items() if balance is not None}


def metrics_of(
    found: Mapping[str, Array], routers: Mapping[str, float]
) -> dict[str, tuple[Array, Array]]:
    """The metrics of routers: name -> (total, weight).

    Args:
      found: what was said while a loss was made, by `tally`.
      routers: from `routers_of`.
    """
    metrics: dict[str, tuple[Array, Array]] = {}
    for title, (count, _, entropy, *shares) in _said(found, routers).items():
        metrics[f"{title}_entropy"] = (entropy, count)
        metrics |= {f"{title}_share_{k}": (share, count) for k, share in enumerate(shares)}
    return metrics


def penalties_of(
    found: Mapping[str, Array], routers: Mapping[str, float]
) -> dict[str, tuple[Array, float]]:
    """The terms that balance routers: name -> (total, scale); as `metrics_of`."""
    said = _said(found, routers)
    return {f"{title}_balance": (each[1], routers[title]) for title, each in said.items()
            if routers[title]}  # fmt: skip


def _said(found: Mapping[str, Array], routers: Mapping[str, float]) -> dict[str, Array]:
    """What routers have said, by their names."""
    return {name: found[f"{ROUTER}{name}"] for name in routers if f"{ROUTER}{name}" in found}
