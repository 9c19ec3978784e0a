"""A directory of an encoder as sentence-transformers loads it: what stands beside the weights.

    modules.json                            the encoder, the pooling and, if asked for, the norm
    sentence_bert_config.json               tokens of a text at most
    1_Pooling/config.json                   of which states a vector is made
    2_Normalize/config.json                 that it has length 1; nothing is in it
    config_sentence_transformers.json       prompts, and how vectors are compared

The names are those of sentence-transformers 2, which all later versions read.
"""

import dataclasses
import json
from typing import Any

from t5x_lite.models.pooling import Pooling

_MODULES = "sentence_transformers.models."
_KINDS = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
_NAMES = {"cls": "cls_token", "mean": "mean_tokens"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceEncoder:
    """How an encoder makes a vector of a text.

    Attributes:
      pooling: of its states.
      normalize: whether a vector has length 1.
      max_length: tokens of a text at most.
    """

    pooling: Pooling
    normalize: bool
    max_length: int


def sentence_files(encoder: SentenceEncoder, *, d_model: int) -> dict[str, bytes]:
    """The files, by their paths in the directory.

    Args:
      encoder: how vectors are made.
      d_model: size of the states.
    """
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    if encoder.normalize:
        modules.append(("2_Normalize", "Normalize"))
    pooling: dict[str, Any] = {"word_embedding_dimension": d_model}
    for kind in _KINDS:
        pooling[f"pooling_mode_{kind}"] = kind == _NAMES[encoder.pooling]
    contents: dict[str, Any] = {
        "modules.json": [
            {"idx": i, "name": str(i), "path": path, "type": _MODULES + name}
            for i, (path, name) in enumerate(modules)
        ],
        "sentence_bert_config.json": {"max_seq_length": encoder.max_length, "do_lower_case": False},
        "1_Pooling/config.json": pooling,
        "config_sentence_transformers.json": {
            "prompts": {"query": "", "document": ""},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine" if encoder.normalize else "dot",
        },
    }
    if encoder.normalize:
        contents["2_Normalize/config.json"] = {}
    return {
        name: json.dumps(content, indent=2).encode() + b"\n" for name, content in contents.items()
    }
