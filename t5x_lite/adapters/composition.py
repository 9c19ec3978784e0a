"""Compositions of adapters, the routers between them, and gates.

A composition is an expression of names of adapters, None (the model without an adapter), and the
composition blocks below. The adapters in the brackets of a block are its children.

    Stack(("en", Fuse(("sst2", "nli"))))            a frozen tree
    str(...)                                        "Stack(en, Fuse(sst2, nli))", its line
    names_of((tree,))                               ("en", "sst2", "nli")

| block | result for a state h | note |
|---|---|---|
| Stack(a, b) | b(a(h)) | |
| Average(a, b) | sum w_i h_i | the default weights are 1 / n |
| Fuse(a, b) | sum of contributions, weighted by attention | AdapterFusion (arXiv:2005.00247) |
| Route(a, b) | h + sum w_k (h_k - h) | a router computes w from the tokens |
| Split(a, b) | each child changes some columns of a row | only after blocks of an encoder |
| BatchSplit(a, b) | each child changes contiguous rows | |
| MultiTask(a, b) | each row has the child given by `adapter_ids` | |
| Task(h, of=1) | the adapter that a hypernetwork makes for a task | |
| Drop(a, layers=(0, 1)) | h in some layers, a(h) in the others | AdapterDrop (arXiv:2010.11918) |
| Parallel(a, b) | the batch K times, child after child | one in a tree, only below Stack |

`t5x_lite.adapters.evaluation` evaluates a composition. At a layer position (site) without a module
of an adapter, the adapter leaves the state unchanged. Blocks and defaults follow the library
`adapters`.

Routing: a router is trained together with the adapters, and weights them for each token or row.

    w = softmax((mean of x) W + b)       or of each token's x; W [D, K] starts as N(0, 0.02), b as 0
    h + sum_k w_k (h_k - h)              h_k: the state h after child k

"hard" uses only the likeliest child; its weight is 1, with the gradient of the child's probability
(straight-through). "free" weights are K trained numbers that start at 1 / K: a linear combination
of adapters. If each row has a single choice and the children are of one kind, only the chosen
adapters run, with their arrays gathered by row. Otherwise all children run and are weighted.

The loss has the metrics NAME_entropy, the entropy of w in nats, and NAME_share_k, the mean of w_k,
over the tokens of all sites and layers. With `balance` it has the term NAME_balance, summed over
sites and layers. With microbatches, NAME_balance is the mean over the microbatches. Padding does
not count, except in a decoder, which has no mask of its padding.

Gates: a factor for the contribution of an adapter (UniPELT, Mao et al. 2022, arXiv:2110.07577).

    g = mean over tokens of sigmoid(x w + b)        w [D, 1] starts as N(0, 0.02), b as 0

In the library `adapters` the mean is over the whole row. It includes padding and, in a decoder,
future tokens. Here, the mean in an encoder is over the tokens that a token attends to, and a
decoder uses each token's own gate. The gate "all_tokens" is the library's, only for encoders.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Bool, Float

from t5x_lite.core.errors import InputError
from t5x_lite.core.options import Above, AtLeast, OptionalCount, Whole, check_bounds
from t5x_lite.core.trees import Array
from t5x_lite.nn import experts
from t5x_lite.nn.dense import Dense
from t5x_lite.nn.masks import Visibility


@dataclasses.dataclass(frozen=True)
class Block:
    """Base class of the expressions that compose adapters, such as Stack(a, b).

    Attributes:
      children: names of adapters, or nested compositions; None is the model without an adapter.
    """

    children: "tuple[str | Block | None, ...]"

    bare: ClassVar[bool] = False
    """True if None, the model without an adapter, is accepted in `children`."""

    of_rows: ClassVar[bool] = False
    """True if the row index or the feature `adapter_ids` chooses the adapter of each row."""

    by_content: ClassVar[bool] = False
    """True if the content of a row or token chooses the adapter that it uses."""

    @property
    def unpackable(self) -> str:
        """Reason why packed rows are not supported; "" if they are supported."""
        return ""

    def __post_init__(self) -> None:
        if not self.children:
            raise InputError(
                f"a composition block {type(self).__name__} must have children, which are adapter "
                "names or blocks"
            )
        if None in self.children and not self.bare:
            raise InputError(
                f"block {type(self).__name__} does not support None (the model without an adapter) "
                "as a child"
            )
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
    """Composition block that applies several adapters one after the other."""


@dataclasses.dataclass(frozen=True)
class Average(Block):
    """Composition block with the weighted sum of several adapters' results for the same input.

    Attributes:
      weights: weight of each adapter; () means 1 / n for each of n adapters.
      normalize: True to divide the weights by their sum.
    """

    weights: tuple[float, ...] = ()
    normalize: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_number("weights", self.weights, self.children)
        if self.normalize and not sum(self.weights):
            raise InputError(
                "Average cannot normalize weights with a sum of 0; change the weights, or unset "
                "normalize"
            )

    @property
    def shares(self) -> tuple[float, ...]:
        """Weights of the adapters, normalized if `normalize` is set."""
        if not self.weights:
            return (1.0 / len(self.children),) * len(self.children)
        total = sum(self.weights) if self.normalize else 1.0
        return tuple(weight / total for weight in self.weights)


@dataclasses.dataclass(frozen=True)
class Drop(Block):
    """Composition block that skips an adapter in some layers (arXiv:2010.11918).

    Attributes:
      layers: layers without the adapter, counted from 0, decoder layers after encoder layers.
    """

    layers: Annotated[tuple[int, ...], AtLeast(0)] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.children) != 1:
            raise InputError(
                f"a Drop block must have exactly one child, got {len(self.children)}; put several "
                "children into a Stack"
            )
        if not self.layers:
            raise InputError("a Drop block requires the numbers of the layers to skip; set layers=")


@dataclasses.dataclass(frozen=True)
class Task(Block):
    """Composition block that selects the adapter of one task from a hypernetwork.

    Attributes:
      of: number of the task, counted from 0.
    """

    of: Whole = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.children) != 1 or not isinstance(self.children[0], str):
            raise InputError("a Task block must have exactly one child, the name of a hypernetwork")


@dataclasses.dataclass(frozen=True)
class Trained(Block):
    """Base class of composition blocks with trained parameters.

    Attributes:
      name: name of the block in parameter paths; "" joins the names of the adapters with "_".
    """

    part: ClassVar[str]
    """PART in the paths of the parameters, adapters/PART/NAME: "fusion" or "router"."""

    name: str = ""

    @property
    def title(self) -> str:
        """Name of the block in parameter paths."""
        return self.name or "_".join(names_of((self,)))

    @property
    def key(self) -> str:
        """Key of this block's trained layers in a composition, such as "router__NAME"."""
        return f"{self.part}__{self.title}"


