"""One row for each published DeBERTa: a function that gives the config, its `fields` replaced.

    discriminator = deberta_v3_small()
    generator = deberta_v3_generator(discriminator)

Sources: microsoft/DeBERTa experiments/language_model/{rtd_*,xxlarge}.json, and config.json of the
releases at huggingface.co/microsoft. Vocabularies are those of the releases, not rounded up.
"""

from typing import Any

from t5x_lite.models.deberta import DebertaConfig


def _deberta(d_model: int, num_layers: int, /, **fields: Any) -> DebertaConfig:
    defaults: dict[str, Any] = {
        "vocab_size": 128100,
        "d_model": d_model,
        "d_ff": 4 * d_model,
        "num_heads": d_model // 64,
        "num_layers": num_layers,
    }
    return DebertaConfig(**{**defaults, **fields})


# v2 (2021): with a convolution beside the first layer


def _deberta_v2(num_layers: int, /, **fields: Any) -> DebertaConfig:
    defaults = {"conv_kernel_size": 3, "conv_activation": "gelu"}
    return _deberta(1536, num_layers, **{**defaults, **fields})


def deberta_v2_xlarge(**fields: Any) -> DebertaConfig:
    """DeBERTa-v2 xlarge, 885M parameters; `fields` replace the preset's."""
    return _deberta_v2(24, **fields)


def deberta_v2_xxlarge(**fields: Any) -> DebertaConfig:
    """DeBERTa-v2 xxlarge, 1.6B parameters."""
    return _deberta_v2(48, **fields)


# v3 (He et al. 2021): discriminators


def deberta_v3_xsmall(**fields: Any) -> DebertaConfig:
    """DeBERTaV3 xsmall, 71M parameters, 22M of them in the layers."""
    return _deberta(384, 12, **fields)


def deberta_v3_small(**fields: Any) -> DebertaConfig:
    """DeBERTaV3 small, 141M parameters."""
    return _deberta(768, 6, **fields)


def deberta_v3_base(**fields: Any) -> DebertaConfig:
    """DeBERTaV3 base, 184M parameters."""
    return _deberta(768, 12, **fields)


def deberta_v3_large(**fields: Any) -> DebertaConfig:
    """DeBERTaV3 large, 434M parameters."""
    return _deberta(1024, 24, **fields)


def mdeberta_v3_base(**fields: Any) -> DebertaConfig:
    """mDeBERTaV3 base, of a hundred languages, 278M parameters."""
    return _deberta(768, 12, **{"vocab_size": 251000, **fields})


def deberta_v3_generator(discriminator: DebertaConfig, **fields: Any) -> DebertaConfig:
    """The generator of a discriminator: as wide, half as deep, with an enhanced mask decoder."""
    num_layers = max(1, discriminator.num_layers // 2)
    defaults: dict[str, Any] = {"num_layers": num_layers, "enhanced_mask_decoder": True}
    return discriminator.replace(**{**defaults, **fields})
