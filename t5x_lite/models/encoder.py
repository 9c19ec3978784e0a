"""Encoders: the base class of all families, and BERT, RoBERTa, XLM-R and ELECTRA.

    config = BertConfig(vocab_size=30522, d_model=768, d_ff=3072, num_heads=12, num_layers=12,
                        token_types=2)                          # or published.bert_base()
    model = config.build(rngs=nnx.Rngs(0))
    hidden = model(tokens)                                      # [B, S, D]
    hidden = model(tokens, segment_ids=ids, positions=within)   # packed documents

Padding is segment 0 if segment ids are given, and otherwise token `pad_id`. An architecture is a
subclass of `EncoderModel` that defines `apply_layers`.

BERT and models with its layers: RoBERTa, XLM-R, ELECTRA (Devlin et al. 2019; Clark et al. 2020).
RoBERTa and XLM-R count positions from pad_id + 1 (`position_offset` 2) and have one token type.
ELECTRA has embeddings of `embedding_size` columns and a projection. The pooler is not part of the
encoder: it is the first half of `heads.ClassificationHead`. `positions="relative_bias"` uses T5's
bias, shared by all layers, instead of the position embedding.
"""

import dataclasses
import math
from typing import Annotated, Any, ClassVar, Literal, TypeGuard

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Bool, Float, Int

