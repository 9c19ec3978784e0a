"""Analytic floating-point operations of a train step, for MFU and for `plan`.

Matrix products only, 2 per multiplication; the backward pass counts twice the forward. Padding
counts: it is computed. Rematerialisation does not: MFU is about useful work. Sharing parameters
between encoder and decoder saves none, and a relative bias costs none.
"""

from t5x_lite.models.t5 import StackConfig, T5Config
from t5x_lite.models.t5_encoder import T5EncoderConfig


def _layer(config: StackConfig, length: int) -> int:
    """Multiplications of a layer's self-attention and feed-forward for one row."""
    d, joined = config.d_model, config.num_heads * config.d_kv
    feed_forward = (3 if config.feed_forward == "gated-gelu" else 2) * d * config.d_ff
    return length * (4 * d * joined + feed_forward) + 2 * length * length * joined


def t5_forward(config: T5Config, *, inputs_length: int, targets_length: int) -> int:
    """FLOPs of one forward pass for one row of the given lengths."""
    d, joined = config.d_model, config.num_heads * config.d_kv
    s, t = inputs_length, targets_length
    cross_attention = 2 * (s + t) * d * joined + 2 * s * t * joined
    encoder = _layer(config, s)
    decoder = _layer(config, t) + cross_attention
    total = config.num_encoder_layers * encoder + config.num_decoder_layers * decoder
    return 2 * (total + t * d * config.vocab_size)


def t5_train_step(
    config: T5Config, *, batch_size: int, inputs_length: int, targets_length: int
) -> int:
    """FLOPs of a train step of `batch_size` rows: three forward passes."""
    row = t5_forward(config, inputs_length=inputs_length, targets_length=targets_length)
    return 3 * batch_size * row


def t5_encoder_forward(config: T5EncoderConfig, *, length: int) -> int:
    """FLOPs of one forward pass for one row."""
    return 2 * config.num_layers * _layer(config, length)
