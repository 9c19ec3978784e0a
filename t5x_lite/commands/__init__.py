"""Commands of the command line, written as functions with their options as parameters.

A command's module is imported when the command is called, and JAX when the command runs, so that
the program starts fast.

    COMMANDS["search"]           # the options of t5x_lite.commands.search.search, a dataclass
    summaries()                  # group -> name -> first line of its docstring; nothing is imported

A new command is a function and a line in `_GROUPS` (docs/explanations/architecture.md).
"""

import ast
import functools
import importlib
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

__all__ = ["COMMANDS", "PROG", "summaries"]

PROG = "t5x-lite"

_GROUPS = {
    "train and measure": {
        "init": "texts:init",
        "train": "runs:train",
        "finetune": "runs:finetune",
        "glue": "runs:glue",
        "sweep": "runs:sweep",
        "evaluate": "runs:evaluate",
    },
    "use and inspect a model": {
        "predict": "answers:predict",
        "score": "answers:score",
        "embed": "answers:embed",
        "serve": "answers:serve",
        "info": "runs:info",
        "report": "runs:report",
    },
    "search": {
        "search": "search:search",
        "index build": "search:index_build",
        "index search": "search:index_search",
        "index bench": "search:index_bench",
        "bm25 build": "search:bm25_build",
        "bm25 search": "search:bm25_search",
        "hybrid": "ranking:hybrid",
        "fuse": "search:fuse",
        "rerank": "ranking:rerank",
    },
    "training data of retrievers": {
        "score-pairs": "ranking:score_pairs",
        "pairs": "pairs:pairs",
        "synthesize requests": "pairs:synthesize_requests",
        "synthesize collect": "pairs:synthesize_collect",
        "mine": "pairs:mine",
        "refresh": "pairs:refresh",
    },
    "measure retrievers": {
        "evaluate-run": "search:evaluate_run",
        "evaluate-suite": "suites:evaluate_suite",
        "evaluate-sts": "suites:evaluate_sts",
    },
    "other libraries": {
        "import hf": "weights:import_hf",
        "import t5x": "weights:import_t5x",
        "import adapter": "weights:import_adapter",
        "export hf": "weights:export_hf",
        "export adapter": "weights:export_adapter",
        "export stablehlo": "weights:export_stablehlo",
        "push": "weights:push",
    },
    "weights and adapters": {
        "compose": "deltas:compose",
        "merge": "deltas:merge",
        "fisher": "deltas:fisher",
        "heads": "deltas:heads",
        "extend": "deltas:extend",
    },
    "text, vocabularies, caches": {
        "vocab": "texts:vocab",
        "cache": "texts:cache",
        "c4": "texts:c4",
    },
    "tools": {
        "plan": "runs:plan",
        "completion": "shell:completion",
    },
}
"""Title of a group in the help -> command name -> "module:function" in this package."""

_PLACES = {name: place for group in _GROUPS.values() for name, place in group.items()}


class _Commands(Mapping[str, Any]):
    """Mapping from command name to options class; a lookup imports the command's module."""

    def __getitem__(self, name: str) -> Any:
        module, _, command = _PLACES[name].partition(":")
        return getattr(importlib.import_module(f"{__name__}.{module}"), command).options

    def __iter__(self) -> Iterator[str]:
        return iter(_PLACES)

    def __len__(self) -> int:
        return len(_PLACES)

    def __contains__(self, name: object) -> bool:
        return name in _PLACES


COMMANDS: Mapping[str, Any] = _Commands()


def summaries() -> dict[str, dict[str, str]]:
    """Return the first docstring line of each command, by group title and command name."""
    return {
        title: {name: _summary(place) for name, place in group.items()}
        for title, group in _GROUPS.items()
    }


def _summary(place: str) -> str:
    module, _, command = place.partition(":")
    return (_docstrings(module)[command] or "").partition("\n")[0]


@functools.cache
def _docstrings(module: str) -> dict[str, str | None]:
    source = resources.files(__name__).joinpath(f"{module}.py").read_text(encoding="utf-8")
    return {
        node.name: ast.get_docstring(node)
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef)
    }
