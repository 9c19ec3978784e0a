"""Decoder-only models: language model and prefix language model of Raffel et al. 2020 (3.2).

    config = LMConfig(vocab_size=32128, d_model=768, ..., prefix=True)   # or published.lm_base()
    model = config.build(rngs=nnx.Rngs(0))
    logits = model(decoder_input_tokens, decoder_causal_attention=...)

In a causal model, a position attends to earlier positions. In a prefix model, all positions of the
inputs also attend to each other; position 0, the start token, is one of the inputs (figure 4 of the
paper):

    inputs 5 6, targets 7 8        read      0 5 6 7
                                   predict   5 6 7 8

     key    0 5 6 7      causal          0 5 6 7      prefix
    query 0 1 0 0 0                    0 1 1 1 0
          5 1 1 0 0                    5 1 1 1 0
          6 1 1 1 0                    6 1 1 1 0
          7 1 1 1 1                    7 1 1 1 1

All keys to the right share a bucket of the relative bias. This and all numerics are as in t5x's
examples/decoder_only/network.py; `prefix_buckets` also offers the paper's rule.
"""

import dataclasses
from typing import Any, ClassVar, Literal

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Float, Int

from t5x_lite.core.errors import InputError
from t5x_lite.core.options import Count
from t5x_lite.core.trees import Array, Key
from t5x_lite.models.base import RowShapes, TokenModel
from t5x_lite.models.t5 import StackConfig
from t5x_lite.nn import cache as caching
from t5x_lite.nn import masks
from t5x_lite.nn.cache import Cache
from t5x_lite.nn.dense import Embedding
from t5x_lite.nn.stack import Decoder


@dataclasses.dataclass(frozen=True, kw_only=True)
class LMConfig(StackConfig):
    """Sizes and options of a decoder-only model, in addition to `StackConfig`.

    Attributes:
      num_layers: number of layers.
      prefix: True if the inputs attend to each other in both directions (prefix LM); if False, all
        attention is causal. The parameters are the same, so that a causal model can be trained
        further as a prefix model.
      prefix_buckets: buckets of the relative bias in a prefix LM: "causal", all for keys to the
        left (T5X), or "bidirectional", half of them for keys to the right (the T5 paper).
      tie_embeddings: True if the output layer shares the token embedding.
    """

    num_layers: Count
    prefix: bool = False
    prefix_buckets: Literal["causal", "bidirectional"] = "causal"
    tie_embeddings: bool = True

    below: ClassVar[tuple[str, ...]] = ("token_embedding", "decoder/relative_bias")

    def forward_flops(self, shapes: RowShapes) -> int:
        (length,) = shapes["decoder_target_tokens"]
        output = 2 * length * self.d_model * self.vocab_size
        return self.num_layers * self.layer_flops(length) + output

    def build(self, *, rngs: nnx.Rngs) -> "LM":
        return LM(self, rngs=rngs)


