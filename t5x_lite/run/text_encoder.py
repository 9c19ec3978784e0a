"""The earlier place of `t5x_lite.inference.text_encoder`."""

from t5x_lite.inference.text_encoder import (
    TextEncoder,
    Vectors,
    check_encodes,
    dense_head,
    head_embedder,
    most_tokens,
    retrieval_evaluator,
    rows_of,
    trained_length,
    whole_of,
)

__all__ = [
    "TextEncoder",
    "Vectors",
    "check_encodes",
    "dense_head",
    "head_embedder",
    "most_tokens",
    "retrieval_evaluator",
    "rows_of",
    "trained_length",
    "whole_of",
]
