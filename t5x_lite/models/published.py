"""Configs of published models: a function for each published size.

Each function returns the config of a published size, with the given fields replaced.

T5:

    experiment = Experiment(model=t5_1_1_base(dropout_rate=0.0), ...)

| rows | differ from T5 1.1 in | source |
|---|---|---|
| `t5_*` | ReLU, tied output, other widths | t5x examples/t5/t5_1_0/*.gin |
| `t5_1_1_*` | | t5x examples/t5/t5_1_1/*.gin |
| `t5_lm_adapted_*`, `flan_t5_*` | nothing: other weights | t5x docs/models.md |
| `mt5_*` | vocabulary | t5x examples/t5/mt5/*.gin |
| `umt5_*` | vocabulary, a relative bias table in each layer | t5x examples/scalable_t5/umt5/*.gin |
| `byt5_*` | vocabulary of bytes, deep encoder and shallow decoder | t5x examples/t5/byt5/*.gin |
| `t5_base_*` | as `t5_base`; paper sections 3.2 and 3.6 | t5 models/gin/models/bi_v1_*.gin |

vocab_size 32128 is 32000 SentencePiece pieces and 100 sentinels, rounded up to a multiple of 128;
other vocabularies are rounded up in the same way.

BERT and its relatives:

    experiment = Experiment(model=bert_base(dropout_rate=0.0), ...)

| rows | differ from BERT in | source |
|---|---|---|
| `bert_*` | | google-research/bert README.md |
| `roberta_*` | vocabulary, positions from 2, one token type | fairseq examples/roberta/README.md |
| `xlm_r_*` | as RoBERTa, another vocabulary | fairseq examples/xlmr/README.md |
| `electra_*` | small: narrow embeddings | google-research/electra README.md |

Vocabularies have the sizes of the releases, not rounded up, so that weights of Hugging Face fit
unchanged. Cased BERTs have vocab_size=28996.

DeBERTa:

    discriminator = deberta_v3_small()
    generator = deberta_v3_generator(discriminator)

Sources: microsoft/DeBERTa experiments/language_model/{rtd_*,xxlarge}.json, and config.json of the
releases at huggingface.co/microsoft. Vocabularies have the sizes of the releases, not rounded up.

Decoder-only models, which are causal unless `prefix=True` is given:

    experiment = Experiment(model=lm_base(prefix=True, dropout_rate=0.0), ...)

Their vocab_size is 32128, as in T5.
"""

from typing import Any

from t5x_lite.models.deberta import DebertaConfig
from t5x_lite.models.encoder import BertConfig
from t5x_lite.models.lm import LMConfig
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


def _mt5(*sizes: int, **fields: Any) -> T5Config:
    return _t5_1_1(*sizes, **{"vocab_size": 250112, **fields})


def _umt5(*sizes: int, **fields: Any) -> T5Config:
    return _t5_1_1(*sizes, **{"vocab_size": 256384, "relative_bias_per_layer": True, **fields})


def _byt5(*sizes: int, decoder: int, **fields: Any) -> T5Config:
    return _t5_1_1(*sizes, **{"vocab_size": 384, "num_decoder_layers": decoder, **fields})


# T5 1.0 (Raffel et al. 2020): d_model, heads, layers, d_ff


def t5_small(**fields: Any) -> T5Config:
    """Return the config of T5 1.0 small, 60M parameters; `fields` replaces config fields."""
    return _t5_1_0(512, 8, 6, 2048, **fields)


def t5_base(**fields: Any) -> T5Config:
    """Return the config of T5 1.0 base, 220M parameters, the baseline of the T5 paper."""
    return _t5_1_0(768, 12, 12, 3072, **fields)


def t5_large(**fields: Any) -> T5Config:
    """T5 1.0 large, 770M parameters."""
    return _t5_1_0(1024, 16, 24, 4096, **fields)


def t5_3b(**fields: Any) -> T5Config:
    """Return the config of T5 1.0 3B, with attention heads of size 128."""
    return _t5_1_0(1024, 32, 24, 16384, **{"d_kv": 128, **fields})


def t5_11b(**fields: Any) -> T5Config:
    """Return the config of T5 1.0 11B, with attention heads of size 128."""
    return _t5_1_0(1024, 128, 24, 65536, **{"d_kv": 128, **fields})


# T5 1.1 (Shazeer 2020)


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


# The paper's variants of its baseline (section 3.2, table 2)


def t5_base_shared(**fields: Any) -> T5Config:
    """Return the config of T5 base with one set of parameters for encoder and decoder."""
    return t5_base(**{"share_layers": True, **fields})


def t5_base_6_layers(**fields: Any) -> T5Config:
    """Return the config of T5 base with 6 encoder layers and 6 decoder layers."""
    return t5_base(**{"num_encoder_layers": 6, "num_decoder_layers": 6, **fields})


# Its larger models (section 3.6, table 13): BERT-large's widths, and 16 or 32 layers in each stack


def t5_base_2x(**fields: Any) -> T5Config:
    """T5 large with 16 layers per stack: about twice the parameters and FLOPs of T5 base."""
    return t5_large(**{"num_encoder_layers": 16, "num_decoder_layers": 16, **fields})


