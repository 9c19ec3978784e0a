"""Analytic floating-point operations of a train step: for MFU and `plan`.

Matrix products only, 2 per multiplication; the backward pass counts twice the forward. Padding
counts: it is computed. Rematerialisation does not: MFU is about useful work. So does what a causal
mask hides, whatever skips it. Sharing parameters between encoder and decoder saves none, and a
relative bias costs none.

    lengths = {"encoder_input_tokens": 512, "decoder_target_tokens": 114}
    flops = train_step_flops(config, rows=256, lengths=lengths)
    mfu = flops / seconds / (devices * chip("TPU v5 lite").peak)
"""

from collections.abc import Mapping

from t5x_lite.models.base import ModelConfig
from t5x_lite.models.lm import LMConfig
from t5x_lite.models.t5 import StackConfig, T5Config
from t5x_lite.models.t5_encoder import T5EncoderConfig


def train_step_flops(config: ModelConfig, *, rows: int, lengths: Mapping[str, int]) -> int | None:
    """FLOPs of a train step over the global batch: three forward passes.

    Args:
      config: of the model.
      rows: of the global batch.
      lengths: tokens of a row, by the name of the feature; those that the model reads are used.

    Returns:
      None for a model whose operations are not counted here.
    """
    forward = forward_flops(config, lengths)
    return None if forward is None else 3 * rows * forward


def forward_flops(config: ModelConfig, lengths: Mapping[str, int]) -> int | None:
    """FLOPs of one forward pass for one row; arguments as for `train_step_flops`."""
    match config:
        case T5Config():
            return t5_forward(
                config,
                inputs_length=lengths["encoder_input_tokens"],
                targets_length=lengths["decoder_target_tokens"],
            )
        case LMConfig():
            return lm_forward(config, length=lengths["decoder_target_tokens"])
        case T5EncoderConfig():
            return t5_encoder_forward(config, length=lengths["encoder_input_tokens"])
        case _:
            return None


def t5_forward(config: T5Config, *, inputs_length: int, targets_length: int) -> int:
    """FLOPs of one forward pass for one row of the given lengths."""
    d, joined = config.d_model, config.num_heads * config.d_kv
    s, t = inputs_length, targets_length
    cross_attention = 2 * (s + t) * d * joined + 2 * s * t * joined
    encoder = _layer(config, s)
    decoder = _layer(config, t) + cross_attention
    total = config.num_encoder_layers * encoder + config.num_decoder_layers * decoder
    return 2 * (total + t * d * config.vocab_size)


def lm_forward(config: LMConfig, *, length: int) -> int:
    """FLOPs of one forward pass of a decoder alone for one row, causal or with a prefix."""
    layers = config.num_layers * _layer(config, length)
    return 2 * (layers + length * config.d_model * config.vocab_size)


def t5_encoder_forward(config: T5EncoderConfig, *, length: int) -> int:
    """FLOPs of one forward pass for one row."""
    return 2 * config.num_layers * _layer(config, length)


def _layer(config: StackConfig, length: int) -> int:
    """Multiplications of a layer's self-attention and feed-forward for one row."""
    d, joined = config.d_model, config.num_heads * config.d_kv
    feed_forward = (3 if config.feed_forward == "gated-gelu" else 2) * d * config.d_ff
    return length * (4 * d * joined + feed_forward) + 2 * length * length * joined
