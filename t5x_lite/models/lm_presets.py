"""One row for each published decoder-only size; all are causal unless `prefix=True` is given.

    experiment = Experiment(model=lm_base(prefix=True, dropout_rate=0.0), ...)

vocab_size 32128 as in `presets`.
"""

from typing import Any

from t5x_lite.models.lm import LMConfig


def _lm(d_model: int, num_heads: int, num_layers: int, d_ff: int, /, **fields: Any) -> LMConfig:
    sizes = {"d_model": d_model, "num_heads": num_heads, "num_layers": num_layers, "d_ff": d_ff}
    return LMConfig(**{"vocab_size": 32128, **sizes, **fields})


def lm_v1(**fields: Any) -> LMConfig:
    """The paper's language model (table 2), 110M parameters: one stack of T5 1.0 base.

    Source: t5/models/gin/models/lm_v1.gin in google-research/text-to-text-transfer-transformer; its
    prefix language model, lm_v1_ifa.gin, is `lm_v1(prefix=True)`. Its relative bias has buckets for
    keys to the right, while decoding too (Mesh TensorFlow's transformer_layers.py: bidirectional is
    not fully_autoregressive); T5X's decoder_only has none.
    """
    fields = {"feed_forward": "relu", "prefix_buckets": "bidirectional", **fields}
    return _lm(768, 12, 12, 3072, **fields)


# Gated GELU and tied embeddings. Source: google-research/t5x,
# t5x/examples/decoder_only/models/{base,large,xl,xxl}.gin


def lm_base(**fields: Any) -> LMConfig:
    """Base, 110M parameters; `fields` replace the preset's."""
    return _lm(768, 12, 12, 2048, **fields)


def lm_large(**fields: Any) -> LMConfig:
    """Large, 341M parameters."""
    return _lm(1024, 16, 24, 2816, **fields)


def lm_xl(**fields: Any) -> LMConfig:
    """XL, 1.2B parameters."""
    return _lm(2048, 32, 24, 5120, **fields)


def lm_xxl(**fields: Any) -> LMConfig:
    """XXL, 4.8B parameters."""
    return _lm(4096, 64, 24, 10240, **fields)