def t5_base_4x(**fields: Any) -> T5Config:
    """T5 large with 32 layers per stack: about four times the parameters and FLOPs of T5 base."""
    return t5_large(**{"num_encoder_layers": 32, "num_decoder_layers": 32, **fields})


# T5 1.1 trained on: as a prefix LM (Lester et al. 2021; T0 begins there), on instructions (Chung et
# al. 2022)

t5_lm_adapted_small = flan_t5_small = t5_1_1_small
t5_lm_adapted_base = flan_t5_base = t5_1_1_base
t5_lm_adapted_large = flan_t5_large = t5_1_1_large
t5_lm_adapted_xl = flan_t5_xl = t5_1_1_xl
t5_lm_adapted_xxl = flan_t5_xxl = t5_1_1_xxl


# mT5 (Xue et al. 2021)


def mt5_small(**fields: Any) -> T5Config:
    """mT5 small, 300M parameters."""
    return _mt5(512, 6, 8, 1024, **fields)


def mt5_base(**fields: Any) -> T5Config:
    """mT5 base, 582M parameters."""
    return _mt5(768, 12, 12, 2048, **fields)


def mt5_large(**fields: Any) -> T5Config:
    """mT5 large, 1.2B parameters."""
    return _mt5(1024, 16, 24, 2816, **fields)


def mt5_xl(**fields: Any) -> T5Config:
    """mT5 XL, 3.7B parameters."""
    return _mt5(2048, 32, 24, 5120, **fields)


def mt5_xxl(**fields: Any) -> T5Config:
    """mT5 XXL, 12.9B parameters."""
    return _mt5(4096, 64, 24, 10240, **fields)


# umT5 (Chung et al. 2023); large was not released


def umt5_small(**fields: Any) -> T5Config:
    """umT5 small, 307M parameters."""
    return _umt5(512, 6, 8, 1024, **fields)


def umt5_base(**fields: Any) -> T5Config:
    """umT5 base, 592M parameters."""
    return _umt5(768, 12, 12, 2048, **fields)


def umt5_xl(**fields: Any) -> T5Config:
    """umT5 XL, 3.8B parameters."""
    return _umt5(2048, 32, 24, 5120, **fields)


def umt5_xxl(**fields: Any) -> T5Config:
    """umT5 XXL, 13.0B parameters."""
    return _umt5(4096, 64, 24, 10240, **fields)


# ByT5 (Xue et al. 2022): layers of the encoder, and of the decoder


def byt5_small(**fields: Any) -> T5Config:
    """ByT5 small, 300M parameters."""
    return _byt5(1472, 6, 12, 3584, decoder=4, **fields)


def byt5_base(**fields: Any) -> T5Config:
    """ByT5 base, 582M parameters."""
    return _byt5(1536, 12, 18, 3968, decoder=6, **fields)


def byt5_large(**fields: Any) -> T5Config:
    """ByT5 large, 1.2B parameters."""
    return _byt5(1536, 16, 36, 3840, decoder=12, **fields)


def byt5_xl(**fields: Any) -> T5Config:
    """ByT5 XL, 3.7B parameters."""
    return _byt5(2560, 32, 36, 6720, decoder=12, **fields)


def byt5_xxl(**fields: Any) -> T5Config:
    """ByT5 XXL, 12.9B parameters."""
    return _byt5(4672, 64, 36, 12352, decoder=12, **fields)


def _bert(d_model: int, num_heads: int, num_layers: int, /, **fields: Any) -> BertConfig:
    defaults: dict[str, Any] = {
        "vocab_size": 30522,
        "d_model": d_model,
        "d_ff": 4 * d_model,
        "num_heads": num_heads,
        "num_layers": num_layers,
        "token_types": 2,
    }
    return BertConfig(**{**defaults, **fields})


def _roberta(*sizes: int, **fields: Any) -> BertConfig:
    defaults: dict[str, Any] = {
        "vocab_size": 50265,
        "token_types": 1,
        "pad_id": 1,
        "position_offset": 2,
        "max_positions": 514,
        "norm_epsilon": 1e-5,
    }
    return _bert(*sizes, **{**defaults, **fields})


# BERT (Devlin et al. 2019), uncased: d_model, heads, layers


def bert_base(**fields: Any) -> BertConfig:
    """Return the config of BERT base, 110M parameters; `fields` replaces config fields."""
    return _bert(768, 12, 12, **fields)


def bert_large(**fields: Any) -> BertConfig:
    """BERT large, 335M parameters."""
    return _bert(1024, 16, 24, **fields)


# RoBERTa (Liu et al. 2019)


def roberta_base(**fields: Any) -> BertConfig:
    """RoBERTa base, 125M parameters."""
    return _roberta(768, 12, 12, **fields)


def roberta_large(**fields: Any) -> BertConfig:
    """RoBERTa large, 355M parameters."""
    return _roberta(1024, 16, 24, **fields)


# XLM-R (Conneau et al. 2020)


def xlm_r_base(**fields: Any) -> BertConfig:
    """XLM-R base, 278M parameters."""
    return _roberta(768, 12, 12, **{"vocab_size": 250002, **fields})


