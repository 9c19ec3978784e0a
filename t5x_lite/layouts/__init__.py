"""Layouts: how examples become the rows of a batch, packed or padded.

from t5x_lite import layouts

Data(task="tasks.glue:sst2", layout=layouts.Labelled(), pack=False, ...)
"""

from t5x_lite.layouts.base import Layout
from t5x_lite.layouts.groups import Groups, Ranked
from t5x_lite.layouts.labelled import Choices, Labelled, Tokens, Windows
from t5x_lite.layouts.text import LM, ConcatLM, Encoder, PrefixLM, Seq2Seq, Spans

__all__ = [
    "LM",
    "Choices",
    "ConcatLM",
    "Encoder",
    "Groups",
    "Labelled",
    "Layout",
    "PrefixLM",
    "Ranked",
    "Seq2Seq",
    "Spans",
    "Tokens",
    "Windows",
]
