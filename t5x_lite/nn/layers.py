"""Pre-norm transformer layers, one at a time; `t5x_lite.nn.stack` runs a stack of them.

    x = x + dropout(attention(norm(x)))
    x = x + dropout(attention(norm(x), encoded))     a decoder with cross-attention
    x = x + dropout(mlp(norm(x)))

T5 has one relative bias table for all layers of a stack, which comes in with the pattern; umT5 has
one in each layer (`relative_bias_per_layer`), which adds it there.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from flax import nnx
from jaxtyping import Float

from t5x_lite.nn.attention import Attention
from t5x_lite.nn.block import residual
from t5x_lite.nn.dense import Dense
from t5x_lite.nn.dropout import split_key
from t5x_lite.nn.mlp import FEED_FORWARDS, MLP, FeedForward
from t5x_lite.nn.norms import RMSNorm
from t5x_lite.nn.pattern import EVERYTHING, Pattern
from t5x_lite.nn.positions import RelativeBias
from t5x_lite.nn.slots import BlockSlot, named
from t5x_lite.types import Array, Key

KeysAndValues = tuple[Float[Array, "B _ H K"], Float[Array, "B _ H K"]]
KeysAndValuesByHead = tuple[Float[Array, "B H K _"], Float[Array, "B H _ K"]]
CachedKeysAndValues = tuple[Float[Array, "B G K _"], Float[Array, "B H _ K"]]


def by_head(pair: KeysAndValues) -> KeysAndValuesByHead:
    """Keys [B, H, K, S] and values [B, H, S, K], as a cache takes them."""
    return pair[0].transpose(0, 2, 3, 1), pair[1].swapaxes(1, 2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerConfig:
    """Sizes of one layer; the dimension key is in `t5x_lite.types`."""

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
        """An attention block of these sizes."""
        return Attention(
            self.d_model,
            num_heads=self.num_heads,
            d_kv=self.d_kv,
            dropout_rate=self.dropout_rate,
            rngs=rngs,
        )

    def mlp(self, rngs: nnx.Rngs) -> MLP:
        """A feed-forward block of these sizes."""
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
        """A norm of d_model."""
        return RMSNorm(self.d_model, epsilon=self.norm_epsilon)

    def relative_bias(self, rngs: nnx.Rngs) -> RelativeBias:
        """A relative bias table of these sizes."""
        return RelativeBias(
            self.num_heads,
            num_buckets=self.relative_buckets,
            max_distance=self.relative_max_distance,
            rngs=rngs,
        )


class PreNormLayer(nnx.Module):
    """What pre-norm layers share."""

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
    """Self-attention and feed-forward."""

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
        """Applies the layer; a key turns dropout on.

        Args:
          x: hidden states.
          pattern: which positions a position sees, with the bias of the stack's table.
          key: turns dropout on.
        """
        keys = split_key(key, 4)
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
        """The dense layers by the names of their sites."""
        attention, mlp = self.attention.dense_sites(), self.mlp.dense_sites()
        return {**named("attention", attention), **named("mlp", mlp)}

    def hidden_sites(self) -> dict[str, Any]:
        """The blocks by the names of their hidden sites."""
        return {"attention/hidden": self.attention, "mlp/hidden": self.mlp}

    def key_sites(self) -> dict[str, Attention]:
        """The attention by the name of its site."""
        return {"attention/prefix": self.attention}

    def block_sites(self) -> tuple[str, ...]:
        """The names of its slots."""
        return ("after_attention", "after_mlp")


class DecoderLayer(PreNormLayer):
    """Self-attention, cross-attention and feed-forward.

    Args:
      config: its sizes.
      cross_attention: False in a language model, which has nothing to look across to.
      bidirectional: whether its own relative bias has buckets for keys to the right.
      rngs: the stream "params" is used.
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
        """The dense layers by the names of their sites."""
        sites = named("attention", self.self_attention.dense_sites())
        if self.crosses:
            sites |= named("cross_attention", self.cross_attention.dense_sites())
        return {**sites, **named("mlp", self.mlp.dense_sites())}

    def hidden_sites(self) -> dict[str, Any]:
        """The blocks by the names of their hidden sites."""
        cross = {"cross_attention/hidden": self.cross_attention} if self.crosses else {}
        return {"attention/hidden": self.self_attention, **cross, "mlp/hidden": self.mlp}

    def key_sites(self) -> dict[str, Attention]:
        """The attentions by the names of their sites."""
        cross = {"cross_attention/prefix": self.cross_attention} if self.crosses else {}
        return {"attention/prefix": self.self_attention, **cross}

    def block_sites(self) -> tuple[str, ...]:
        """The names of its slots."""
        cross = ("after_cross_attention",) if self.crosses else ()
        return ("after_attention", *cross, "after_mlp")

    def join(self) -> None:
        """Joins the products of one input, for decoding; in place."""
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
        """Applies the layer to whole targets; see `project_and_apply`."""
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
        """Applies the layer to whole targets.

        Args:
          x: hidden states.
          encoded: the encoder's output; None without cross-attention.
          pattern: which positions a position sees, with the bias of the stack's table.
          across: which inputs it sees.
          key: turns dropout on.

        Returns:
          x; keys and values of the self-attention; those of the cross-attention, or None.
        """
        keys = split_key(key, 6)
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
        """Applies the layer to one new token of each of the W rows of an input.

        Args:
          x: hidden states; the rows of one input stand where the length stands elsewhere.
          write: puts new keys and values of the self-attention where they belong and gives back
            all of this layer's; both by head.
          inputs: keys and values of the cross-attention, shared by the rows of an input.
          pattern: the slots that each row sees, with the bias of the stack's table.
          across: which inputs it sees.
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