class LM(TokenModel):
    """Decoder-only language model.

    Args:
      config: sizes and options of the model.
      rngs: random streams; "params" is used.
    """

    def __init__(self, config: LMConfig, *, rngs: nnx.Rngs):
        self.token_embedding = Embedding(config.vocab_size, config.d_model, rngs=rngs)
        self.decoder = Decoder(
            config.layer,
            num_layers=config.num_layers,
            running=config.running,
            cross_attention=False,
            bidirectional=config.prefix and config.prefix_buckets == "bidirectional",
            rngs=rngs,
        )
        self.prefix = config.prefix
        self.make_output(config.d_model, config.vocab_size, tied=config.tie_embeddings, rngs=rngs)

    def stacks(self) -> dict[str, Any]:
        return {"decoder": self.decoder.layers}

    def __call__(
        self,
        decoder_input_tokens: Int[Array, "B T"],
        *,
        decoder_segment_ids: Int[Array, "B T"] | None = None,
        decoder_causal_attention: Int[Array, "B T"] | None = None,
        key: Key | None = None,
    ) -> Float[Array, "B T V"]:
        """Return each token's logits, given earlier tokens and, in a prefix model, all inputs.

        Args:
          decoder_input_tokens: text shifted right, with 0 first; padded at the end.
          decoder_segment_ids: segment ids of packed examples, from 1; 0 is padding.
          decoder_causal_attention: 1 at inputs and at the 0 before them, which attend in both
            directions (as in seqio); a causal model ignores it.
          key: random key of dropout; None disables dropout.

        Returns:
          float32 logits.

        Raises:
          InputError: if the model is a prefix model, but decoder_causal_attention is missing.
        """
        return self.logits(
            self.hidden(
                decoder_input_tokens,
                decoder_segment_ids=decoder_segment_ids,
                decoder_causal_attention=decoder_causal_attention,
                key=key,
            )
        )

    def hidden(
        self,
        decoder_input_tokens: Int[Array, "B T"],
        *,
        decoder_segment_ids: Int[Array, "B T"] | None = None,
        decoder_causal_attention: Int[Array, "B T"] | None = None,
        key: Key | None = None,
    ) -> Float[Array, "B T D"]:
        """Return the last hidden states, the input of the output layer."""
        if self.prefix and decoder_causal_attention is None:
            raise InputError(
                "model.prefix True requires the feature decoder_causal_attention, which marks the "
                "inputs of each row, but it is missing; set data.layout to prefix_lm, or "
                "model.prefix to False"
            )
        prefix = decoder_causal_attention if self.prefix else None
        mask = masks.of_decoder(decoder_segment_ids, prefix=prefix)
        return self.decoder(
            self.embed(decoder_input_tokens), None, mask=mask, cross_mask=None, key=key
        )

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
        """Read the start token, inputs and prompt in one pass, and create the cache.

        Args:
          inputs: token ids, padded with 0 on the right; rows may have different lengths, including
            0.
          max_length: maximum number of decoded tokens after the prompt.
          prompt: beginning of the targets, padded with 0 on the right; attention to it is causal.

        Returns:
          float32 logits of the first new token, and the cache.
        """
        parts = (inputs,) if prompt is None else (inputs, prompt)
        row = caching.align(*parts, batch_size=inputs.shape[0])
        hidden, cache = self.decoder.prefill(
            self.embed(row.tokens),
            valid=row.valid,
            both_ways=row.valid & (row.part <= 1) if self.prefix else None,
            max_length=max_length,
        )
        return self.logits(hidden[:, -1:])[:, 0], cache

    def step(self, tokens: Int[Array, " R"], cache: Cache) -> tuple[Float[Array, "R V"], Cache]:
        hidden = self.embed(tokens.reshape(-1, cache.num_rows))
        hidden, cache = self.decoder.step(hidden, cache)
        logits = self.logits(hidden)
        return logits.reshape(tokens.shape[0], logits.shape[-1]), cache

    def target_logits(
        self, inputs: Int[Array, "B S"], targets: Int[Array, "B T"]
    ) -> Float[Array, "B T V"]:
        """Return the logits of each target given the inputs and earlier targets.

        The padding of inputs is moved to the left, so that targets follow without a gap, as in
        training.

        Args:
          inputs: token ids, padded with 0 on the right.
          targets: token ids, padded with 0 on the right.
        """
        first = caching.align(inputs, batch_size=inputs.shape[0])
        rest = targets[:, :-1]
        tokens = jnp.concatenate([first.tokens, rest.astype(first.tokens.dtype)], axis=1)
        inputs_here, targets_here = first.valid.astype(jnp.int32), jnp.ones_like(rest)
        both_ways = jnp.concatenate([inputs_here, 0 * targets_here], axis=1)
        mask = masks.Visibility(
            keys=jnp.concatenate([inputs_here, targets_here], axis=1),
            causal=True,
            both_ways=both_ways if self.prefix else None,
        )
        hidden = self.decoder(self.embed(tokens), None, mask=mask, cross_mask=None)
        return self.logits(hidden[:, inputs.shape[1] :])
