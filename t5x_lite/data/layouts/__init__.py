"""Layouts: how examples become the rows of a batch, packed or padded; one file each.

from t5x_lite.data import layouts

Data(task="tasks.glue:sst2", layout=layouts.Labelled(), pack=False, ...)
"""

from t5x_lite.data.layouts.base import Layout
from t5x_lite.data.layouts.choices import Choices
from t5x_lite.data.layouts.encoder import Encoder
from t5x_lite.data.layouts.groups import Groups
from t5x_lite.data.layouts.labelled import Labelled
from t5x_lite.data.layouts.lm import LM, ConcatLM, PrefixLM
from t5x_lite.data.layouts.ranked import Ranked
from t5x_lite.data.layouts.seq2seq import Seq2Seq
from t5x_lite.data.layouts.spans import Spans
from t5x_lite.data.layouts.tokens import Tokens
from t5x_lite.data.layouts.windows import Windows

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
