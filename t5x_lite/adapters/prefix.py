"""Prefix tuning and prompt tuning.

Prefix tuning: keys and values that every query sees (Li and Liang 2021, arXiv:2101.00190).

    attention(x) = softmax(q [Pk; k]^T + [0; bias]) [Pv; v]        Pk, Pv [P, H, K], of each layer

They are learned by way of a network of each attention of a stack (encoder, decoder and across),
which need not be kept (`ejected`):

    h = tanh(E W1 + b1)        E [P, D], once for all layers
    Pk, Pv = h W2 + b2         W2 [M, 2, H, K], of each layer

No query is masked from a prefix, so rows may be packed. Tokens keep their distances, and a prefix
has no relative bias; in DeBERTa it has content alone. (The library `adapters` counts a T5's
distances from the first of the prefix, so all of them are off by P.) Nothing of it is in the cache
of decoding: one prefix is there for all rows. A prefix takes part of the softmax, so it changes
what a model computes from the first step on.

A gate (`t5x_lite.adapters.composition`) multiplies an encoder's Pk and Pv for each row, as in
UniPELT: it reads what asks. A decoder, which knows its first token alone when its prefixes are
needed, has none. (The library `adapters` reads that token there.)

In PEFT a prefix lies to the left of a row, `place="left"` here: T5's relative bias reaches it, and
a BERT's tokens have the positions behind it.

Prompt tuning: rows that stand before those of the tokens (Lester et al. 2021, arXiv:2104.08691).

    encoder([p1 ... pP, embedded tokens])        p [P, D] trains, the rest is frozen

They stand where the embeddings are done (after norm and dropout in BERT), have no position in a
table, and the tokens keep theirs; in a relative bias and in DeBERTa they are P positions to the
left. The rows are cut off what an encoder gives; the decoder of a T5 sees them across. They belong
to one text: rows must not be packed.

The paper's settings: P 100, Adafactor without the scale of parameters at a constant rate of 0.3,
decay 1e-5, on a T5 1.1 that was trained further as a language model.
"""

import dataclasses
import math
from collections.abc import Hashable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float

from t5x_lite.adapters.adapter_tree import Modules
from t5x_lite.adapters.base import ADAPTERS, Adapter, Site
from t5x_lite.adapters.bottleneck import par_bn, seq_bn
from t5x_lite.adapters.composition import Gate, gates_of, make_gate
from t5x_lite.adapters.lora import Lora
from t5x_lite.adapters.merging import Union
from t5x_lite.core import trees
from t5x_lite.core.errors import InputError
from t5x_lite.core.options import Count
from t5x_lite.core.trees import Array
from t5x_lite.models.towers import as_model, in_tower, tower_of
from t5x_lite.nn.dense import einsum, lookup
from t5x_lite.nn.disentangled import DisentangledAttention
from t5x_lite.nn.slots import TokenHost

