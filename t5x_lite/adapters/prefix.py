"""Prefix tuning and prompt tuning.

Prefix tuning: keys and values that every query attends to (Li and Liang 2021, arXiv:2101.00190).

    attention(x) = softmax(q [Pk; k]^T + [0; bias]) [Pv; v]        Pk, Pv [P, H, K], of each layer

Each attention type (encoder, decoder and cross-attention) has a network that generates Pk and Pv.
The network is not needed after training (`ejected`):

    h = tanh(E W1 + b1)        E [P, D], once for all layers
    Pk, Pv = h W2 + b2         W2 [M, 2, H, K], of each layer

No mask hides a prefix from a query, so rows may be packed. Tokens keep their relative positions,
and a prefix has no relative bias; in DeBERTa it has only content. (The library `adapters` counts
T5's distances from the start of the prefix, so all of them are off by P.) The cache of decoding
does not contain the prefix, which is shared by all rows. A prefix takes part in the softmax, so
it changes the model's outputs from the first step on.

A gate (`t5x_lite.adapters.composition`) multiplies an encoder's Pk and Pv for each row, as in
UniPELT; it reads the inputs of the queries. A decoder has no gate, because only its first token is
known when its prefixes are needed. (The library `adapters` reads that token there.)

PEFT puts a prefix to the left of a row, which is `place="left"` here: T5's relative bias applies
to it, and a BERT's tokens have the positions after it.

Prompt tuning: vectors before the embedded tokens (Lester et al. 2021, arXiv:2104.08691).

    encoder([p1 ... pP, embedded tokens])        p [P, D] is trained, the rest is frozen

They are inserted after the embeddings (after norm and dropout in BERT). They have no position
embedding, and the tokens keep theirs; for a relative bias and for DeBERTa they are P positions to
the left. An encoder's output does not contain them, but the decoder of a T5 attends to them.
A prompt belongs to one text, so rows must not be packed.

The paper's settings: P 100, Adafactor without parameter scaling at a constant rate of 0.3, decay
1e-5, on a T5 1.1 with further training as a language model.
"""

import dataclasses
import math
from collections.abc import Hashable, Mapping
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Float

from t5x_lite.adapters.adapter_tree import Modules
from t5x_lite.adapters.base import ADAPTERS, Adapter, Site
from t5x_lite.adapters.bottleneck import par_bn, seq_bn
from t5x_lite.adapters.composition import Gate, gates_of, make_gate
from t5x_lite.adapters.delta_merging import Union
from t5x_lite.adapters.lora import Lora
from t5x_lite.core import trees
from t5x_lite.core.errors import InputError
from t5x_lite.core.options import AtLeast, Count
from t5x_lite.core.trees import Array
from t5x_lite.models.vector_heads import as_model, in_tower, tower_of
from t5x_lite.nn.dense import einsum, lookup
from t5x_lite.nn.disentangled import DisentangledAttention
from t5x_lite.nn.slots import TokenHost