from t5x_lite.core.errors import InputError
from t5x_lite.core.options import Above, AtLeast, Count, Rate, Whole, check_bounds
from t5x_lite.core.sharding import constrain
from t5x_lite.core.trees import Array, Key, Size
from t5x_lite.models.base import ModelConfig, RowShapes
from t5x_lite.nn import fused_attention
from t5x_lite.nn.attention_pattern import Pattern, RelativeBias, document_positions
from t5x_lite.nn.dense import (
    Activation,
    Dense,
    LayerNorm,
    dropout,
    lookup,
    split_key,
    truncated_normal,
)
from t5x_lite.nn.layers import PostNormConfig, PostNormLayer
from t5x_lite.nn.masks import Visibility
from t5x_lite.nn.slots import InvertibleSlot, TokenSlot, seen_after_prompt, stacked
from t5x_lite.nn.stack import (
    AttentionKind,
    Running,
    Unroll,
    check_precision,
    check_remat,
    chosen,
    more_remat,
    scan_layers,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderConfig(ModelConfig):
    """Sizes and options of all encoders.

    Attributes:
      d_model: size of the hidden states.
      d_ff: size of the feed-forward hidden layers.
      num_heads: number of attention heads, each of size d_model / num_heads.
      num_layers: number of layers.
      embedding_size: number of columns of the embeddings, which are projected to d_model (ELECTRA);
        None for d_model, without a projection.
      max_positions: number of rows of the position embedding.
      token_types: number of rows of the token type embedding; 0 disables it. With one row, all
        tokens have the same type.
      pad_id: id of the padding token.
      activation: activation of the feed-forward layers and of heads.
      dropout_rate: dropout rate of the embeddings and of the outputs of attention and feed-forward.
      attention_dropout_rate: dropout rate of the attention weights.
      share_attention_dropout: True if all queries of a head drop the same keys, as in T5. If False,
        dropout is sampled for each query and key, as in the original, which is slower.
      norm_epsilon: epsilon of the layer norms.
      initializer_stddev: standard deviation of initial kernels and embeddings.
      unroll: number of layers per iteration of the scan, or True for straight-line code. "auto" is
        straight-line code unless its compilation is slow.
      remat: rematerialization policy: activations that a layer stores for its backward pass
        (`t5x_lite.nn.stack`).
      attention: implementation of attention. "auto" is the fastest for the devices of a run, and is
        recorded in the run's config.json; "plain" computes all keys at once; "heads" computes one
        head of one row at a time, which is faster on CPUs in float32; "blocked" has memory linear
        in length; "pallas" is a TPU kernel for blocks (blocked on other devices); "cudnn" is
        cuDNN's attention for NVIDIA GPUs and bfloat16 (plain on other devices). Training rejects
        "cudnn" with dropout for each query and key.
      attention_block: number of keys per block of blocked attention (in DeBERTa, of queries); for
        the TPU kernel, of keys and queries, with 512 recommended. A block that does not fit the
        chip is halved.
      one_text_rows: True if each row holds one text, followed by padding. cuDNN's attention then
        reads lengths instead of a mask, and is faster. Other rows give NaN.
    """

    d_model: Count
    d_ff: Count
    num_heads: Count
    num_layers: Count
    embedding_size: Count | None = None
    max_positions: Count = 512
    token_types: Whole = 0
    pad_id: int = 0
    activation: Activation = "gelu"
    dropout_rate: Rate = 0.1
    attention_dropout_rate: Rate = 0.1
    share_attention_dropout: bool = False
    norm_epsilon: Annotated[float, Above(0)] = 1e-12
    initializer_stddev: Annotated[float, Above(0)] = 0.02
    unroll: Annotated[Unroll, AtLeast(1)] = "auto"
    remat: str = "none"
    attention: AttentionKind = "auto"
    attention_block: Count = 128
    one_text_rows: bool = False

    below: ClassVar[tuple[str, ...]] = ("embedding", "projection")
    begins_with_cls: ClassVar[bool] = True
    has_distances: ClassVar[bool] = False
    """True if attention is disentangled, which only the kernel for TPUs supports."""

    def __post_init__(self) -> None:
        check_bounds(self, prefix="model.")
        if self.d_model % self.num_heads:
            raise InputError(
                "model.d_model must be a multiple of model.num_heads: "
                f"got {self.d_model} and {self.num_heads}"
            )
        if not 0 <= self.pad_id < self.vocab_size:
            raise InputError(
                f"model.pad_id must be in [0, {self.vocab_size}), a token id: got {self.pad_id}"
            )
        if self.attention == "cudnn":
            fused_attention.check_sizes(d_kv=self.d_model // self.num_heads)
            if self.attention_dropout_rate > 0 and not self.share_attention_dropout:
                raise InputError(
                    "model.attention 'cudnn' does not support dropout for each query and key; "
                    "set --model.share-attention-dropout True, or --model.attention-dropout-rate 0"
                )
        check_remat(self.remat)

    @property
    def table_size(self) -> int:
        """Number of columns of the embeddings."""
        return self.d_model if self.embedding_size is None else self.embedding_size

    @property
    def embedding_norm_size(self) -> int:
        """Size of the layer norm of the summed embeddings."""
        return self.table_size

    @property
    def classifier_kind(self) -> Literal["bert", "roberta", "electra", "deberta"]:
        """Kind of the classification head of published checkpoints of this family."""
        return "bert"

    def to_finetune(self) -> "EncoderConfig":
        return self.replace(attention="auto", unroll="auto", one_text_rows=False)

    @property
    def position_rows(self) -> int:
        """Number of rows of the position embedding; 0 without a position embedding."""
        return self.max_positions

    @property
    def longest_document(self) -> int | None:
        return self.position_rows - self.first_position if self.position_rows else None

    @property
    def positions_at_input(self) -> bool:
        """True if the position embedding is added to the token embeddings."""
        return self.position_rows > 0

    @property
    def first_position(self) -> int:
        """Row of the position embedding for a document's first token."""
        return 0

    @property
    def divided_heads(self) -> int:
        return self.num_heads

    def check_devices(self, kind: str, *, dtype: str) -> None:
        if self.attention == "cudnn":
            fused_attention.check(kind=kind, dtype=dtype)

    def check_precision(self, precision: str, *, dtype: str) -> None:
        check_precision(self.attention, precision, dtype=dtype)

    def more_remat(self) -> tuple[str, ...]:
        return more_remat(self.remat, attention=self.attention)

    def with_choices(
        self, kind: str, *, dtype: str, length: int, one_text_rows: bool
    ) -> tuple["EncoderConfig", str]:
        own = "shared" if self.share_attention_dropout else "each"
        return chosen(
            self,
            kind,
            num_layers=self.num_layers,
            one_text_rows=one_text_rows,
            dtype=dtype,
            length=length,
            d_kv=self.d_model // self.num_heads,
            dropout=own if self.attention_dropout_rate else "none",
            distances=self.has_distances,
        )

    def unrolled(self) -> "EncoderConfig":
        return self.replace(unroll=True)

    def on_cpu(self) -> "EncoderConfig":
        heads = self.attention in ("auto", "plain") and not self.has_distances
        return self.replace(unroll=True, attention="heads" if heads else self.attention)

    def forward_flops(self, shapes: RowShapes) -> int | None:
        if "encoder_input_tokens" not in shapes:
            return None
        *texts, length = shapes["encoder_input_tokens"]
        return math.prod(texts) * self.text_flops(length)

    def text_flops(self, length: int, *, masked_lm: bool = False) -> int:
        """Return the FLOPs of one text's forward pass; only matrix products count.

        Args:
          length: length of the text in tokens.
          masked_lm: True for the FLOPs of `masked_lm_states`.
        """
        return self.num_layers * self.layer_flops(length) + self.projection_flops(length)

    def layer_flops(self, length: int) -> int:
        """Return the FLOPs of one layer's forward pass for one row."""
        d = self.d_model
        return 2 * (length * (4 * d * d + 2 * d * self.d_ff) + 2 * length * length * d)

    def projection_flops(self, length: int) -> int:
        """Return the FLOPs of the projection of embeddings to d_model; 0 without a projection."""
        factored = self.table_size != self.d_model
        return 2 * length * self.table_size * self.d_model if factored else 0

    def masked_lm_head_flops(self, positions: int) -> int:
        """Return the FLOPs of a masked language model's head for `positions` positions."""
        return 2 * positions * self.table_size * (self.d_model + self.vocab_size)

    @property
    def layer(self) -> PostNormConfig:
        """Sizes and options of one layer."""
        names = {field.name for field in dataclasses.fields(PostNormConfig)}
        return PostNormConfig(**{name: getattr(self, name) for name in names})

    @property
    def running(self) -> Running:
        """Speed and memory settings of the stack of layers."""
        undecided = self.attention == "auto" and self.has_distances
        return Running.of(
            unroll=self.unroll,
            remat=self.remat,
            attention="plain" if undecided else self.attention,
            attention_block=self.attention_block,
            one_text_rows=self.one_text_rows,
        )


class Embeddings(nnx.Module):
    """Token, position and token type embeddings, with the norm of their sum.

    Args:
      config: config of the model.
      rngs: random streams; "params" is used.
    """

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        init = jax.nn.initializers.truncated_normal(config.initializer_stddev)

        def table(rows: int, name: str | None) -> nnx.Param:
            values = init(rngs.params(), (rows, config.table_size), jnp.float32)
            return nnx.Param(values, logical=(name, "embed"))

        self.token = table(config.vocab_size, "vocab")
        if config.position_rows:
            self.position = table(config.position_rows, None)
        if config.token_types:
            self.token_type = table(config.token_types, None)
        self.norm = LayerNorm(config.table_size, config.norm_epsilon)

    def tables(self) -> dict[str, Array]:
        """Return the token and position embeddings by name."""
        names = ("token", "position")
        return {name: getattr(self, name)[...] for name in names if hasattr(self, name)}


class EncoderModel(nnx.Module):
    """Base class of encoders: embeddings, and the layers that a subclass defines.

    Args:
      config: sizes and options of the model.
      rngs: random streams; "params" is used.
    """

    layers: Any  # set by the subclass
    invertible: InvertibleSlot | None = None
    prompt: TokenSlot | None = None  # used only in the call, not in `start`
    num_before: int = 0  # positions that a prefix has

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        self.config = config
        self.embedding = Embeddings(config, rngs=rngs)
        if config.table_size != config.d_model:
            self.projection = Dense(
                config.table_size,
                config.d_model,
                axes=("mlp", "embed"),
                initializer=truncated_normal(config.initializer_stddev),
                bias=True,
                rngs=rngs,
            )

    def stacks(self) -> dict[str, Any]:
        return {"encoder": self.layers}

    def __call__(
        self,
        tokens: Int[Array, "B S"],
        *,
        segment_ids: Int[Array, "B S"] | None = None,
        positions: Int[Array, "B S"] | None = None,
        token_types: Int[Array, "B S"] | None = None,
        key: Key | None = None,
    ) -> Float[Array, "B S D"]:
        """Return the hidden states of the last layer.

        Args:
          tokens: token ids, padded with `pad_id`.
          segment_ids: segment ids of packed documents, from 1; 0 is padding.
          positions: positions from 0 within each document; None counts them per segment, or per row
            if segment_ids is None.
          token_types: token types; None is 0 everywhere. Models with at most one type ignore them.
          key: random key of dropout; None disables dropout.
        """
        embedding_key, layers_key = split_key(key, 2)
        x, mask = self.start(
            tokens,
            segment_ids=segment_ids,
            positions=positions,
            token_types=token_types,
            key=embedding_key,
        )
        if self.prompt is None:
            return self.apply_layers(x, mask=mask, key=layers_key)
        x, mask = self.prompt(x, self.token_table()), seen_after_prompt(mask, self.prompt)
        return self.apply_layers(x, mask=mask, key=layers_key)[:, self.prompt.length :]

    def token_table(self) -> Float[Array, "V E"]:
        return self.embedding.token[...]

    def encode(self, tokens: Int[Array, "B S"], **options: Any) -> Float[Array, "B S D"]:
        """Return the hidden states of the last layer."""
        return self(tokens, **options)

    def masked_lm_states(
        self,
        tokens: Int[Array, "B S"],
        *,
        segment_ids: Int[Array, "B S"] | None = None,
        positions: Int[Array, "B S"] | None = None,
        token_types: Int[Array, "B S"] | None = None,
        key: Key | None = None,
    ) -> Float[Array, "B S D"]:
        """Return the hidden states for a masked LM head, by default of the last layer."""
        return self(
            tokens,
            segment_ids=segment_ids,
            positions=positions,
            token_types=token_types,
            key=key,
        )

    def start(
        self,
        tokens: Int[Array, "B S"],
        *,
        segment_ids: Int[Array, "B S"] | None = None,
        positions: Int[Array, "B S"] | None = None,
        token_types: Int[Array, "B S"] | None = None,
        key: Key | None = None,
    ) -> tuple[Float[Array, "B S D"], Visibility]:
        """Return the embeddings, projected to d_model columns, and the attention mask."""
        if positions is None and segment_ids is not None:
            positions = document_positions(segment_ids)
        x = self.embeddings(tokens, positions=positions, token_types=token_types, key=key)
        x = x if self.invertible is None else self.invertible(x)
        return self.project(x), self.visibility(tokens, segment_ids)

    def apply_layers(
        self, x: Float[Array, "B S D"], *, mask: Visibility, key: Key | None = None
    ) -> Float[Array, "B S D"]:
        """Return the output of all layers.

        Args:
          x: embeddings [B, S, d_model].
          mask: mask of the keys that each token attends to.
          key: random key of dropout; None disables dropout.
        """
        raise TypeError(f"class {type(self).__name__} does not define the method apply_layers")

    def tables(self) -> dict[str, Array]:
        """Return the embeddings by name: "token" [V, E] and, if it exists, "position"."""
        return self.embedding.tables()

    def embeddings(
        self,
        tokens: Int[Array, "B S"],
        *,
        positions: Int[Array, "B S"] | None = None,
        token_types: Int[Array, "B S"] | None = None,
        key: Key | None = None,
    ) -> Float[Array, "B S E"]:
        """Return the sums of all embeddings, after norm and dropout, [B, S, E]."""
        return self._embed(
            lookup(self.embedding.token[...], tokens),
            real=tokens != self.config.pad_id,
            positions=positions,
            token_types=token_types,
            key=key,
        )

    def embed_vectors(
        self,
        vectors: Float[Array, "B S E"],
        *,
        positions: Int[Array, "B S"] | None = None,
        token_types: Int[Array, "B S"] | None = None,
        key: Key | None = None,
    ) -> Float[Array, "B S E"]:
        """Compute the input embeddings from vectors instead of token ids.

        Args:
          vectors: vector of each position.
          positions: positions of the vectors; None counts them from 0.
          token_types: token types; None is 0 everywhere.
          key: random key of dropout; None disables dropout.
        """
        given = {"positions": positions, "token_types": token_types, "key": key}
        return self._embed(vectors, real=None, **given)

    def project(self, x: Float[Array, "B S E"]) -> Float[Array, "B S D"]:
        """Project embeddings to d_model columns, if their size differs."""
        if self.config.table_size != self.config.d_model:
            x = self.projection(x)
        return constrain(x, "batch", "length", "activation_embed")

    def visibility(
        self, tokens: Int[Array, "B S"], segment_ids: Int[Array, "B S"] | None = None
    ) -> Visibility:
        """Return the attention mask, which excludes padding and tokens of other segments."""
        if segment_ids is not None:
            return Visibility(keys=segment_ids, queries=segment_ids)
        return Visibility(keys=(tokens != self.config.pad_id).astype(jnp.int32))

    def _embed(
        self,
        vectors: Float[Array, "B S E"],
        *,
        real: Bool[Array, "B S"] | None,
        positions: Int[Array, "B S"] | None,
        token_types: Int[Array, "B S"] | None,
        key: Key | None,
    ) -> Float[Array, "B S D"]:
        total = vectors.astype(jnp.float32)
        if self.config.positions_at_input:
            rows = self._position_rows(vectors.shape[1], real=real, positions=positions)
            total = total + lookup(self.embedding.position[...], rows).astype(jnp.float32)
        if self.config.token_types:
            types = self.embedding.token_type[...]
            if token_types is None or self.config.token_types == 1:
                total = total + types[0].astype(jnp.float32)
            else:
                total = total + lookup(types, token_types).astype(jnp.float32)
        x = self._normed(total, vectors.dtype)
        x = constrain(x, "batch", "length", "activation_embed")
        return dropout(x, self.config.dropout_rate, key=key)

    def _normed(self, total: Float[Array, "B S E"], dtype: jnp.dtype) -> Float[Array, "B S D"]:
        return self.embedding.norm(total).astype(dtype)

    def _position_rows(
        self,
        length: Size,
        *,
        real: Bool[Array, "B S"] | None,
        positions: Int[Array, "B S"] | None,
    ) -> Int[Array, "#B S"]:
        """Return the row of each token in the position embedding.

        If `first_position` is positive, padding has row `pad_id` and only other tokens are counted
        (RoBERTa: transformers modeling_roberta.py, create_position_ids_from_input_ids).
        """
        first, most = self.config.first_position, self.config.max_positions - self.num_before
        if (positions is None or self.num_before) and length + first > most:
            raise InputError(
                f"rows have {length} tokens, but the model has only {most - first} positions; "
                "decrease data.inputs_length, or increase model.max_positions"
            )
        start = first + self.num_before
        if first == 0 or real is None:
            places = jnp.arange(length, dtype=jnp.int32)[None] if positions is None else positions
            return places + start
        before = jnp.cumsum(real.astype(jnp.int32), axis=1) - real
        if positions is not None:  # documents begin at position 0
            before -= jax.lax.cummax(jnp.where(positions == 0, before, 0), axis=1)
        return jnp.where(real, before + start, self.config.pad_id)


def is_encoder(model: ModelConfig) -> TypeGuard[EncoderConfig]:
    """Return True if a model config belongs to an encoder of any family."""
    return isinstance(model, EncoderConfig)


PositionKind = Literal["learned", "relative_bias"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BertConfig(EncoderConfig):
    """Sizes and options of a BERT, in addition to `EncoderConfig`.

    Attributes:
      positions: "learned" for a position embedding, or "relative_bias" for T5's relative bias.
      position_offset: row of the position embedding for a document's first token.
      relative_buckets: number of rows of the relative bias table.
      relative_max_distance: distance from which on all distances share a bucket.
    """

    positions: PositionKind = "learned"
    position_offset: int = 0
    relative_buckets: int = 32
    relative_max_distance: int = 128

    below: ClassVar[tuple[str, ...]] = (*EncoderConfig.below, "relative_bias")

    @property
    def classifier_kind(self) -> Literal["bert", "roberta"]:
        return "roberta" if self.position_offset else "bert"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.position_offset < self.max_positions:
            raise InputError(
                f"model.position_offset must be in [0, {self.max_positions}), a position: "
                f"got {self.position_offset}"
            )
        if self.relative_buckets < 4 or self.relative_max_distance <= self.relative_buckets // 2:
            raise InputError(
                "model.relative_buckets must be at least 4 and model.relative_max_distance above "
                f"half of it: got {self.relative_buckets} and {self.relative_max_distance}"
            )

    @property
    def position_rows(self) -> int:
        return self.max_positions if self.positions == "learned" else 0

    @property
    def first_position(self) -> int:
        return self.position_offset

    def build(self, *, rngs: nnx.Rngs) -> "Bert":
        return Bert(self, rngs=rngs)


class Bert(EncoderModel):
    """BERT encoder: embeddings and post-norm layers.

    Args:
      config: sizes and options of the model.
      rngs: random streams; "params" is used.
    """

    def __init__(self, config: BertConfig, *, rngs: nnx.Rngs):
        super().__init__(config, rngs=rngs)
        if config.positions == "relative_bias":
            self.relative_bias = RelativeBias(
                config.num_heads,
                num_buckets=config.relative_buckets,
                max_distance=config.relative_max_distance,
                rngs=rngs,
            )
        self.relative = config.positions == "relative_bias"
        layer = config.layer
        self.layers = stacked(
            lambda rngs: PostNormLayer(layer, rngs=rngs), rngs, num=config.num_layers
        )

    def apply_layers(
        self,
        x: Float[Array, "B S D"],
        *,
        mask: Visibility,
        key: Key | None = None,
        part: tuple[int, int] | None = None,
    ) -> Float[Array, "B S D"]:
        """Apply all layers, or a range of layers.

        Applying consecutive ranges in turn gives the result of all layers, also with dropout.

        Args:
          x: embeddings of d_model columns, or the hidden states before the first layer of the
            range.
          mask: mask of the keys that each token attends to.
          key: random key of dropout; None disables dropout.
          part: range of layers, as (first, last + 1); None for all layers.
        """
        pattern = self.pattern(mask, x.shape[1])

        def call(layer: PostNormLayer, x: Array, key: Key | None) -> tuple[Array, None]:
            return layer(x, pattern=pattern, key=key), None

        keys = None if key is None else jax.random.split(key, self.config.num_layers)
        running = self.config.running
        return scan_layers(self.layers, call, x, inputs=keys, running=running, part=part)[0]

    def pattern(self, mask: Visibility, length: Size) -> Pattern:
        """Return the mask and the relative bias of attention; the bias may be absent."""
        pattern = self.config.running.pattern(mask, length)
        return pattern.biased(self.relative_bias, bidirectional=True) if self.relative else pattern
