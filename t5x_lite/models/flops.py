"""Analytic floating-point operations of a train step, for MFU and for `plan`.

Matrix products only, 2 per multiplication; the backward pass counts twice the forward. Padding
counts: it is computed. Rematerialisation does not: MFU is about useful work.
"""

from t5x_lite.models.t5 import T5Config


def t5_forward(config: T5Config, *, inputs_length: int, targets_length: int) -> int:
    """FLOPs of one forward pass for one row of the given lengths."""
    d, joined = config.d_model, config.num_heads * config.d_kv
    s, t = inputs_length, targets_length
    feed_forward = (3 if config.feed_forward == "gated-gelu" else 2) * d * config.d_ff
    attention = 4 * d * joined
    encoder = s * (attention + feed_forward) + 2 * s * s * joined
    decoder = (
        t * (attention + 2 * d * joined + feed_forward)
        + s * 2 * d * joined
        + 2 * t * (t + s) * joined
    )
    total = config.num_encoder_layers * encoder + config.num_decoder_layers * decoder
    return 2 * (total + t * d * config.vocab_size)


def t5_train_step(
    config: T5Config, *, batch_size: int, inputs_length: int, targets_length: int
) -> int:
    """FLOPs of a train step of `batch_size` rows: three forward passes."""
    row = t5_forward(config, inputs_length=inputs_length, targets_length=targets_length)
    return 3 * batch_size * row