Place = Literal["none", "left"]
"""Position of a prefix relative to the tokens."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prefix(Adapter):
    """Configuration of prefix tuning: trained keys and values in each attention layer.

    Attributes:
      sites: names of attention layers, or regular expressions for such names.
      length: number P of prefix positions.
      hidden: hidden size M of the network that generates the prefixes in training.
      flat: True to train keys and values directly, without a network.
      encoder: False for no prefixes in the encoder of an encoder-decoder model, such as T5.
      cross: True if cross-attention has prefixes.
      gate: gate of an encoder's prefixes: "none", or the mean over "real_tokens" (no padding) or
        "all_tokens" (as in the library `adapters`).
      shared_gate: True for one gate for keys and values, False for separate gates.
      place: "none" for prefixes without a position, or "left" for positions before a row's first
        token.
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
            raise InputError(
                "a prefix with place='left' does not support a gate; set place='none' or "
                "gate='none'"
            )

    @property
    def unpackable(self) -> str:
        if self.place == "left":
            return "a prefix with place='left' is inserted before the first text of a row"
        return "" if self.gate == "none" else "the gate of a prefix is computed once for each row"

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> "PrefixModules":
        """Build the trained keys and values, or the networks that generate them.

        Raises:
          InputError: if the model lacks the attention layers, has no encoder for a gate, or is a
            DeBERTa and `place` is "left".
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
                f"adapter {self.name!r}: only prefixes of an encoder support a gate, but no "
                "encoder has prefixes; remove the gate"
            )
        return PrefixModules(found, {} if self.flat else widths, self, rngs=rngs)

    def _check_places(self, model: Any) -> None:
        for layers in model.stacks().values():
            if any(isinstance(one, DisentangledAttention) for one in layers.key_sites().values()):
                raise InputError(
                    f"adapter {self.name!r}: DeBERTa does not support a prefix with positions "
                    "(place='left'); set place='none'"
                )

    @property
    def network_width(self) -> int | None:
        """Hidden size M of the prefix network; None if `flat` is set."""
        return None if self.flat else self.hidden


class PrefixModules(Modules):
    """Prefix modules of a model, and the networks that generate prefixes in training.

    Args:
      found: prefix modules by stack ("encoder" or "decoder") and layer position.
      widths: hidden size of the model for each stack and layer position with a prefix network.
      config: config of the adapter.
      rngs: random streams; "params" is used.
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
            self.alone = "is inserted before the tokens and cannot be composed with other adapters"
        self.has_networks = bool(widths)
        if widths:
            made: dict[str, dict[str, nnx.Module]] = {}
            for (stack, site), width in widths.items():
                made.setdefault(stack, {})[site] = Network(config, width, rngs=rngs)
            self.network = Modules(made)

    def complete(self) -> None:
        """Run the prefix networks, and store their hidden states in the prefix modules."""
        if not self.has_networks:
            return
        for place in self.places:
            prefix: LayerPrefix = self.at(*place)
            states = self.network.at(*place)()
            layers = jnp.broadcast_to(states, (prefix.kernel.shape[0], *states.shape))
            prefix.states = nnx.Variable(layers, logical=("layers", None, None))


class Network(nnx.Module):
    """First layer of the prefix network: h = tanh(E W1 + b1) for trained embeddings E.

    Args:
      config: config of the adapter.
      width: hidden size D of the model.
      rngs: random streams; "params" is used.
    """

    def __init__(self, config: Prefix, width: int, *, rngs: nnx.Rngs):
        embedding = jax.random.normal(rngs.params(), (config.length, width), jnp.float32)
        self.embedding = nnx.Param(embedding, logical=(None, None))
        kernel, bias = _linear(width, (config.hidden,), rngs=rngs)
        self.kernel = nnx.Param(kernel, logical=(None, None))
        self.bias = nnx.Param(bias, logical=(None,))

    def __call__(self) -> Float[Array, "P M"]:
        """Return the hidden states h of the prefix network, in the dtype of the parameters."""
        return _states(self.embedding[...], self.kernel[...], self.bias[...])


class LayerPrefix(nnx.Module):
    """Prefix module of one attention layer: trained keys and values.

    Args:
      sizes: number of heads H and head size K.
      length: number P of prefix positions.
      hidden: hidden size M of the prefix network; None trains keys and values, from N(0, 1).
      rngs: random streams; "params" is used.
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
        if not self.has_network:
            return self.keys[...], self.values[...]
        if self.states is None:
            raise ValueError(
                "the prefix has no network states; call complete() of the adapter's modules first"
            )
        return _pair(self.states[...], self.kernel[...], self.bias[...])

    def kind(self) -> Hashable:
        return (type(self), self.length, self.has_network)


class PlacedPrefix(LayerPrefix):
    """Prefix module with positions to the left of the tokens, for T5's relative position bias."""

    @property
    def num_before(self) -> int:
        return self.length