Place = Literal["none", "left"]
"""Where the tokens see a prefix to be."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prefix(Adapter):
    """Keys and values before those of the tokens.

    Attributes:
      sites: attentions.
      length: P.
      hidden: M, the width of the network.
      flat: whether keys and values are parameters themselves, without a network.
      encoder: whether the encoder of an encoder-decoder has prefixes; a model of one stack has.
      cross: whether cross-attention has prefixes.
      gate: of an encoder's prefixes: "none"; "real_tokens"; or "all_tokens", the library's.
      shared_gate: whether keys and values have one gate, or one each.
      place: "none", nowhere among the tokens; or "left", before a row's first token.
    """

    name: str = "prefix"
    sites: tuple[str, ...] = ("(cross_)?attention/prefix",)
    length: Count = 30
    hidden: Count = 512
    flat: bool = False
    encoder: bool = True
    cross: bool = True
    gate: Gate = "none"
    shared_gate: bool = True
    place: Place = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.place == "left" and self.gate != "none":
            raise InputError("a prefix with place='left' has no gate: leave one of them out")

    @property
    def unpackable(self) -> str:
        """A gate is of a row, and what lies to its left is so of its first text alone."""
        if self.place == "left":
            return "a prefix with place='left' lies before the first text of a row"
        return "" if self.gate == "none" else "the gate of a prefix is that of a whole row"

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> "PrefixModules":
        """Makes the keys and values, or what they are made by.

        Raises:
          InputError: there is no such attention; or a gate, and no encoder; or it lies to the left
            of a DeBERTa's tokens.
        """
        if self.place == "left":
            self._check_places(model)
        several = "decoder" in model.stacks()  # pyright: ignore[reportAttributeAccessIssue]
        widths: dict[tuple[str, str], int] = {}

        def key(site: Site, rngs: nnx.Rngs) -> LayerPrefix:
            widths[site.stack, site.name] = site.d_model
            assert site.heads is not None
            sizes = (site.heads, site.dense.kernel.shape[-1] // site.heads)
            if self.gate != "none" and site.stack != "decoder":
                return GatedPrefix(self, sizes, site.d_model, rngs=rngs)
            kind = PlacedPrefix if self.place == "left" else LayerPrefix
            return kind(sizes, length=self.length, hidden=self.network_width, rngs=rngs)

        def where(site: Site) -> bool:
            if site.name.startswith("cross_"):
                return self.cross
            return self.encoder or not several or site.stack != "encoder"

        found = self.at_sites(model, key=key, where=where, rngs=rngs)
        if self.gate != "none" and set(found) <= {"decoder"}:
            raise InputError(
                f"adapter {self.name!r}: the gate of a prefix is an encoder's, and no encoder has "
                "prefixes here: leave the gate out"
            )
        return PrefixModules(found, {} if self.flat else widths, self, rngs=rngs)

    def _check_places(self, model: Any) -> None:
        """Refuses a model whose tokens have distances alone, which no prefix has."""
        for layers in model.stacks().values():
            if any(isinstance(one, DisentangledAttention) for one in layers.key_sites().values()):
                raise InputError(
                    f"adapter {self.name!r}: in a DeBERTa a prefix has content and no position: "
                    "use place='none'"
                )

    @property
    def network_width(self) -> int | None:
        """M; None without a network."""
        return None if self.flat else self.hidden


class PrefixModules(Modules):
    """The prefixes, and their networks at adapters/NAME/network.

    Args:
      found: as of `Modules`.
      widths: D by the place of a prefix that has a network.
      config: of the adapter.
      rngs: the stream "params" is used.
    """

    def __init__(
        self,
        found: Mapping[str, Mapping[str, nnx.Module]],
        widths: Mapping[tuple[str, str], int],
        config: Prefix,
        *,
        rngs: nnx.Rngs,
    ):
        super().__init__(found)
        if config.place == "left":
            self.num_before = config.length
            self.alone = "lies before the tokens, and nothing can lie before or behind it"
        self.has_networks = bool(widths)
        if widths:
            made: dict[str, dict[str, nnx.Module]] = {}
            for (stack, site), width in widths.items():
                made.setdefault(stack, {})[site] = Network(config, width, rngs=rngs)
            self.network = Modules(made)

    def complete(self) -> None:
        """Puts into each layer what its network makes for all of them; in place."""
        if not self.has_networks:
            return
        for place in self.places:
            prefix: LayerPrefix = self.at(*place)
            states = self.network.at(*place)()
            layers = jnp.broadcast_to(states, (prefix.kernel.shape[0], *states.shape))
            prefix.states = nnx.Variable(layers, logical=("layers", None, None))


class Network(nnx.Module):
    """h = tanh(E W1 + b1); E is N(0, 1), the others as torch's Linear begins.

    Args:
      config: of the adapter.
      width: D.
      rngs: the stream "params" is used.
    """

    def __init__(self, config: Prefix, width: int, *, rngs: nnx.Rngs):
        embedding = jax.random.normal(rngs.params(), (config.length, width), jnp.float32)
        self.embedding = nnx.Param(embedding, logical=(None, None))
        kernel, bias = _linear(width, (config.hidden,), rngs=rngs)
        self.kernel = nnx.Param(kernel, logical=(None, None))
        self.bias = nnx.Param(bias, logical=(None,))

    def __call__(self) -> Float[Array, "P M"]:
        """The states, in the dtype of the parameters."""
        return _states(self.embedding[...], self.kernel[...], self.bias[...])


class LayerPrefix(nnx.Module):
    """A `KeySlot`: the keys and values of one layer.

    Args:
      sizes: H and K.
      length: P.
      hidden: M; None is no network, and keys and values are parameters, N(0, 1) at first.
      rngs: the stream "params" is used.
    """

    states: nnx.Variable | None = None  # h [P, M], from `PrefixModules.complete`

    def __init__(self, sizes: tuple[int, int], *, length: int, hidden: int | None, rngs: nnx.Rngs):
        self.length = length
        self.has_network = hidden is not None
        axes = (None, "heads", "kv")
        if hidden is None:
            pair = jax.random.normal(rngs.params(), (2, length, *sizes), jnp.float32)
            self.keys = nnx.Param(pair[0], logical=axes)
            self.values = nnx.Param(pair[1], logical=axes)
            return
        kernel, bias = _linear(hidden, (2, *sizes), rngs=rngs)
        self.kernel = nnx.Param(kernel, logical=(None, *axes))
        self.bias = nnx.Param(bias, logical=axes)

    def __call__(self) -> tuple[Float[Array, "P H K"], Float[Array, "P H K"]]:
        """Keys and values, in the dtype of the parameters."""
        if not self.has_network:
            return self.keys[...], self.values[...]
        if self.states is None:
            raise ValueError("a prefix needs its network's states: complete the modules first")
        return _pair(self.states[...], self.kernel[...], self.bias[...])

    def kind(self) -> Hashable:
        """Equal for prefixes of one length."""
        return (type(self), self.length, self.has_network)


class PlacedPrefix(LayerPrefix):
    """A `PlacedKeySlot`: it lies to the left of the tokens."""

    @property
    def num_before(self) -> int:
        """P."""
        return self.length


class GatedPrefix(LayerPrefix):
    """A `GatedKeySlot`: g Pk and g Pv.

    Args:
      config: of the adapter.
      sizes: H and K.
      d_model: size of what asks.
      rngs: the stream "params" is used.
    """

    def __init__(self, config: Prefix, sizes: tuple[int, int], d_model: int, *, rngs: nnx.Rngs):
        super().__init__(sizes, length=config.length, hidden=config.network_width, rngs=rngs)
        self.kind_of_gate: Gate = config.gate
        self.gate = make_gate(d_model, "embed", num=1 if config.shared_gate else 2, rngs=rngs)

    def gated(
        self, x: Float[Array, "B T D"], seen: Any
    ) -> tuple[Float[Array, "B P H K"], Float[Array, "B P H K"]]:
        """Keys and values of each row; what its first token sees is what the row sees."""
        gates = gates_of(self.gate, x, seen, self.kind_of_gate)[:, 0, :, None, None, None]
        keys, values = self()
        dtype = keys.dtype
        return (gates[:, 0] * keys).astype(dtype), (gates[:, -1] * values).astype(dtype)

    def kind(self) -> Hashable:
        """None: a gate sees a row."""
        return None


def _states(embedding: Array, kernel: Array, bias: Array) -> Float[Array, "P M"]:
    """h, in the dtype of the parameters."""
    states = einsum("PD,DM->PM", embedding, kernel)
    return jnp.tanh(states + bias.astype(jnp.float32)).astype(kernel.dtype)


def _pair(
    states: Array, kernel: Array, bias: Array
) -> tuple[Float[Array, "P H K"], Float[Array, "P H K"]]:
    """Pk and Pv of a layer, in the dtype of the parameters."""
    made = einsum("PM,MCHK->CPHK", states.astype(kernel.dtype), kernel)
    made = made + bias.astype(jnp.float32)[:, None]
    return made[0].astype(kernel.dtype), made[1].astype(kernel.dtype)


def _linear(size: int, out: tuple[int, ...], *, rngs: nnx.Rngs) -> tuple[Array, Array]:
    """Kernel and bias as torch's Linear begins: uniform, up to 1 / sqrt(size)."""
    bound = 1.0 / math.sqrt(size)
    kernel, bias = (
        jax.random.uniform(rngs.params(), shape, jnp.float32, -bound, bound)
        for shape in ((size, *out), out)
    )
    return kernel, bias


