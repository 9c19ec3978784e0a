"""One row for each published size. Source: the gin files of google-research/t5x, examples/t5.

    experiment = Experiment(model=t5_1_1_base(dropout_rate=0.0), ...)

vocab_size 32128 is 32000 SentencePiece pieces and 100 sentinels, rounded up to a multiple of 128.
"""

from typing import Any

from t5x_lite.models.t5 import T5Config


def _t5(d_model: int, num_heads: int, num_layers: int, d_ff: int, **fields: Any) -> T5Config:
    defaults: dict[str, Any] = {
        "vocab_size": 32128,
        "d_kv": 64,
        "num_encoder_layers": num_layers,
        "num_decoder_layers": num_layers,
    }
    return T5Config(
        **{**defaults, "d_model": d_model, "num_heads": num_heads, "d_ff": d_ff, **fields}
    )


def _t5_1_0(*sizes: int, **fields: Any) -> T5Config:
    return _t5(*sizes, **{"feed_forward": "relu", "tie_embeddings": True, **fields})


def _t5_1_1(*sizes: int, **fields: Any) -> T5Config:
    return _t5(*sizes, **{"feed_forward": "gated-gelu", "tie_embeddings": False, **fields})


# T5 1.0 (Raffel et al. 2020): examples/t5/t5_1_0/{small,base,large,3B,11B}.gin


def t5_small(**fields: Any) -> T5Config:
    """T5 1.0 small, 60M parameters; `fields` replace the preset's."""
    return _t5_1_0(512, 8, 6, 2048, **fields)


def t5_base(**fields: Any) -> T5Config:
    """T5 1.0 base, 220M parameters: the paper's baseline."""
    return _t5_1_0(768, 12, 12, 3072, **fields)


def t5_large(**fields: Any) -> T5Config:
    """T5 1.0 large, 770M parameters."""
    return _t5_1_0(1024, 16, 24, 4096, **fields)


def t5_3b(**fields: Any) -> T5Config:
    """T5 1.0 3B: heads of 128."""
    return _t5_1_0(1024, 32, 24, 16384, **{"d_kv": 128, **fields})


def t5_11b(**fields: Any) -> T5Config:
    """T5 1.0 11B: heads of 128."""
    return _t5_1_0(1024, 128, 24, 65536, **{"d_kv": 128, **fields})


# T5 1.1 (Shazeer 2020): examples/t5/t5_1_1/{small,base,large,xl,xxl}.gin


def t5_1_1_small(**fields: Any) -> T5Config:
    """T5 1.1 small, 77M parameters."""
    return _t5_1_1(512, 6, 8, 1024, **fields)


def t5_1_1_base(**fields: Any) -> T5Config:
    """T5 1.1 base, 250M parameters."""
    return _t5_1_1(768, 12, 12, 2048, **fields)


def t5_1_1_large(**fields: Any) -> T5Config:
    """T5 1.1 large, 780M parameters."""
    return _t5_1_1(1024, 16, 24, 2816, **fields)


def t5_1_1_xl(**fields: Any) -> T5Config:
    """T5 1.1 XL, 3B parameters."""
    return _t5_1_1(2048, 32, 24, 5120, **fields)


def t5_1_1_xxl(**fields: Any) -> T5Config:
    """T5 1.1 XXL, 11B parameters."""
    return _t5_1_1(4096, 64, 24, 10240, **fields)