@dataclasses.dataclass(frozen=True)
class Fuse(Trained):
    """AdapterFusion block: attention over the outputs of several adapters (arXiv:2005.00247).

    Attributes:
      temperature: temperature of the attention softmax.
      static: True to omit the value projection of the adapter outputs.
    """

    part: ClassVar[str] = "fusion"

    temperature: Annotated[float, Above(0)] = 1.0
    static: bool = False


@dataclasses.dataclass(frozen=True)
class Route(Trained):
    """Composition block that mixes the outputs of several adapters by router weights w_k.

    Attributes:
      by: "token" to compute weights for each token, or "example" to compute them for each row from
        the mean of its tokens; in a decoder, "example" also computes weights for each token.
      kind: "soft", a softmax; "sigmoid", independent sigmoids divided by their sum (Ponti et al.
        2023, arXiv:2202.13914, without their noise); "hard", only the likeliest adapter, with the
        gradient of its probability; or "free", trained weights that all tokens share, with any sum.
      temperature: number that divides the router's logits.
      top: number of adapters with the largest weights that are mixed; their weights are divided by
        their sum (Shazeer et al. 2017, arXiv:1701.06538). None mixes all adapters. Only for kind
        "soft" and "sigmoid". All adapters are computed.
      balance: loss weight of the load-balancing term K sum_k f_k P_k at each layer position (Fedus
        et al. 2022, arXiv:2101.03961, section 2.2, use 0.01). f_k is the fraction of tokens (with
        by="example", of rows) with adapter k as the likeliest, and P_k is the mean of w_k. The term
        is 1 if all adapters are used equally.
    """

    part: ClassVar[str] = "router"
    bare: ClassVar[bool] = True
    by_content: ClassVar[bool] = True

    by: Literal["example", "token"] = "example"
    kind: Literal["soft", "sigmoid", "hard", "free"] = "soft"
    temperature: Annotated[float, Above(0)] = 1.0
    balance: float = 0.0
    top: OptionalCount = None

    @property
    def unpackable(self) -> str:
        is_one = self.by == "example" and self.kind != "free"
        return "Route by example computes one set of weights for each row" if is_one else ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.balance < 0 or (self.balance and self.kind == "free"):
            raise InputError(
                "balance of a Route block must be at least 0, and must be 0 with kind 'free', got "
                f"{self.balance}"
            )
        if self.top is not None and self.kind in ("hard", "free"):
            raise InputError(
                f"top is {self.top}, but a Route of kind {self.kind!r} has no top; remove top, or "
                "use kind='soft'"
            )
        if self.top is not None and self.top > len(self.children):
            raise InputError(
                f"top is {self.top}, but the Route has {len(self.children)} adapters; lower top"
            )