class GatedPrefix(LayerPrefix):
    """Prefix module of one attention layer, with a gate that scales keys and values by row.

    Args:
      config: config of the adapter.
      sizes: number of heads H and head size K.
      d_model: hidden size of the model.
      rngs: random streams; "params" is used.
    """

    def __init__(self, config: Prefix, sizes: tuple[int, int], d_model: int, *, rngs: nnx.Rngs):
        super().__init__(sizes, length=config.length, hidden=config.network_width, rngs=rngs)
        self.kind_of_gate: Gate = config.gate
        self.gate = make_gate(d_model, "embed", num=1 if config.shared_gate else 2, rngs=rngs)

    def gated(
        self, x: Float[Array, "B T D"], seen: Any
    ) -> tuple[Float[Array, "B P H K"], Float[Array, "B P H K"]]:
        """Return the prefix keys and values of each batch row, scaled by the trained gate."""
        gates = gates_of(self.gate, x, seen, self.kind_of_gate)[:, 0, :, None, None, None]
        keys, values = self()
        dtype = keys.dtype
        return (gates[:, 0] * keys).astype(dtype), (gates[:, -1] * values).astype(dtype)

    def kind(self) -> Hashable:
        return None


def _states(embedding: Array, kernel: Array, bias: Array) -> Float[Array, "P M"]:
    states = einsum("PD,DM->PM", embedding, kernel)
    return jnp.tanh(states + bias.astype(jnp.float32)).astype(kernel.dtype)


def _pair(
    states: Array, kernel: Array, bias: Array
) -> tuple[Float[Array, "P H K"], Float[Array, "P H K"]]:
    made = einsum("PM,MCHK->CPHK", states.astype(kernel.dtype), kernel)
    made = made + bias.astype(jnp.float32)[:, None]
    return made[0].astype(kernel.dtype), made[1].astype(kernel.dtype)


def _linear(size: int, out: tuple[int, ...], *, rngs: nnx.Rngs) -> tuple[Array, Array]:
    """Sample kernel and bias, uniform within 1 / sqrt(size), as torch.nn.Linear does."""
    bound = 1.0 / math.sqrt(size)
    kernel, bias = (
        jax.random.uniform(rngs.params(), shape, jnp.float32, -bound, bound)
        for shape in ((size, *out), out)
    )
    return kernel, bias


def ejected(
    adapter: Prefix, params: Mapping[str, Any], *, dtype: str = "float32"
) -> tuple[Prefix, dict[str, Array]]:
    """Return a prefix adapter with keys and values as parameters instead of a network.

    Args:
      adapter: config of the prefix; a config without a network is returned unchanged.
      params: parameters of the adapter, by path or nested as in a checkpoint; parameters of other
        adapters are ignored.
      dtype: compute dtype of the model; in this dtype, keys and values stay equal bit for bit.

    Returns:
      Config without a network, and float32 parameters by path.

    Raises:
      InputError: if no parameter belongs to the adapter.
    """
    below = f"{ADAPTERS}{adapter.name}/"
    flat = params if any("/" in path for path in params) else trees.flatten(params)
    own = {path: jnp.asarray(x) for path, x in flat.items() if path.startswith(below)}
    if not own:
        raise InputError(
            f"the parameters have no path that begins with {below}; pass the parameters of adapter "
            f"{adapter.name!r}"
        )
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
    """Return the MAM adapter's config: prefixes and a parallel bottleneck (arXiv:2110.04366)."""
    prefix = Prefix(name=name, length=length, hidden=hidden)
    return Union(name=name, members=(prefix, par_bn(name=name, reduction=reduction)))


def unipelt(*, name: str = "unipelt", length: int = 10, reduction: float = 16.0) -> Union:
    """Return the config of UniPELT: gated prefixes, bottleneck and LoRA (arXiv:2110.07577)."""
    prefix = Prefix(name=name, length=length, gate="real_tokens")
    bottleneck = seq_bn(name=name, reduction=reduction, gate="real_tokens")
    lora = Lora(name=name, rank=8, alpha=2.0, gate="real_tokens")
    return Union(name=name, members=(prefix, bottleneck, lora))


Start = Literal["uniform", "vocab"]