def xlm_r_large(**fields: Any) -> BertConfig:
    """XLM-R large, 560M parameters."""
    return _roberta(1024, 16, 24, **{"vocab_size": 250002, **fields})


# ELECTRA (Clark et al. 2020), discriminators


def electra_small(**fields: Any) -> BertConfig:
    """ELECTRA small, 14M parameters."""
    return _bert(256, 4, 12, **{"embedding_size": 128, **fields})


def electra_base(**fields: Any) -> BertConfig:
    """ELECTRA base, 110M parameters."""
    return _bert(768, 12, 12, **fields)


def electra_large(**fields: Any) -> BertConfig:
    """ELECTRA large, 335M parameters."""
    return _bert(1024, 16, 24, **fields)


def electra_generator(discriminator: BertConfig, **fields: Any) -> BertConfig:
    """Return the config of an ELECTRA discriminator's generator.

    The generator has a quarter of the discriminator's width, or a third for ELECTRA base. Source:
    google-research/electra configure_pretraining.py and run_pretraining.py.
    """
    d_model = discriminator.d_model // (3 if discriminator.d_model == 768 else 4)
    defaults: dict[str, Any] = {
        "d_model": d_model,
        "d_ff": 4 * d_model,
        "num_heads": max(1, d_model // 64),
        "embedding_size": discriminator.table_size,
    }
    return discriminator.replace(**{**defaults, **fields})


def _deberta(d_model: int, num_layers: int, /, **fields: Any) -> DebertaConfig:
    defaults: dict[str, Any] = {
        "vocab_size": 128100,
        "d_model": d_model,
        "d_ff": 4 * d_model,
        "num_heads": d_model // 64,
        "num_layers": num_layers,
    }
    return DebertaConfig(**{**defaults, **fields})


# v2 (2021): with a convolution next to the first layer


def _deberta_v2(num_layers: int, /, **fields: Any) -> DebertaConfig:
    defaults = {"conv_kernel_size": 3, "conv_activation": "gelu"}
    return _deberta(1536, num_layers, **{**defaults, **fields})


def deberta_v2_xlarge(**fields: Any) -> DebertaConfig:
    """Return the config of DeBERTa-v2 xlarge, 885M parameters; `fields` replaces config fields."""
    return _deberta_v2(24, **fields)


def deberta_v2_xxlarge(**fields: Any) -> DebertaConfig:
    """DeBERTa-v2 xxlarge, 1.6B parameters."""
    return _deberta_v2(48, **fields)


# v3 (He et al. 2021): discriminators


def deberta_v3_xsmall(**fields: Any) -> DebertaConfig:
    """Return the config of DeBERTaV3 xsmall, 71M parameters (22M in the layers)."""
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
    """Return the config of mDeBERTaV3 base, 278M parameters, for a hundred languages."""
    return _deberta(768, 12, **{"vocab_size": 251000, **fields})


def deberta_v3_generator(discriminator: DebertaConfig, **fields: Any) -> DebertaConfig:
    """Return the config of a DeBERTaV3 discriminator's generator, with half as many layers."""
    num_layers = max(1, discriminator.num_layers // 2)
    defaults: dict[str, Any] = {"num_layers": num_layers, "enhanced_mask_decoder": True}
    return discriminator.replace(**{**defaults, **fields})


def _lm(d_model: int, num_heads: int, num_layers: int, d_ff: int, /, **fields: Any) -> LMConfig:
    sizes = {"d_model": d_model, "num_heads": num_heads, "num_layers": num_layers, "d_ff": d_ff}
    return LMConfig(**{"vocab_size": 32128, **sizes, **fields})


def lm_v1(**fields: Any) -> LMConfig:
    """Return the config of the T5 paper's language model (table 2), 110M parameters.

    Source: t5/models/gin/models/lm_v1.gin in google-research/text-to-text-transfer-transformer. The
    prefix language model, lm_v1_ifa.gin, is `lm_v1(prefix=True)`. The relative bias has buckets for
    keys to the right, also during decoding (Mesh TensorFlow's transformer_layers.py); T5X's
    decoder_only has no such buckets.
    """
    fields = {"feed_forward": "relu", "prefix_buckets": "bidirectional", **fields}
    return _lm(768, 12, 12, 3072, **fields)


# Gated GELU and tied embeddings. Source: google-research/t5x,
# t5x/examples/decoder_only/models/{base,large,xl,xxl}.gin


def lm_base(**fields: Any) -> LMConfig:
    """Return the config of a base decoder-only model (110M); `fields` replaces config fields."""
    return _lm(768, 12, 12, 2048, **fields)


def lm_large(**fields: Any) -> LMConfig:
    """Decoder-only large, 341M parameters."""
    return _lm(1024, 16, 24, 2816, **fields)


def lm_xl(**fields: Any) -> LMConfig:
    """Decoder-only XL, 1.2B parameters."""
    return _lm(2048, 32, 24, 5120, **fields)


def lm_xxl(**fields: Any) -> LMConfig:
    """Decoder-only XXL, 4.8B parameters."""
    return _lm(4096, 64, 24, 10240, **fields)