@dataclasses.dataclass(frozen=True)
class Split(Block):
    """Composition block that assigns consecutive ranges of a row's tokens to several adapters.

    Attributes:
      splits: number of tokens for each adapter; one entry may be "rest".
    """

    splits: Annotated[tuple[int | Literal["rest"], ...], AtLeast(1)] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.splits:
            raise InputError(
                "a Split block requires the number of tokens for each child; set splits=, where "
                "one entry may be 'rest'"
            )
        _check_number("splits", self.splits, self.children)
        if self.splits.count("rest") > 1:
            raise InputError("splits of a Split block may contain 'rest' only once")

    def sizes(self, length: int) -> tuple[int, ...]:
        """Return the number of tokens for each adapter.

        Raises:
          InputError: if the sizes do not add up to the row length.
        """
        known = sum(size for size in self.splits if size != "rest")
        rest = length - known
        if rest < 0 or (rest and "rest" not in self.splits):
            raise InputError(f"block {self}: splits do not add up to the {length} tokens of a row")
        return tuple(rest if size == "rest" else size for size in self.splits)


@dataclasses.dataclass(frozen=True)
class BatchSplit(Block):
    """Composition block that assigns contiguous ranges of a batch's rows to several adapters.

    Attributes:
      sizes: number of rows for each adapter; () splits the batch evenly.
    """

    sizes: Annotated[tuple[int, ...], AtLeast(1)] = ()

    bare: ClassVar[bool] = True
    of_rows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_number("sizes", self.sizes, self.children)

    def rows(self, num: int) -> tuple[int, ...]:
        """Return the number of batch rows for each adapter.

        Raises:
          InputError: if the sizes do not add up to the batch size `num`.
        """
        sizes = self.sizes or (num // len(self.children),) * len(self.children)
        if sum(sizes) != num:
            remedy = (
                f"the sizes add up to {sum(sizes)}; change --data.batch-size or the sizes"
                if self.sizes
                else f"{num} cannot be divided evenly among {len(self.children)} children; set "
                "sizes=(...)"
            )
            raise InputError(f"block {self}: a batch has {num} rows, but {remedy}")
        return sizes


@dataclasses.dataclass(frozen=True)
class MultiTask(Block):
    """Composition block that selects the adapter of each row by the feature `adapter_ids`."""

    bare: ClassVar[bool] = True
    of_rows: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True)
