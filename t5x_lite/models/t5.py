"""T5: the encoder-decoder, and its encoder as a separate model.

    config = T5Config(vocab_size=32128, d_model=512, ...)      # or published.t5_1_1_small()
    model = config.build(rngs=nnx.Rngs(0))
    logits = model(encoder_input_tokens, decoder_input_tokens)

    ready = model.prepared()                                   # once, for many searches
    logits, cache = ready.prefill(inputs, max_length=32)       # of the first new token
    logits, cache = ready.step(tokens, cache)                  # of the second new token

T5 1.0 has ReLU and an output layer tied to the embedding (logits / sqrt(d_model)). T5 1.1 has gated
GELU and a separate output layer. umT5 has a relative bias table in each layer. Padding and the
decoder's start token are token 0. Positions are counted per row, and segment ids separate packed
examples. Numerics: t5x examples/t5/network.py and layers.py.

The encoder of T5 as a separate model, for tasks that need a vector for each token instead of text:

    config = T5EncoderConfig(vocab_size=32128, d_model=512, d_ff=1024, num_heads=6, num_layers=8)
    hidden = config.build(rngs=nnx.Rngs(0))(tokens)      # [B, S, D]

Its parameter paths are the encoder's paths in a T5, so that the encoder of a T5 can be loaded
unchanged.
"""

import dataclasses
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float, Int

from t5x_lite.core.errors import InputError
from t5x_lite.core.options import Above, AtLeast, Count, Rate, check_bounds
from t5x_lite.core.tied_parameters import Same, View
from t5x_lite.core.trees import Array, Key
from t5x_lite.models.base import ModelConfig, RowShapes, TokenModel
from t5x_lite.nn import cache as caching
from t5x_lite.nn import fused_attention, masks
from t5x_lite.nn.cache import Cache
from t5x_lite.nn.dense import FEED_FORWARDS, Embedding, FeedForward
from t5x_lite.nn.layers import LayerConfig
from t5x_lite.nn.slots import InvertibleSlot, TokenSlot, after_prompt
from t5x_lite.nn.stack import (
    AttentionKind,
    Decoder,
    Encoder,
    Running,
    Unroll,
    check_precision,
    check_remat,
    chosen,
    more_remat,
)

