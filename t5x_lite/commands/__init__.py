"""The commands of the command line: frozen dataclasses whose fields are the options.

No logic: `run` calls one function of `t5x_lite.run`, and imports it, and with it JAX, only then.
"""

from typing import Any

from t5x_lite.commands.answers import Predict, Score
from t5x_lite.commands.c4 import C4
from t5x_lite.commands.deltas import Compose, Fisher, Heads, Merge
from t5x_lite.commands.embeddings import Embed
from t5x_lite.commands.options import PROG
from t5x_lite.commands.runs import Evaluate, Plan, Report, Train
from t5x_lite.commands.texts import Cache, Vocab
from t5x_lite.commands.weights import (
    ExportAdapter,
    ExportHF,
    ImportAdapter,
    ImportHF,
    ImportT5X,
)

__all__ = ["COMMANDS", "PROG", "Predict", "Train"]

COMMANDS: dict[str, Any] = {
    "train": Train,
    "evaluate": Evaluate,
    "predict": Predict,
    "score": Score,
    "embed": Embed,
    "import hf": ImportHF,
    "import t5x": ImportT5X,
    "import adapter": ImportAdapter,
    "export hf": ExportHF,
    "export adapter": ExportAdapter,
    "compose": Compose,
    "merge": Merge,
    "fisher": Fisher,
    "heads": Heads,
    "vocab": Vocab,
    "cache": Cache,
    "c4": C4,
    "plan": Plan,
    "report": Report,
}
