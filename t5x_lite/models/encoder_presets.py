"""One row for each published encoder: a function that gives the config, its `fields` replaced.

    experiment = Experiment(model=bert_base(dropout_rate=0.0), ...)

| rows | differ from BERT in | source |
|---|---|---|
| `bert_*` | | google-research/bert README.md |
| `roberta_*` | vocabulary, positions from 2, one token type | fairseq examples/roberta/README.md |
| `xlm_r_*` | as RoBERTa, another vocabulary | fairseq examples/xlmr/README.md |
| `electra_*` | small: narrow embeddings | google-research/electra README.md |

Vocabularies are those of the releases, not rounded up: weights of Hugging Face fit as they are. The
cased BERTs have vocab_size=28996.
"""

from typing import Any

from t5x_lite.models.bert import BertConfig


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
    """BERT base, 110M parameters; `fields` replace the preset's."""
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
    """The generator that ELECTRA's code gives a discriminator: as deep, with the same tables.

    Its width is a quarter of the discriminator's, or a third of base's 768, with heads of 64.
    Source: google-research/electra configure_pretraining.py and run_pretraining.py.
    """
    d_model = discriminator.d_model // (3 if discriminator.d_model == 768 else 4)
    defaults: dict[str, Any] = {
        "d_model": d_model,
        "d_ff": 4 * d_model,
        "num_heads": max(1, d_model // 64),
        "embedding_size": discriminator.table_size,
    }
    return discriminator.replace(**{**defaults, **fields})