_SHARED = {
    "self_attention": "attention",
    "self_attention_norm": "attention_norm",
    "mlp": "mlp",
    "mlp_norm": "mlp_norm",
}
"""Name of each shared submodule in a decoder layer, and its name in an encoder layer."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StackConfig(ModelConfig):
    """Base config of all models with T5's layers.

    Attributes:
      d_model: size of embeddings and hidden states.
      d_kv: size of an attention head.
      d_ff: size of the feed-forward hidden layer.
      num_heads: number of attention heads.
      feed_forward: feed-forward block: "relu" (1.0), "gated-gelu" (1.1), "gated-silu" (UL2),
        "gated-relu", "gelu" or "silu".
      dropout_rate: dropout rate; T5 uses 0.1, and 0 for the pretraining of 1.1.
      relative_buckets: number of rows of the relative bias tables.
      relative_max_distance: distance from which on all distances share a bucket.
      relative_bias_per_layer: True for a relative bias table in each layer (umT5) instead of one
        for the stack.
      norm_epsilon: epsilon of the RMS norms.
      unroll: number of layers per iteration of the scan, or True for straight-line code. "auto" is
        straight-line code unless its compilation is slow.
      remat: rematerialization policy: activations that a layer stores for its backward pass
        (`t5x_lite.nn.stack`).
      attention: implementation of attention. "auto" is the fastest for the devices of a run, and is
        recorded in the run's config.json; "plain" computes all keys at once; "heads" computes one
        head of one row at a time, which is faster on CPUs in float32; "blocked" has memory linear
        in length; "pallas" is a TPU kernel for blocks (blocked on other devices); "cudnn" is
        cuDNN's attention for NVIDIA GPUs and bfloat16 (`t5x_lite.nn.fused_attention`; plain on
        other devices, where training rejects it). Decoding always uses plain attention.
      attention_block: number of keys per block of blocked attention; for the TPU kernel, of keys
        and queries, with 512 recommended. A block that does not fit the chip is halved.
      one_text_rows: True if each row holds one text, followed by padding. cuDNN's attention then
        reads lengths instead of a mask, and is faster. Other rows give NaN.
    """

    d_model: Count
    d_kv: Count = 64
    d_ff: Count
    num_heads: Count
    feed_forward: FeedForward = "gated-gelu"
    dropout_rate: Rate = 0.1
    relative_buckets: int = 32
    relative_max_distance: int = 128
    relative_bias_per_layer: bool = False
    norm_epsilon: Annotated[float, Above(0)] = 1e-6
    unroll: Annotated[Unroll, AtLeast(1)] = "auto"
    remat: str = "none"
    attention: AttentionKind = "auto"
    attention_block: Count = 128
    one_text_rows: bool = False

    def __post_init__(self) -> None:
        check_bounds(self, prefix="model.")
        if self.attention == "cudnn":
            fused_attention.check_sizes(d_kv=self.d_kv)
        check_remat(self.remat)
        if self.relative_buckets < 4 or self.relative_max_distance <= self.relative_buckets // 2:
            raise InputError(
                "model.relative_buckets must be at least 4 and model.relative_max_distance above "
                f"half of it: got {self.relative_buckets} and {self.relative_max_distance}"
            )

    @property
    def layer(self) -> LayerConfig:
        names = {field.name for field in dataclasses.fields(LayerConfig)}
        return LayerConfig(**{name: getattr(self, name) for name in names})

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
    ) -> tuple["StackConfig", str]:
        counts = [f.name for f in dataclasses.fields(self) if f.name.endswith("_layers")]
        return chosen(
            self,
            kind,
            num_layers=max(getattr(self, name) for name in counts if name.startswith("num_")),
            one_text_rows=one_text_rows,
            dtype=dtype,
            length=length,
            d_kv=self.d_kv,
            dropout="shared" if self.dropout_rate else "none",
        )

    def unrolled(self) -> "StackConfig":
        return self.replace(unroll=True)

    def on_cpu(self) -> "StackConfig":
        heads = self.attention in ("auto", "plain")
        return self.replace(unroll=True, attention="heads" if heads else self.attention)

    def layer_flops(self, length: int, *, across: int = 0) -> int:
        """Return the FLOPs of one layer's forward pass for one row.

        Args:
          length: length of the row.
          across: length of the inputs that cross-attention reads, or 0.
        """
        d, joined = self.d_model, self.num_heads * self.d_kv
        feed_forward = (3 if FEED_FORWARDS[self.feed_forward][1] else 2) * d * self.d_ff
        own = length * (4 * d * joined + feed_forward) + 2 * length * length * joined
        crossed = 2 * (length + across) * d * joined + 2 * length * across * joined
        return 2 * (own + (crossed if across else 0))

    @property
    def running(self) -> Running:
        return Running.of(
            unroll=self.unroll,
            remat=self.remat,
            attention=self.attention,
            attention_block=self.attention_block,
            one_text_rows=self.one_text_rows,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class T5Config(StackConfig):
    """Sizes and options of a T5, in addition to `StackConfig`.

    Attributes:
      num_encoder_layers: number of encoder layers.
      num_decoder_layers: number of decoder layers.
      tie_embeddings: True if the output layer shares the token embedding (1.0).
      share_layers: True if encoder and decoder share one set of parameters (paper section 3.2,
        "shared"), including the relative bias table and the final norm.
    """

    num_encoder_layers: Count
    num_decoder_layers: Count
    tie_embeddings: bool = False
    share_layers: bool = False

    below: ClassVar[tuple[str, ...]] = (
        "token_embedding",
        "encoder/relative_bias",
        "decoder/relative_bias",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.share_layers and self.num_encoder_layers != self.num_decoder_layers:
            raise InputError(
                "model.share_layers needs as many encoder layers as decoder layers: got "
                f"{self.num_encoder_layers} and {self.num_decoder_layers}"
            )

    def views(self, prefix: str = "") -> tuple[View, ...]:
        """Return the rules that take shared parameters of the decoder from the encoder."""
        if not self.share_layers:
            return ()
        pairs = {f"layers/{name}": f"layers/{of}" for name, of in _SHARED.items()}
        bias = "layers/relative_bias" if self.relative_bias_per_layer else "relative_bias"
        pairs |= {bias: bias, "final_norm": "final_norm"}
        return tuple(
            Same(f"{prefix}decoder/{ours}/*", f"{prefix}encoder/{theirs}/*")
            for ours, theirs in pairs.items()
        )

    def to_finetune(self) -> "T5Config":
        """Return the config for fine-tuning, with dropout 0.1 if it was 0."""
        running: dict[str, Any] = {"attention": "auto", "unroll": "auto", "one_text_rows": False}
        return self.replace(dropout_rate=self.dropout_rate or 0.1, **running)

    def without_views(self) -> "T5Config":
        """Return the config without shared layers."""
        return self.replace(share_layers=False)

    def forward_flops(self, shapes: RowShapes) -> int:
        (inputs,), (targets,) = shapes["encoder_input_tokens"], shapes["decoder_target_tokens"]
        encoder = self.num_encoder_layers * self.layer_flops(inputs)
        decoder = self.num_decoder_layers * self.layer_flops(targets, across=inputs)
        return encoder + decoder + 2 * targets * self.d_model * self.vocab_size

    def build(self, *, rngs: nnx.Rngs) -> "T5":
        return T5(self, rngs=rngs)


class T5(TokenModel):
    """T5 encoder-decoder.

    Args:
      config: sizes and options of the model.
      rngs: random streams; "params" is used.
    """

    prompt: TokenSlot | None = None
    invertible: InvertibleSlot | None = None

    def __init__(self, config: T5Config, *, rngs: nnx.Rngs):
        self.token_embedding = Embedding(config.vocab_size, config.d_model, rngs=rngs)
        layer, running = config.layer, config.running
        self.encoder = Encoder(
            layer, num_layers=config.num_encoder_layers, running=running, rngs=rngs
        )
        self.decoder = Decoder(
            layer, num_layers=config.num_decoder_layers, running=running, rngs=rngs
        )
        self.make_output(config.d_model, config.vocab_size, tied=config.tie_embeddings, rngs=rngs)

    def stacks(self) -> dict[str, Any]:
        return {"encoder": self.encoder.layers, "decoder": self.decoder.layers}

    def encode(
        self,
        tokens: Int[Array, "B S"],
        *,
        segment_ids: Int[Array, "B S"] | None = None,
        key: Key | None = None,
    ) -> Float[Array, "B _ D"]:
        """Return the encoder's output, including the vectors of a prompt adapter.

        Args:
          tokens: token ids, padded with 0.
          segment_ids: segment ids of packed examples, from 1; 0 is padding.
          key: random key of dropout; None disables dropout.
        """
        x = self.embed(tokens)
        x = x if self.invertible is None else self.invertible(x)
        if self.prompt is not None:
            if segment_ids is not None:
                raise InputError(
                    "a prompt adapter does not support rows with several packed texts; set "
                    "data.pack False"
                )
            x, tokens = self.prompt(x, self.token_table()), after_prompt(tokens, self.prompt)
        return self.encoder(x, mask=masks.of_encoder(tokens, segment_ids), key=key)

    def __call__(
        self,
        encoder_input_tokens: Int[Array, "B S"],
        decoder_input_tokens: Int[Array, "B T"],
        *,
        encoder_segment_ids: Int[Array, "B S"] | None = None,
        decoder_segment_ids: Int[Array, "B T"] | None = None,
        key: Key | None = None,
    ) -> Float[Array, "B T V"]:
        """Return the logits of each target given earlier targets (teacher forcing).

        Args:
          encoder_input_tokens: input token ids, padded with 0.
          decoder_input_tokens: targets shifted right, with 0 first.
          encoder_segment_ids: segment ids of packed inputs; give both segment ids or neither.
          decoder_segment_ids: segment ids of packed targets.
          key: random key of dropout; None disables dropout.

        Returns:
          float32 logits.
        """
        return self.logits(
            self.hidden(
                encoder_input_tokens,
                decoder_input_tokens,
                encoder_segment_ids=encoder_segment_ids,
                decoder_segment_ids=decoder_segment_ids,
                key=key,
            )
        )

    def hidden(
        self,
        encoder_input_tokens: Int[Array, "B S"],
        decoder_input_tokens: Int[Array, "B T"],
        *,
        encoder_segment_ids: Int[Array, "B S"] | None = None,
        decoder_segment_ids: Int[Array, "B T"] | None = None,
        key: Key | None = None,
    ) -> Float[Array, "B T D"]:
        """Return the last hidden states of the decoder, the input of the output layer."""
        seen = after_prompt(encoder_input_tokens, self.prompt)
        cross_mask = masks.across(seen, encoder_segment_ids, decoder_segment_ids)
        encoder_key, decoder_key = (None, None) if key is None else jax.random.split(key)
        encoded = self.encode(
            encoder_input_tokens, segment_ids=encoder_segment_ids, key=encoder_key
        )
        return self.decoder(
            self.embed(decoder_input_tokens),
            encoded,
            mask=masks.of_decoder(decoder_segment_ids),
            cross_mask=cross_mask,
            key=decoder_key,
        )

    def target_logits(
        self, inputs: Int[Array, "B S"], targets: Int[Array, "B T"]
    ) -> Float[Array, "B T V"]:
        """Return the logits of each target given inputs and earlier targets, both padded with 0."""
        return self(inputs, jnp.pad(targets[:, :-1], ((0, 0), (1, 0))))

    def lay_out(self, *, join: bool) -> None:
        if self.decoder.running.is_straight(self.decoder.num_layers):
            self.decoder.lay_out(join=join)
            if join:
                self.join_output()

    def prefill(
        self,
        inputs: Int[Array, "B S"],
        *,
        max_length: int,
        prompt: Int[Array, "B P"] | None = None,
    ) -> tuple[Float[Array, "B V"], Cache]:
        """Encode the inputs, read the prompts and create the cache, in one pass.

        Args:
          inputs: token ids, padded with 0 on the right.
          max_length: maximum number of new tokens.
          prompt: beginning of the targets, padded with 0 on the right; a row of zeros has no
            prompt.

        Returns:
          float32 logits of each row's first new token, and the cache.
        """
        parts = () if prompt is None else (prompt,)
        prefix = caching.align(*parts, batch_size=inputs.shape[0])
        hidden, cache = self.decoder.prefill(
            self.embed(prefix.tokens),
            self.encode(inputs),
            valid=prefix.valid,
            cross_mask=masks.padding(after_prompt(inputs, self.prompt)),
            max_length=max_length,
        )
        return self.logits(hidden[:, -1:])[:, 0], cache

    def step(self, tokens: Int[Array, " R"], cache: Cache) -> tuple[Float[Array, "R V"], Cache]:
        """Decode one more token in each row; return the logits and the updated cache.

        Args:
          tokens: newest token of each row.
          cache: cache from `prefill` or from an earlier step.
        """
        x = self.embed(tokens.reshape(-1, cache.num_rows))
        hidden, cache = self.decoder.step(x, cache)
        logits = self.logits(hidden)
        return logits.reshape(tokens.shape[0], logits.shape[-1]), cache


@dataclasses.dataclass(frozen=True, kw_only=True)
class T5EncoderConfig(StackConfig):
    """Sizes of T5's encoder as a separate model, in addition to `StackConfig`.

    Attributes:
      num_layers: number of layers.
    """

    num_layers: Count

    below: ClassVar[tuple[str, ...]] = ("token_embedding", "encoder/relative_bias")

    def forward_flops(self, shapes: RowShapes) -> int:
        (length,) = shapes["encoder_input_tokens"]
        return self.text_flops(length)

    def text_flops(self, length: int) -> int:
        return self.num_layers * self.layer_flops(length)

    def build(self, *, rngs: nnx.Rngs) -> "T5Encoder":
        return T5Encoder(self, rngs=rngs)


class T5Encoder(TokenModel):
    """T5 encoder as a separate model: token embedding and encoder layers.

    Args:
      config: sizes and options of the model.
      rngs: random streams; "params" is used.
    """

    prompt: TokenSlot | None = None
    invertible: InvertibleSlot | None = None

    def __init__(self, config: T5EncoderConfig, *, rngs: nnx.Rngs):
        self.token_embedding = Embedding(config.vocab_size, config.d_model, rngs=rngs)
        self.encoder = Encoder(
            config.layer, num_layers=config.num_layers, running=config.running, rngs=rngs
        )

    def stacks(self) -> dict[str, Any]:
        return {"encoder": self.encoder.layers}

    def __call__(
        self,
        tokens: Int[Array, "B S"],
        *,
        segment_ids: Int[Array, "B S"] | None = None,
        key: Key | None = None,
    ) -> Float[Array, "B S D"]:
        """Return the output of the encoder.

        Args:
          tokens: token ids, padded with 0.
          segment_ids: segment ids of packed examples, from 1; 0 is padding.
          key: random key of dropout; None disables dropout.
        """
        x = self.embed(tokens)
        x = x if self.invertible is None else self.invertible(x)
        if self.prompt is None:
            return self.encoder(x, mask=masks.of_encoder(tokens, segment_ids), key=key)
        ids = None if segment_ids is None else after_prompt(segment_ids, self.prompt)
        mask = masks.of_encoder(after_prompt(tokens, self.prompt), ids)
        x = self.prompt(x, self.token_table())
        return self.encoder(x, mask=mask, key=key)[:, self.prompt.length :]

    def encode(
        self,
        tokens: Int[Array, "B S"],
        *,
        segment_ids: Int[Array, "B S"] | None = None,
        key: Key | None = None,
    ) -> Float[Array, "B S D"]:
        """Return the output of the encoder."""
        return self(tokens, segment_ids=segment_ids, key=key)
