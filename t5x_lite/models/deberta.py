"""DeBERTa v2 and v3: disentangled attention and enhanced mask decoder (He et al. 2020, 2021).

    config = DebertaConfig(vocab_size=128100, d_model=768, d_ff=3072, num_heads=12, num_layers=12)
    model = config.build(rngs=nnx.Rngs(0))
    hidden = model(tokens)                        # [B, S, D]
    states = model.masked_lm_states(tokens)       # the input of a masked language model's head

Positions are distances, which only attention uses (`t5x_lite.nn.disentangled`). Token embeddings
include positions only with `position_biased_input`. The enhanced mask decoder (EMD) adds positions
late:

    z0 = h + P              h the states before the last layer, P the position embedding
    z1 = last(z0, h)        the last layer with z0 for queries and residual, h for keys and values
    z2 = last(z1, h)        again, with the same parameters; z2 is the input of the head

The order of operations on the embeddings: sum, projection without bias, norm, zeros at padding,
dropout. Numerics: microsoft/DeBERTa deberta/{bert,disentangled_attention}.py and
apps/models/masked_language_model.py. Rows without visible keys differ from transformers: they are
zeros here.
"""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float, Int

from t5x_lite.core.errors import InputError
from t5x_lite.core.options import Above
from t5x_lite.core.sharding import constrain
from t5x_lite.core.trees import Array, Key
from t5x_lite.models.encoder import EncoderConfig, EncoderModel
from t5x_lite.nn.attention_pattern import Distances, Pattern, document_positions
from t5x_lite.nn.dense import (
    Activation,
    Dense,
    LayerNorm,
    activate,
    dropout,
    einsum,
    lookup,
    split_key,
)
from t5x_lite.nn.disentangled import DisentangledLayer, RelativePositions
from t5x_lite.nn.masks import Visibility
from t5x_lite.nn.slots import bind, split, stacked
from t5x_lite.nn.stack import scan_layers


@dataclasses.dataclass(frozen=True, kw_only=True)
class DebertaConfig(EncoderConfig):
    """Sizes and options of a DeBERTa, in addition to `EncoderConfig`.

    Attributes:
      position_buckets: number of logarithmic buckets of distances on each side; 0 for one row per
        distance.
      max_relative_positions: distance from which on all distances on one side share a row; None for
        max_positions.
      position_terms: terms of the attention score other than content-to-content: "c2p" (content to
        position) and "p2c" (position to content).
      share_position_projections: True to project distances by the query and key projections of the
        tokens (v2 xlarge and v3).
      norm_relative: True to apply a layer norm to the relative embedding.
      position_biased_input: True to add the position embedding to the token embeddings.
      enhanced_mask_decoder: True to add positions after the layers for masked language modeling, as
        described in the module's docstring.
      conv_kernel_size: width of the convolution next to the first layer (3 in v2 xlarge); 0
        disables it.
      conv_activation: activation after the convolution; transformers uses tanh by default.
    """

    norm_epsilon: Annotated[float, Above(0)] = 1e-7
    position_buckets: int = 256
    max_relative_positions: int | None = None
    position_terms: tuple[str, ...] = ("p2c", "c2p")
    share_position_projections: bool = True
    norm_relative: bool = True
    position_biased_input: bool = False
    enhanced_mask_decoder: bool = False
    conv_kernel_size: int = 0
    conv_activation: Activation = "tanh"

    has_distances: ClassVar[bool] = True
    below: ClassVar[tuple[str, ...]] = (
        *EncoderConfig.below,
        "relative_table",
        "relative_norm",
        "convolution",
    )

    @property
    def classifier_kind(self) -> Literal["deberta"]:
        return "deberta"

    def __post_init__(self) -> None:
        if self.attention == "cudnn":
            raise InputError(
                "model.attention of a DeBERTa must be 'auto', 'plain', 'blocked' or 'pallas', "
                "because cuDNN has no disentangled attention"
            )
        super().__post_init__()
        try:
            _ = self.relative
        except ValueError as error:
            raise InputError(
                "model.position_buckets, model.max_relative_positions and model.position_terms "
                f"are not compatible: {error}"
            ) from error
        if self.conv_kernel_size < 0 or (self.conv_kernel_size and self.conv_kernel_size % 2 == 0):
            raise InputError(
                f"model.conv_kernel_size must be odd, or 0 to disable: got {self.conv_kernel_size}"
            )

    @property
    def relative(self) -> RelativePositions:
        most = self.max_relative_positions
        return RelativePositions(
            position_buckets=self.position_buckets,
            max_positions=self.max_positions if most is None else most,
            terms=self.position_terms,
            shared=self.share_position_projections,
        )

    @property
    def embedding_norm_size(self) -> int:
        return self.d_model

    @property
    def position_rows(self) -> int:
        read = self.position_biased_input or self.enhanced_mask_decoder
        return self.max_positions if read else 0

    @property
    def positions_at_input(self) -> bool:
        return self.position_biased_input

    def text_flops(self, length: int, *, masked_lm: bool = False) -> int:
        flops = super().text_flops(length) + 2 * length * self.conv_kernel_size * self.d_model**2
        twice = masked_lm and self.enhanced_mask_decoder  # the last layer
        return flops + (self.layer_flops(length) if twice else 0)

    def layer_flops(self, length: int) -> int:
        term = 2 * length * (2 * length - 1) * self.d_model
        return super().layer_flops(length) + len(self.position_terms) * term

    def build(self, *, rngs: nnx.Rngs) -> "Deberta":
        return Deberta(self, rngs=rngs)