def ejected(
    adapter: Prefix, params: Mapping[str, Any], *, dtype: str = "float32"
) -> tuple[Prefix, dict[str, Array]]:
    """A prefix without its network: what it makes are the parameters.

    Args:
      adapter: with a network, or without one, which changes nothing.
      params: its parameters, by path or nested, as those of a checkpoint; of other modules, too.
      dtype: in which the model computes: there it makes the same numbers, bit for bit.

    Returns:
      The config, and its parameters by path, in float32.

    Raises:
      InputError: there are none of the module.
    """
    below = f"{ADAPTERS}{adapter.name}/"
    flat = params if any("/" in path for path in params) else trees.flatten(params)
    own = {path: jnp.asarray(x) for path, x in flat.items() if path.startswith(below)}
    if not own:
        raise InputError(f"no parameter is at {below}: these are of another module")
    if adapter.flat:
        return adapter, own
    towers = sorted({found[0] for path in own if (found := tower_of(path)) is not None})
    if towers:
        flat_config, made = ejected(adapter, as_model(own), dtype=dtype)
        for tower in towers:
            _, theirs = ejected(adapter, as_model(own, tower), dtype=dtype)
            made |= {in_tower(path, tower): x for path, x in theirs.items()}
        return flat_config, made
    made = {path: x for path, x in own.items() if "/gate/" in path}
    for path, embedding in own.items():
        if not path.startswith(f"{below}network/") or not path.endswith("/embedding"):
            continue
        place = path.removeprefix(f"{below}network/").removesuffix("/embedding")
        network = path.removesuffix("/embedding")
        parts = embedding, *(own[f"{network}/{leaf}"] for leaf in ("kernel", "bias"))
        states = _states(*(x.astype(dtype) for x in parts))
        layers = zip(own[f"{below}{place}/kernel"], own[f"{below}{place}/bias"], strict=True)
        pairs = [_pair(states, *(x.astype(dtype) for x in layer)) for layer in layers]
        for leaf, each in zip(("keys", "values"), zip(*pairs, strict=True), strict=True):
            made[f"{below}{place}/{leaf}"] = jnp.stack(each).astype(jnp.float32)
    return dataclasses.replace(adapter, flat=True), made