class Parallel(Block):
    """Composition block that repeats the batch, with one copy for each adapter."""

    bare: ClassVar[bool] = True
    of_rows: ClassVar[bool] = True

    def rows(self, num: int) -> tuple[int, ...]:
        """Return the number of batch rows for each adapter.

        Raises:
          InputError: if the batch size `num` is not a multiple of the number of adapters.
        """
        if num % len(self.children):
            raise InputError(
                f"block {self}: a batch of {num} rows cannot be divided evenly among the children"
            )
        return (num // len(self.children),) * len(self.children)


BLOCKS: dict[str, type[Block]] = {
    each.__name__: each
    for each in (Stack, Average, Drop, Task, Fuse, Route, Split, BatchSplit, MultiTask, Parallel)
}
"""Name of a composition block, such as "Stack" -> its class."""


def _check_number(name: str, values: Sequence[object], children: Sequence[object]) -> None:
    if values and len(values) != len(children):
        raise InputError(
            f"option {name} of a composition block must have one value for each of its "
            f"{len(children)} children, got {values}"
        )


def walk(
    tree: "str | Block | None", above: tuple[Block, ...] = ()
) -> Iterator[tuple["str | Block", tuple[Block, ...]]]:
    """Yield the blocks and adapter names in a composition, each with its enclosing blocks."""
    if tree is None:
        return
    yield tree, above
    if isinstance(tree, Block):
        for child in tree.children:
            yield from walk(child, (*above, tree))


def names_of(use: "Sequence[str | Block]") -> tuple[str, ...]:
    """Return the adapter names in several compositions, in order and without duplicates."""
    leaves = [node for tree in use for node, _ in walk(tree) if isinstance(node, str)]
    return tuple(dict.fromkeys(leaves))


def trained_of(use: "Sequence[str | Block]") -> dict[str, dict[str, Trained]]:
    """Return all Fuse and Route configs by kind ("fusion" or "router") and name.

    Raises:
      InputError: if two different configs have the same name.
    """
    known: dict[str, dict[str, Trained]] = {}
    for tree in use:
        for node, _ in walk(tree):
            if not isinstance(node, Trained):
                continue
            blocks = known.setdefault(node.part, {})
            if blocks.setdefault(node.title, node) != node:
                raise InputError(
                    f"two {node.part} blocks are called {node.title}; set another name= for one "
                    "of them"
                )
    return known


def parallel_of(use: "Sequence[str | Block]") -> int:
    for tree in use:
        for node, _ in walk(tree):
            if isinstance(node, Parallel):
                return len(node.children)
    return 1


def check_answers(use: "Sequence[str | Block]") -> None:
    """Raise InputError if a composition uses different adapters for different rows of a batch.

    Such compositions are only for training: in inference, a text can be in any row.
    """
    for tree in use:
        for node, above in walk(tree):
            if isinstance(node, Block) and node.of_rows:
                raise InputError(
                    f"composition {path_of(above, str(node))} uses different adapters for "
                    "different rows of a batch, which is only supported in training and "
                    "`Learner.bind`; select one adapter with --adapters.use, or with use= of "
                    "t5x_lite.load"
                )


def check_nesting(use: "Sequence[str | Block]") -> None:
    """Raise InputError for several Parallel blocks, or for one in a block that is not a Stack."""
    parallel = [above for tree in use for node, above in walk(tree) if isinstance(node, Parallel)]
    if len(parallel) > 1:
        raise InputError(
            "only one Parallel block is allowed, because it repeats the whole batch; remove the "
            "others"
        )
    for above in parallel:
        other = next((block for block in above if not isinstance(block, Stack)), None)
        if other is not None:
            raise InputError(
                "a Parallel block repeats the whole batch, so only a Stack may contain it, got "
                f"{path_of(above, 'Parallel')}"
            )


def path_of(above: Sequence[Block], last: str) -> str:
    """Return the position of an adapter in a composition, such as "Fuse > Stack > lora 'x'"."""
    return " > ".join([*(type(block).__name__ for block in above), last])


def pruned(tree: "str | Block | None", present: "frozenset[str]") -> bool:
    """Return True if a composition contains one of the adapters in `present`."""
    return any(node in present for node, _ in walk(tree) if isinstance(node, str))


Gate = Literal["none", "real_tokens", "all_tokens"]


def make_gate(features: int, axis: str | None, *, rngs: nnx.Rngs, num: int = 1) -> Dense:
    """Build the dense layer that computes an adapter's gate from its input.

    Args:
      features: input size D.
      axis: logical name of the input's axis.
      rngs: random streams; "params" is used.
      num: number of gates, all with the same input.
    """
    init = jax.nn.initializers.normal(0.02)
    return Dense(features, num, axes=(axis, None), initializer=init, bias=True, rngs=rngs)


def gates_of(
    dense: Dense, read: Float[Array, "*B T D"], seen: Any, kind: Gate
) -> Float[Array, "*B #T G"]:
    """Return the value of an adapter's gate for each token, in float32.

    Args:
      dense: dense layer of the gate.
      read: input of the gate.
      seen: attention mask: the positions that each position attends to.
      kind: tokens over which the gate is averaged: "real_tokens" (no padding) or "all_tokens".
    """
    gates = jax.nn.sigmoid(dense.product(read))
    if kind == "all_tokens":
        return jnp.mean(gates, axis=-2, keepdims=True)
    return mean_of_seen(gates, seen)


def mean_of_seen(values: Float[Array, "*B T G"], seen: Any) -> Float[Array, "*B #T G"]:
    """Return, for each token, the mean of `values` over the tokens to which it attends.

    Args:
      values: values of each token, in float32.
      seen: attention mask; if None, each token attends only to itself.
    """
    if isinstance(seen, Visibility):
        seen = seen.dense(values.shape[1])
    if seen is None:
        return values
    weights = seen[:, 0].astype(jnp.float32)  # [B, 1 or T, T]
    return (weights @ values) / jnp.maximum(jnp.sum(weights, axis=-1, keepdims=True), 1.0)


def check_stacks(gate: str, stacks: Any) -> None:
    """Raise InputError if a gate of kind "all_tokens" would read a decoder's future tokens."""
    if gate == "all_tokens" and "decoder" in stacks:
        raise InputError(
            "gate 'all_tokens' would read future tokens in a decoder; set gate to 'real_tokens'"
        )


ROUTER = "router/"
"""Prefix of the keys of router statistics that `t5x_lite.nn.experts` collects."""


class RouterLayer(nnx.Module):
    """Router module that computes the weights of composed adapters in one layer.

    Args:
      block: config of the router.
      features: input size D.
      axis: logical name of the input's axis.
      rngs: random streams; "params" is used.
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
        """Return the router's weight for each adapter, in float32.

        Args:
          block: config of the router.
          x: hidden states that the router reads.
          seen: attention mask: the positions that each position attends to.
        """
        if block.kind == "free":
            return self.weights[...].astype(jnp.float32)[None, None]
        logits = self.logits.product(x)
        if block.by == "example" and seen is not None:
            logits = mean_of_seen(logits, seen)[:, :1]  # the first token attends to the row
        weights = _mixed(block, logits / block.temperature)
        if experts.is_collected():
            experts.add(f"{ROUTER}{block.title}", told(weights, seen, length=x.shape[1]))
        if block.kind != "hard":
            return weights
        chosen = jax.nn.one_hot(jnp.argmax(weights, axis=-1), weights.shape[-1])
        return chosen * (1.0 + weights - jax.lax.stop_gradient(weights))

    def penalty(self) -> Float[Array, ""]:
        return jnp.float32(0)


def _mixed(block: Route, logits: Float[Array, "B _ K"]) -> Float[Array, "B _ K"]:
    if block.kind == "sigmoid":
        weights = jax.nn.sigmoid(logits)
        weights /= jnp.sum(weights, axis=-1, keepdims=True) + 1e-12
    else:
        weights = jax.nn.softmax(logits, axis=-1)
    if block.top is None:
        return weights
    _, places = jax.lax.top_k(logits, block.top)  # the first of equal logits
    kept = weights * jnp.sum(jax.nn.one_hot(places, logits.shape[-1]), axis=-2)
    return kept / (jnp.sum(kept, axis=-1, keepdims=True) + 1e-12)


def told(weights: Float[Array, "B _ K"], seen: Any, *, length: int) -> Float[Array, " _"]:
    """Return statistics of router weights: load balance, entropy, and mean weight of each adapter.

    Args:
      weights: router weights of each token or row; they add up to 1.
      seen: attention mask: the positions that each position attends to.
      length: row length T.
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
    """Return the mask of tokens that are not padding, computed from the attention mask."""
    mask: Array = jnp.asarray(seen.dense(length) if isinstance(seen, Visibility) else seen)
    return mask[:, 0, 0] if mask.shape[2] == 1 else jnp.diagonal(mask[:, 0], axis1=1, axis2=2)


def routers_of(adapters: Sequence[Any], use: Sequence[str | Block]) -> dict[str, float]:
    """Return the loss weight of load balancing for each router in use, by name.

    Args:
      adapters: configs of the adapters.
      use: compositions of adapters.
    """
    blocks = trained_of(use).get(Route.part, {})
    found = {title: block.balance for title, block in blocks.items() if isinstance(block, Route)}
    own = {each.name: each.router_balance for each in adapters}
    return found | {name: balance for name, balance in own.items() if balance is not None}


def metrics_of(
    found: Mapping[str, Array], routers: Mapping[str, float]
) -> dict[str, tuple[Array, Array]]:
    """Return the entropy and mean weights of all routers as metrics, by name.

    Args:
      found: router statistics that were collected while the loss was computed.
      routers: name of each router, with its loss weight of load balancing.
    """
    metrics: dict[str, tuple[Array, Array]] = {}
    for title, (count, _, entropy, *shares) in _said(found, routers).items():
        metrics[f"{title}_entropy"] = (entropy, count)
        metrics |= {f"{title}_share_{k}": (share, count) for k, share in enumerate(shares)}
    return metrics


def penalties_of(
    found: Mapping[str, Array], routers: Mapping[str, float]
) -> dict[str, tuple[Array, float]]:
    """Return each router's load-balancing loss with its weight in the total loss, by name."""
    said = _said(found, routers)
    return {f"{title}_balance": (each[1], routers[title]) for title, each in said.items()
            if routers[title]}  # fmt: skip


def _said(found: Mapping[str, Array], routers: Mapping[str, float]) -> dict[str, Array]:
    return {name: found[f"{ROUTER}{name}"] for name in routers if f"{ROUTER}{name}" in found}