class Convolution(nnx.Module):
    """Convolution next to the first layer: LayerNorm(h1 + activation(convolution(h0))).

    h0 and h1 are the input and the output of the layer.

    Args:
      config: config of the model.
      rngs: random streams; "params" is used.

    Source: microsoft/DeBERTa deberta/bert.py, ConvLayer.
    """

    def __init__(self, config: DebertaConfig, *, rngs: nnx.Rngs):
        size = config.d_model
        init = jax.nn.initializers.truncated_normal(config.initializer_stddev)
        kernel = init(rngs.params(), (config.conv_kernel_size, size, size), jnp.float32)
        self.kernel = nnx.Param(kernel, logical=(None, "mlp", "embed"))
        self.bias = nnx.Param(jnp.zeros((size,), jnp.float32), logical=("embed",))
        self.norm = LayerNorm(size, config.norm_epsilon)
        self.activation: Activation = config.conv_activation
        self.dropout_rate = config.dropout_rate

    def __call__(
        self,
        before: Float[Array, "B S D"],
        after: Float[Array, "B S D"],
        *,
        segment_ids: Int[Array, "B S"],
        key: Key | None = None,
    ) -> Float[Array, "B S D"]:
        """Add the convolution of a layer's input to the layer's output.

        Args:
          before: input of the layer.
          after: output of the layer.
          segment_ids: segment ids of documents, which are convolved separately; 0 is padding, and
            its output is 0.
          key: random key of dropout; None disables dropout.
        """
        kernel = self.kernel[...]
        reach = kernel.shape[0] // 2
        real = (segment_ids > 0)[..., None]
        sides = ((0, 0), (reach, reach))
        padded, ids = jnp.pad(before, (*sides, (0, 0))), jnp.pad(segment_ids, sides)
        length = before.shape[1]
        windows = []
        for place in range(kernel.shape[0]):
            seen = ids[:, place : place + length] == segment_ids
            window = padded[:, place : place + length]
            windows.append(jnp.where(seen[..., None] & real, window, 0))
        columns = jnp.concatenate(windows, axis=-1)
        out = einsum("BSI,IO->BSO", columns, kernel.reshape(columns.shape[-1], -1))
        out = jnp.where(real, out + self.bias[...].astype(jnp.float32), 0.0)
        out = dropout(out, self.dropout_rate, key=key)
        return self.norm(after + activate(out, self.activation).astype(after.dtype)) * real