def mam(*, name: str = "mam", length: int = 30, hidden: int = 800, reduction: float = 2.0) -> Union:
    """Prefixes and a parallel bottleneck (He et al. 2022, arXiv:2110.04366, "MAM adapter")."""
    prefix = Prefix(name=name, length=length, hidden=hidden)
    return Union(name=name, members=(prefix, par_bn(name=name, reduction=reduction)))


def unipelt(*, name: str = "unipelt", length: int = 10, reduction: float = 16.0) -> Union:
    """Prefixes, a bottleneck and LoRA, each with a gate (Mao et al. 2022, arXiv:2110.07577)."""
    prefix = Prefix(name=name, length=length, gate="real_tokens")
    bottleneck = seq_bn(name=name, reduction=reduction, gate="real_tokens")
    lora = Lora(name=name, rank=8, alpha=2.0, gate="real_tokens")
    return Union(name=name, members=(prefix, bottleneck, lora))


Start = Literal["uniform", "vocab"]


_AMONG = 3, 5003


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prompt(Adapter):
    """Rows before the tokens of an encoder.

    Attributes:
      sites: "prompt".
      length: P.
      init: "uniform", from -0.5 to 0.5; "vocab", rows of the table of tokens, drawn by the seed:
        the parameters are the differences from them, 0 at first.
      among: the token ids, from the first to before the second, of which "vocab" draws. The first
        tokens of a WordPiece vocabulary are none of a language: (1996, 6996) are those of BERT.
      seed: of that draw.
    """

    name: str = "prompt"
    sites: tuple[str, ...] = ("prompt",)
    length: Count = 10
    init: Start = "uniform"
    among: tuple[int, int] = _AMONG
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sites != ("prompt",):
            raise InputError(f"the site of a prompt is 'prompt': got {self.sites}")
        if not 0 <= self.among[0] < self.among[1]:
            raise InputError(f"among must be two token ids, the smaller first: got {self.among}")

    @property
    def unpackable(self) -> str:
        """A prompt stands before a row."""
        return "a prompt stands before rows"

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> Modules:
        """Makes the rows.

        Raises:
          InputError: the model has no encoder, or its table is smaller or of other columns.
        """
        if not isinstance(model, TokenHost):
            raise InputError(
                f"a {type(model).__name__} has no encoder before whose tokens a prompt stands: "
                "prefix() is for any attention"
            )
        rows, columns = model.token_table().shape
        kernel = next(iter(model.stacks()["encoder"].dense_sites().values())).kernel
        d_model, ids = kernel.shape[-2], None
        if self.init == "vocab":
            if columns != d_model:
                raise InputError(
                    f"init 'vocab' needs a table of tokens of d_model {d_model} columns, and it "
                    f"has {columns}: use init='uniform'"
                )
            first, end = self.among
            if self.among == _AMONG:  # the first tokens of a smaller table
                end = min(end, rows)
            if end > rows:
                raise InputError(
                    f"adapter {self.name!r}: among {self.among} is beyond the table of tokens, "
                    f"which has {rows} rows: give among=({first}, {rows})"
                )
            ids = np.random.default_rng(self.seed).integers(first, end, size=self.length)
        shape = (self.length, d_model)
        start = jnp.zeros(shape, jnp.float32)
        if ids is None:
            start = jax.random.uniform(rngs.params(), shape, jnp.float32, -0.5, 0.5)
        return Modules({"encoder": {"prompt": PromptRows(start, ids)}})


class PromptRows(nnx.Module):
    """A `TokenSlot`.

    Args:
      start: the parameters at the start [P, D].
      ids: tokens [P] whose rows are added to them; None is none.
    """

    def __init__(self, start: Array, ids: np.ndarray | None):
        self.rows = nnx.Param(start, logical=(None, "embed"))
        self.ids = None if ids is None else tuple(map(int, ids))

    @property
    def length(self) -> int:
        """P."""
        return self.rows.shape[0]

    def __call__(
        self, x: Float[Array, "B S D"], table: Float[Array, "V _"]
    ) -> Float[Array, "B L D"]:
        """The rows, and behind them those of the tokens: [B, P + S, D].

        Args:
          x: embedded tokens.
          table: of the tokens.
        """
        rows: Any = self.rows[...]
        if self.ids is not None:
            rows = rows + lookup(table, jnp.asarray(self.ids))
        rows = jnp.broadcast_to(rows.astype(x.dtype), (len(x), *rows.shape))
        return jnp.concatenate([rows, x], axis=1)
