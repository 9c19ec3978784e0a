"""Transformer layers: pre-norm (T5) and post-norm (BERT).

Pre-norm layers, as in T5:

    x = x + dropout(attention(norm(x)))
    x = x + dropout(attention(norm(x), encoded))     a decoder with cross-attention
    x = x + dropout(mlp(norm(x)))

T5 has one relative bias table for all layers of a stack, which is part of the attention pattern.
umT5 has one table per layer (`relative_bias_per_layer`), which the layer adds to the pattern.

Post-norm layers, as in BERT, RoBERTa and ELECTRA (Devlin et al. 2019):

    y = LayerNorm(x + dropout(attention(x)))
    y = LayerNorm(y + dropout(mlp(y)))

All products have a bias, and logits are scaled by 1 / sqrt(head size). Sums, statistics, softmax
and activations are float32 whatever the compute dtype. Dropout of hidden states is sampled for each
element. Dropout of attention weights is sampled for each query and key, or once for all queries
(`share_attention_dropout`).

Every block ends with `residual`, which computes dropout, sum and norm. An adapter at the end of a
block replaces the sum and the norm.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx
from jaxtyping import Float

from t5x_lite.core.trees import Array, Key
from t5x_lite.nn.attention import Attention
from t5x_lite.nn.attention_pattern import EVERYTHING, Pattern, RelativeBias
from t5x_lite.nn.dense import (
    FEED_FORWARDS,
    MLP,
    Activation,
    Dense,
    FeedForward,
    LayerNorm,
    RMSNorm,
    dropout,
    split_key,
    truncated_normal,
)
from t5x_lite.nn.slots import Around, BlockSlot, named, seeded


def residual(
    x: Float[Array, "B T D"],
    y: Float[Array, "B T D"],
    *,
    rate: float = 0.0,
    key: Key | None = None,
    over_length: bool = False,
    norm: Callable[[Array], Array] | None = None,
    slot: BlockSlot | None = None,
    source: Float[Array, "B T D"] | None = None,
    mask: Any = None,
) -> Float[Array, "B T D"]:
    """Add the residual connection at the end of a block: x + dropout(y).

    Args:
      x: input of the block, for the residual connection.
      y: output of attention or feed-forward.
      rate: dropout rate.
      key: random key of dropout; None disables dropout.
      over_length: True if all positions of a row share the dropout mask, as in T5.
      norm: norm of a post-norm block; None in a pre-norm block.
      slot: adapter that replaces the sum and the norm; None without an adapter.
      source: input of attention or feed-forward, for the adapter; default: x.
      mask: attention mask, for the adapter; None in a decoder.
    """
    y = dropout(y, rate, key=key, broadcast_axes=(-2,) if over_length else ())
    if slot is not None:
        own_key = None if key is None else jax.random.fold_in(key, 1)
        return slot(y, x, norm, Around(x if source is None else source, mask, own_key))
    x = x + y
    return x if norm is None else norm(x)


KeysAndValues = tuple[Float[Array, "B _ H K"], Float[Array, "B _ H K"]]
KeysAndValuesByHead = tuple[Float[Array, "B H K _"], Float[Array, "B H _ K"]]
CachedKeysAndValues = tuple[Float[Array, "B G K _"], Float[Array, "B H _ K"]]


def by_head(pair: KeysAndValues) -> KeysAndValuesByHead:
    """Transpose keys to [B, H, K, S] and values to [B, H, S, K], the layout of a decoding cache."""
    return pair[0].transpose(0, 2, 3, 1), pair[1].swapaxes(1, 2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerConfig:
    """Sizes and options of one pre-norm layer."""

    d_model: int
    d_kv: int
    d_ff: int
    num_heads: int
    feed_forward: FeedForward
    dropout_rate: float
    norm_epsilon: float
    relative_buckets: int
    relative_max_distance: int
    relative_bias_per_layer: bool = False

    def attention(self, rngs: nnx.Rngs) -> Attention:
        return Attention(
            self.d_model,
            num_heads=self.num_heads,
            d_kv=self.d_kv,
            dropout_rate=self.dropout_rate,
            rngs=rngs,
        )

    def mlp(self, rngs: nnx.Rngs) -> MLP:
        activation, gated = FEED_FORWARDS[self.feed_forward]
        return MLP(
            self.d_model,
            self.d_ff,
            activation=activation,
            gated=gated,
            dropout_rate=self.dropout_rate,
            rngs=rngs,
        )

    def norm(self) -> RMSNorm:
        return RMSNorm(self.d_model, epsilon=self.norm_epsilon)

    def relative_bias(self, rngs: nnx.Rngs) -> RelativeBias:
        return RelativeBias(
            self.num_heads,
            num_buckets=self.relative_buckets,
            max_distance=self.relative_max_distance,
            rngs=rngs,
        )


class PreNormLayer(nnx.Module):
    """Base class of pre-norm layers."""

    dropout_rate: float
    after_attention: BlockSlot | None = None
    after_mlp: BlockSlot | None = None

    def _residual(
        self,
        x: Float[Array, "B T D"],
        y: Float[Array, "B T D"],
        key: Key | None = None,
        *,
        slot: BlockSlot | None,
        source: Float[Array, "B T D"],
        mask: Any = None,
    ) -> Float[Array, "B T D"]:
        return residual(
            x,
            y,
            rate=self.dropout_rate,
            key=key,
            over_length=True,
            slot=slot,
            source=source,
            mask=mask,
        )


class EncoderLayer(PreNormLayer):
    """Pre-norm encoder layer: self-attention and feed-forward."""

    def __init__(self, config: LayerConfig, *, rngs: nnx.Rngs):
        self.attention_norm = config.norm()
        self.attention = config.attention(rngs)
        self.mlp_norm = config.norm()
        self.mlp = config.mlp(rngs)
        self.dropout_rate = config.dropout_rate
        self.own_bias = config.relative_bias_per_layer
        if self.own_bias:
            self.relative_bias = config.relative_bias(rngs)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        *,
        pattern: Pattern,
        key: Key | None = None,
    ) -> Float[Array, "B T D"]:
        """Apply the encoder layer to hidden states.

        Args:
          x: hidden states.
          pattern: positions that each position attends to, and the relative bias of the logits.
          key: random key of dropout; None disables dropout.
        """
        keys = split_key(seeded(key, self), 4)
        if self.own_bias:
            pattern = pattern.biased(self.relative_bias, bidirectional=True)
        mask = pattern.mask
        normed = self.attention_norm(x)
        y = self.attention(normed, pattern=pattern, key=keys[0])
        x = self._residual(x, y, keys[1], slot=self.after_attention, source=normed, mask=mask)
        normed = self.mlp_norm(x)
        y = self.mlp(normed, key=keys[2], seen=mask)
        return self._residual(x, y, keys[3], slot=self.after_mlp, source=normed, mask=mask)

    def dense_sites(self) -> dict[str, Dense]:
        attention, mlp = self.attention.dense_sites(), self.mlp.dense_sites()
        return {**named("attention", attention), **named("mlp", mlp)}

    def hidden_sites(self) -> dict[str, Any]:
        return {"attention/hidden": self.attention, "mlp/hidden": self.mlp}

    def key_sites(self) -> dict[str, Attention]:
        return {"attention/prefix": self.attention}

    def block_sites(self) -> tuple[str, ...]:
        return ("after_attention", "after_mlp")


class DecoderLayer(PreNormLayer):
    """Pre-norm decoder layer: self-attention, cross-attention and feed-forward.

    Args:
      config: sizes of the layer.
      cross_attention: True if the layer attends to an encoder's output; False in a language model.
      bidirectional: True if the layer's relative bias has buckets for keys to the right.
      rngs: random streams; "params" is used.
    """

    after_cross_attention: BlockSlot | None = None

    def __init__(
        self,
        config: LayerConfig,
        *,
        cross_attention: bool = True,
        bidirectional: bool = False,
        rngs: nnx.Rngs,
    ):
        self.bidirectional = bidirectional
        self.self_attention_norm = config.norm()
        self.self_attention = config.attention(rngs)
        self.crosses = cross_attention
        if cross_attention:
            self.cross_attention_norm = config.norm()
            self.cross_attention = config.attention(rngs)
        self.mlp_norm = config.norm()
        self.mlp = config.mlp(rngs)
        self.dropout_rate = config.dropout_rate
        self.own_bias = config.relative_bias_per_layer
        if self.own_bias:
            self.relative_bias = config.relative_bias(rngs)

    def dense_sites(self) -> dict[str, Dense]:
        sites = named("attention", self.self_attention.dense_sites())
        if self.crosses:
            sites |= named("cross_attention", self.cross_attention.dense_sites())
        return {**sites, **named("mlp", self.mlp.dense_sites())}

    def hidden_sites(self) -> dict[str, Any]:
        cross = {"cross_attention/hidden": self.cross_attention} if self.crosses else {}
        return {"attention/hidden": self.self_attention, **cross, "mlp/hidden": self.mlp}

    def key_sites(self) -> dict[str, Attention]:
        cross = {"cross_attention/prefix": self.cross_attention} if self.crosses else {}
        return {"attention/prefix": self.self_attention, **cross}

    def block_sites(self) -> tuple[str, ...]:
        cross = ("after_cross_attention",) if self.crosses else ()
        return ("after_attention", *cross, "after_mlp")

    def join(self) -> None:
        """Fuse projections of the same input into one matrix product for decoding, in place."""
        self.self_attention.join()
        if self.crosses:
            self.cross_attention.join(crosses=True)
        self.mlp.join()

    def __call__(
        self,
        x: Float[Array, "B T D"],
        encoded: Float[Array, "B S D"] | None,
        *,
        pattern: Pattern,
        across: Pattern = EVERYTHING,
        key: Key | None = None,
    ) -> Float[Array, "B T D"]:
        return self.project_and_apply(x, encoded, pattern=pattern, across=across, key=key)[0]

    def project_and_apply(
        self,
        x: Float[Array, "B T D"],
        encoded: Float[Array, "B S D"] | None,
        *,
        pattern: Pattern,
        across: Pattern = EVERYTHING,
        key: Key | None = None,
    ) -> tuple[Float[Array, "B T D"], KeysAndValues, KeysAndValues | None]:
        """Apply the decoder layer to complete targets; return its keys and values as well.

        Args:
          x: hidden states.
          encoded: the encoder's output; None without cross-attention.
          pattern: positions that each position attends to, and the relative bias of the logits.
          across: inputs that each position attends to.
          key: random key of dropout; None disables dropout.

        Returns:
          Hidden states; keys and values of the self-attention; keys and values of the
            cross-attention, or None.
        """
        keys = split_key(seeded(key, self), 6)
        if self.own_bias:
            pattern = pattern.biased(self.relative_bias, bidirectional=self.bidirectional)
        normed = self.self_attention_norm(x)
        queries, own = self.self_attention.project_all(normed)
        y = self.self_attention.attend(queries, *own, pattern=pattern, key=keys[0])
        x = self._residual(x, y, keys[1], slot=self.after_attention, source=normed)
        inputs = None
        if self.crosses and encoded is not None:
            inputs = self.cross_attention.project(encoded)
            normed = self.cross_attention_norm(x)
            queries = self.cross_attention.queries(normed)
            y = self.cross_attention.attend(queries, *inputs, pattern=across, key=keys[2])
            x = self._residual(x, y, keys[3], slot=self.after_cross_attention, source=normed)
        normed = self.mlp_norm(x)
        y = self.mlp(normed, key=keys[4])
        return self._residual(x, y, keys[5], slot=self.after_mlp, source=normed), own, inputs

    def step(
        self,
        x: Float[Array, "B W D"],
        write: Callable[[KeysAndValuesByHead], CachedKeysAndValues],
        inputs: CachedKeysAndValues | None,
        *,
        pattern: Pattern,
        across: Pattern = EVERYTHING,
    ) -> Float[Array, "B W D"]:
        """Apply the decoder layer to one new token in each of the W rows (beams) of an input.

        Args:
          x: hidden states, one position of each row.
          write: function that stores the new keys and values of the self-attention and returns all
            cached keys and values of this layer.
          inputs: keys and values of the cross-attention, shared by the rows of an input.
          pattern: cached positions that each row attends to, and the relative bias of the logits.
          across: inputs that each row attends to.
        """
        if self.own_bias:
            pattern = pattern.biased(self.relative_bias, bidirectional=self.bidirectional)
        normed = self.self_attention_norm(x)
        queries, new = self.self_attention.project_all(normed)
        own = write(by_head(new))
        y = self.self_attention.attend_by_head(queries, *own, pattern=pattern)
        x = self._residual(x, y, slot=self.after_attention, source=normed)
        if self.crosses and inputs is not None:
            normed = self.cross_attention_norm(x)
            queries = self.cross_attention.queries(normed)
            y = self.cross_attention.attend_by_head(queries, *inputs, pattern=across)
            x = self._residual(x, y, slot=self.after_cross_attention, source=normed)
        normed = self.mlp_norm(x)
        return self._residual(x, self.mlp(normed), slot=self.after_mlp, source=normed)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PostNormConfig:
    """Sizes and options of one post-norm layer.

    Attributes:
      d_model: size of the hidden states.
      d_ff: size of the feed-forward hidden layer.
      num_heads: number of attention heads, each of size d_model / num_heads.
      activation: activation of the feed-forward block.
      dropout_rate: dropout rate of the outputs of attention and feed-forward.
      attention_dropout_rate: dropout rate of the attention weights.
      share_attention_dropout: True if all queries of a head drop the same keys, as in T5.
      norm_epsilon: constant added to the variance.
      initializer_stddev: standard deviation of the initial kernels.
    """

    d_model: int
    d_ff: int
    num_heads: int
    activation: Activation = "gelu"
    dropout_rate: float = 0.1
    attention_dropout_rate: float = 0.1
    share_attention_dropout: bool = False
    norm_epsilon: float = 1e-12
    initializer_stddev: float = 0.02

    def __post_init__(self) -> None:
        if self.num_heads < 1 or self.d_model % self.num_heads:
            raise ValueError(
                f"d_model must be a multiple of num_heads: got {self.d_model} and {self.num_heads}"
            )

    @property
    def attention(self) -> dict[str, Any]:
        """Keyword arguments of `Attention` for this layer."""
        return {
            "num_heads": self.num_heads,
            "d_kv": self.d_model // self.num_heads,
            "dropout_rate": self.attention_dropout_rate,
            "share_dropout": self.share_attention_dropout,
            "bias": True,
            "scaled": True,
            "stddev": self.initializer_stddev,
        }


class PostNormLayer(nnx.Module):
    """Post-norm layer: attention and feed-forward, each followed by residual and norm.

    Args:
      config: sizes and options of the layer.
      rngs: random streams; "params" is used.
    """

    after_attention: BlockSlot | None = None
    after_mlp: BlockSlot | None = None

    def __init__(self, config: PostNormConfig, *, rngs: nnx.Rngs):
        self.attention = self.make_attention(config, rngs=rngs)
        self.attention_norm = LayerNorm(config.d_model, config.norm_epsilon)
        self.mlp = MLP(
            config.d_model,
            config.d_ff,
            activation=config.activation,
            bias=True,
            initializer=truncated_normal(config.initializer_stddev),
            rngs=rngs,
        )
        self.mlp_norm = LayerNorm(config.d_model, config.norm_epsilon)
        self.dropout_rate = config.dropout_rate

    def make_attention(self, config: PostNormConfig, *, rngs: nnx.Rngs) -> Attention:
        """Build the attention of the layer; subclasses may override it."""
        return Attention(config.d_model, **config.attention, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "B T D"],
        *,
        keys_from: Float[Array, "B S D"] | None = None,
        pattern: Pattern,
        key: Key | None = None,
    ) -> Float[Array, "B T D"]:
        """Apply the post-norm layer to hidden states.

        Args:
          x: source of the queries and of the residual connection.
          keys_from: source of keys and values; default: x.
          pattern: keys that each query attends to, and the bias of the scaled logits. A query
            without visible keys attends to all keys equally.
          key: random key of dropout; None disables dropout.
        """
        attention_key, attended_key, mlp_key = split_key(seeded(key, self), 3)
        source = x if keys_from is None else keys_from
        attended = self.attention(x, source, pattern=pattern, key=attention_key)
        x = residual(
            x,
            attended,
            rate=self.dropout_rate,
            key=attended_key,
            norm=self.attention_norm,
            slot=self.after_attention,
            mask=pattern.mask,
        )
        return self.feed_forward(x, mask=pattern.mask, key=mlp_key)

    def feed_forward(
        self, x: Float[Array, "B T D"], *, mask: Any = None, key: Key | None = None
    ) -> Float[Array, "B T D"]:
        """Compute LayerNorm(x + dropout(mlp(x))), the second half of the layer."""
        return residual(
            x,
            self.mlp(x, seen=mask),
            rate=self.dropout_rate,
            key=key,
            norm=self.mlp_norm,
            slot=self.after_mlp,
            mask=mask,
        )

    def dense_sites(self) -> dict[str, Dense]:
        attention, mlp = self.attention.dense_sites(), self.mlp.dense_sites()
        return {**named("attention", attention), **named("mlp", mlp)}

    def hidden_sites(self) -> dict[str, Any]:
        return {"attention/hidden": self.attention, "mlp/hidden": self.mlp}

    def key_sites(self) -> dict[str, Attention]:
        return {"attention/prefix": self.attention}

    def block_sites(self) -> tuple[str, ...]:
        return ("after_attention", "after_mlp")