class Deberta(EncoderModel):
    """DeBERTa encoder: embeddings, layers with disentangled attention, and a relative embedding.

    Args:
      config: sizes and options of the model.
      rngs: random streams; "params" is used.
    """

    config: DebertaConfig

    def __init__(self, config: DebertaConfig, *, rngs: nnx.Rngs):
        super().__init__(config, rngs=rngs)
        init = jax.nn.initializers.truncated_normal(config.initializer_stddev)
        if config.table_size != config.d_model:
            axes = ("mlp", "embed")
            self.projection = Dense(
                config.table_size, config.d_model, axes=axes, initializer=init, rngs=rngs
            )
            self.embedding.norm = LayerNorm(config.d_model, config.norm_epsilon)
        table = init(rngs.params(), (2 * config.relative.span, config.d_model), jnp.float32)
        # Without the name of T5's biases, which AdamW's decay spares: it does not spare this one.
        self.relative_table = nnx.Param(table, logical=(None, "embed"))
        if config.norm_relative:
            self.relative_norm = LayerNorm(config.d_model, config.norm_epsilon)
        if config.conv_kernel_size:
            self.convolution = Convolution(config, rngs=rngs)
        layer, relative = config.layer, config.relative
        self.layers = stacked(
            lambda rngs: DisentangledLayer(layer, relative, rngs=rngs),
            rngs,
            num=config.num_layers,
        )

    def masked_lm_states(
        self,
        tokens: Int[Array, "B S"],
        *,
        segment_ids: Int[Array, "B S"] | None = None,
        positions: Int[Array, "B S"] | None = None,
        token_types: Int[Array, "B S"] | None = None,
        key: Key | None = None,
    ) -> Float[Array, "B S D"]:
        """Return the hidden states for the masked LM head, by the enhanced mask decoder if used."""
        given: dict[str, Any] = {
            "segment_ids": segment_ids,
            "positions": positions,
            "token_types": token_types,
        }
        if not self.config.enhanced_mask_decoder:
            return self(tokens, **given, key=key)
        if positions is None and segment_ids is not None:
            positions = document_positions(segment_ids)
        start_key, layers_key, *query_keys = split_key(key, 4)
        x, mask = self.start(tokens, **given, key=start_key)
        last = self.config.num_layers - 1
        distances = self._distances(x.shape[1])
        hidden = self._run(x, last, mask=mask, distances=distances, key=layers_key)
        rows = self._position_rows(tokens.shape[1], real=None, positions=positions)
        position = self._to_model(lookup(self.embedding.position[...], rows))
        query = hidden + position.astype(hidden.dtype)
        pattern = self._pattern(mask, distances, x.shape[1])

        def call(layer: DisentangledLayer, x: Array, key: Key | None) -> tuple[Array, None]:
            return layer(x, keys_from=hidden, pattern=pattern, key=key), None

        for query_key in query_keys:
            keys = None if query_key is None else query_key[None]
            query = self._scan(query, slice(last, last + 1), call, keys)
        return query

    def apply_layers(
        self, x: Float[Array, "B S D"], *, mask: Visibility, key: Key | None = None
    ) -> Float[Array, "B S D"]:
        """Return the output of all layers.

        Args:
          x: embeddings [B, S, d_model].
          mask: mask of the keys that each token attends to.
          key: random key of dropout; None disables dropout.
        """
        distances = self._distances(x.shape[1])
        return self._run(x, self.config.num_layers, mask=mask, distances=distances, key=key)

    def start(
        self,
        tokens: Int[Array, "B S"],
        *,
        segment_ids: Int[Array, "B S"] | None = None,
        positions: Int[Array, "B S"] | None = None,
        token_types: Int[Array, "B S"] | None = None,
        key: Key | None = None,
    ) -> tuple[Float[Array, "B S D"], Visibility]:
        """Return the embeddings, with zeros at padding, and the attention mask."""
        x, mask = super().start(
            tokens,
            segment_ids=segment_ids,
            positions=positions,
            token_types=token_types,
            key=key,
        )
        return x * (_segments_of(mask) > 0)[..., None], mask

    def visibility(
        self, tokens: Int[Array, "B S"], segment_ids: Int[Array, "B S"] | None = None
    ) -> Visibility:
        if segment_ids is None:
            segment_ids = (tokens != self.config.pad_id).astype(jnp.int32)
        return Visibility(keys=segment_ids, queries=segment_ids)

    def project(self, x: Float[Array, "B S D"]) -> Float[Array, "B S D"]:
        return constrain(x, "batch", "length", "activation_embed")

    def _to_model(self, x: Float[Array, "*batch E"]) -> Float[Array, "*batch D"]:
        return x if self.config.table_size == self.config.d_model else self.projection(x)

    def _normed(self, total: Float[Array, "B S E"], dtype: jnp.dtype) -> Float[Array, "B S D"]:
        return self.embedding.norm(self._to_model(total.astype(dtype)))

    def _distances(self, length: int) -> Distances:
        table, rows = self.config.relative.distances(self.relative_table[...], length)
        return Distances(self.relative_norm(table) if self.config.norm_relative else table, rows)

    def _pattern(self, mask: Visibility, distances: Distances, length: int) -> Pattern:
        return dataclasses.replace(self.config.running.pattern(mask, length), bias=distances)

    def _run(
        self,
        x: Float[Array, "B S D"],
        num: int,
        *,
        mask: Visibility,
        distances: Distances,
        key: Key | None,
    ) -> Float[Array, "B S D"]:
        layers_key, conv_key = split_key(key, 2)
        keys = None if layers_key is None else jax.random.split(layers_key, self.config.num_layers)
        pattern = self._pattern(mask, distances, x.shape[1])

        def call(layer: DisentangledLayer, x: Array, key: Key | None) -> tuple[Array, None]:
            return layer(x, pattern=pattern, key=key), None

        first = 0
        if self.config.conv_kernel_size and num:
            after = self._scan(x, slice(0, 1), call, None if keys is None else keys[:1])
            x = self.convolution(x, after, segment_ids=_segments_of(mask), key=conv_key)
            first = 1
        if first == num:
            return x
        return self._scan(x, slice(first, num), call, None if keys is None else keys[first:num])

    def _scan(self, x: Array, part: slice, call: Callable[..., Any], keys: Any) -> Array:
        graphdef, params, _ = split(self.layers)
        layers = bind(graphdef, jax.tree.map(lambda stack: stack[part], params))
        return scan_layers(layers, call, x, inputs=keys, running=self.config.running)[0]


def _segments_of(mask: Visibility) -> Int[Array, "B S"]:
    if mask.keys is None:
        raise ValueError(
            "the attention mask has no segment ids of the keys; pass a mask from the model's "
            "method `visibility`"
        )
    return mask.keys