_AMONG = 3, 5003


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prompt(Adapter):
    """Configuration of prompt tuning: trained vectors before the tokens of an encoder.

    Attributes:
      sites: layer position of the adapter; always "prompt".
      length: number P of vectors.
      init: initializer: "uniform", from -0.5 to 0.5; or "vocab", embeddings of tokens. With
        "vocab", the parameters start as 0 and are added to these embeddings.
      ids: token ids for "vocab", such as the ids of a text, repeated or truncated to `length` (as
        TEXT in PEFT); () samples random tokens.
      among: range of token ids for "vocab"; the end is excluded. A WordPiece vocabulary begins with
        tokens that are not words: use (1996, 6996) for BERT.
      seed: random seed of "vocab".
    """

    name: str = "prompt"
    sites: tuple[str, ...] = ("prompt",)
    length: Count = 10
    init: Start = "uniform"
    among: tuple[int, int] = _AMONG
    seed: int = 0
    ids: Annotated[tuple[int, ...], AtLeast(0)] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sites != ("prompt",):
            raise InputError(f"a prompt supports only the site 'prompt', got {self.sites}")
        if not 0 <= self.among[0] < self.among[1]:
            raise InputError(
                f"option among of a prompt must be two ascending token ids, got {self.among}"
            )
        if self.ids and self.init != "vocab":
            raise InputError(
                f"adapter {self.name!r}: ids are set, but init is {self.init!r}; set init='vocab'"
            )

    @property
    def unpackable(self) -> str:
        return "a prompt is inserted before each row"

    def build(self, model: nnx.Module, *, rngs: nnx.Rngs) -> Modules:
        """Build the prompt vectors.

        Raises:
          InputError: if the model has no encoder, or its token embedding has another width or too
            few rows.
        """
        if not isinstance(model, TokenHost):
            raise InputError(
                f"a prompt needs a model with an encoder, but a {type(model).__name__} does not "
                "have one; use prefix(), which supports every attention"
            )
        rows, columns = model.token_table().shape
        kernel = next(iter(model.stacks()["encoder"].dense_sites().values())).kernel
        d_model, ids = kernel.shape[-2], None
        if self.init == "vocab":
            if columns != d_model:
                raise InputError(
                    f"init 'vocab' needs a token embedding of width {d_model} (d_model), but its "
                    f"width is {columns}; set init='uniform'"
                )
            ids = np.resize(np.asarray(self.ids, np.int64), self.length)
        if self.ids and max(self.ids) >= rows:
            raise InputError(
                f"adapter {self.name!r}: ids contains {max(self.ids)}, but the vocabulary has "
                f"{rows} ids"
            )
        if self.init == "vocab" and not self.ids:
            first, end = self.among
            if self.among == _AMONG:  # a smaller vocabulary uses its first tokens
                end = min(end, rows)
            if end > rows:
                raise InputError(
                    f"adapter {self.name!r}: among={self.among} selects token ids beyond the "
                    f"vocabulary of {rows} tokens; set among=({first}, {rows})"
                )
            ids = np.random.default_rng(self.seed).integers(first, end, size=self.length)
        shape = (self.length, d_model)
        start = jnp.zeros(shape, jnp.float32)
        if ids is None:
            start = jax.random.uniform(rngs.params(), shape, jnp.float32, -0.5, 0.5)
        return Modules({"encoder": {"prompt": PromptRows(start, ids)}})


class PromptRows(nnx.Module):
    """Prompt module that inserts trained vectors before the embedded tokens of each row.

    Args:
      start: initial parameters [P, D].
      ids: token ids [P]; their embeddings are added to the parameters. None adds nothing.
    """

    def __init__(self, start: Array, ids: np.ndarray | None):
        self.rows = nnx.Param(start, logical=(None, "embed"))
        self.ids = None if ids is None else tuple(map(int, ids))

    @property
    def length(self) -> int:
        return self.rows.shape[0]

    def __call__(
        self, x: Float[Array, "B S D"], table: Float[Array, "V _"]
    ) -> Float[Array, "B L D"]:
        """Return the prompt vectors followed by the embedded tokens: [B, P + S, D].

        Args:
          x: embedded tokens.
          table: token embedding.
        """
        rows: Any = self.rows[...]
        if self.ids is not None:
            rows = rows + lookup(table, jnp.asarray(self.ids))
        rows = jnp.broadcast_to(rows.astype(x.dtype), (x.shape[0], *rows.shape))
        return jnp.concatenate([rows, x], axis=1)
