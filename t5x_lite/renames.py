"""Names that were changed: what stands in files that an earlier version wrote still works.

A config.json names classes by their modules; `current` says where such a module is today. A user's
own tasks and configs import modules by name; `hint` says the new name where that fails. A
checkpoint names its arrays by their paths in the model; `current_paths` says today's.

    current("t5x_lite.config")              -> "t5x_lite.config.experiment"
    current("t5x_lite.data.c4.config")      -> "t5x_lite.c4.config"
    current("tasks.mine")                   -> "tasks.mine"
    current_paths(["model/layers/wi/bias"]) -> {...: "model/layers/mlp/wi/bias"}
"""

import importlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

_PACKAGE = "t5x_lite."
_NO_NAME = re.compile(r"cannot import name '(\w+)' from")
# In the parameters, and in what an optimizer has of them: the feed-forward block of BERT's layers
# and of RetroMAE's decoder, and heads, which were the objective's.
_PATHS = (
    (re.compile(r"((?:.*/)?(?:layers|decoder)/)(w[io]/(?:kernel|bias)(?:/.*)?)"), r"\1mlp/\2"),
    (re.compile(r"((?:.*/)?)objective/classifier/(.*)"), r"\1heads/classifier/\2"),
    (re.compile(r"((?:.*/)?)objective/spans/(.*)"), r"\1heads/span/\2"),
)
_HEAD = re.compile(r"((?:.*/)?)objective/head/(.*)")
# An array that the head of a masked language model does not have.
_DETECTION = re.compile(r"(?:.*/)?objective/head/out/.*")
_PACKAGES = {"data.c4": "c4"}
_MODULES = {
    "checkpoint_items": "checkpoints.items",
    "checkpoint_manifest": "checkpoints.manifest",
    "checkpoint_saving": "checkpoints.saving",
    "checkpoints": "checkpoints.reading",
    "config": "config.experiment",
    "config_file": "config.file",
    "data.abbreviations": "records.abbreviations",
    "data.batches": "data.live.batches",
    "data.beam_runner": "records.beam_runner",
    "data.beginnings": "vocabulary.beginnings",
    "data.beir_files": "records.beir_files",
    "data.benchmark_files": "records.benchmark_files",
    "data.benchmarks": "data.tasks.benchmarks",
    "data.bytes_vocabulary": "vocabulary.byte_level",
    "data.cache_files": "data.cache.files",
    "data.cache_job": "data.cache.job",
    "data.cache_mixture": "data.cache.mixture",
    "data.cache_parts": "data.cache.parts",
    "data.cache_writer": "data.cache.writer",
    "data.cached": "data.cache.batches",
    "data.caching": "data.cache.making",
    "data.caching_beam": "data.cache.making_beam",
    "data.compressed": "records.compressed",
    "data.corruption": "data.corruption.recipes",
    "data.encoder_task": "data.tasks.encoder",
    "data.encoder_tokens": "vocabulary.encoder_tokens",
    "data.epochs": "data.live.epochs",
    "data.layouts.epochs": "data.live.epochs",
    "data.layouts.live": "data.live.rows",
    "data.glue_files": "data.tasks.glue_files",
    "data.json_lines": "records.json_lines",
    "data.labelled_task": "data.tasks.labelled",
    "data.line_blocks": "records.line_blocks",
    "data.lines": "records.lines",
    "data.log_lines": "records.log_lines",
    "data.mixture_members": "data.live.members",
    "data.live.mixture_members": "data.live.members",
    "data.live.mixture_pipeline": "data.live.pipeline",
    "data.mixture_of_denoisers": "data.corruption.mixture_of_denoisers",
    "data.mixture_pipeline": "data.live.pipeline",
    "data.noise": "data.corruption.noise",
    "data.packing": "data.layouts.packing",
    "data.pair_task": "data.tasks.pairs",
    "data.pairs": "records.pairs",
    "data.pipeline": "data.live.pipeline",
    "data.prefetch": "records.prefetch",
    "data.python_docs": "data.tasks.python_docs",
    "data.recipe": "data.cache.recipe",
    "data.replacement": "data.corruption.replacement",
    "data.resumable": "records.resumable",
    "data.rows": "data.layouts.rows",
    "data.sentences": "data.tasks.sentences",
    "data.shuffling": "data.tasks.shuffling",
    "data.source_shards": "data.cache.source_shards",
    "data.span_task": "data.tasks.spans",
    "data.special_tokens": "vocabulary.special_tokens",
    "data.spm_tokenizer": "vocabulary.spm",
    "data.stages": "data.tasks.stages",
    "data.stream": "data.cache.stream",
    "data.super_glue_files": "data.tasks.super_glue_files",
    "data.task_names": "data.tasks.names",
    "data.task_recipe": "data.cache.task_recipe",
    "data.text_files": "data.tasks.text_files",
    "data.text_records": "records.text_records",
    "data.text_rows": "vocabulary.text_rows",
    "data.text_source": "data.tasks.text_source",
    "data.tokenizer_vocabulary": "vocabulary.tokenizer",
    "data.unknown_tokens": "vocabulary.unknown_tokens",
    "data.unsupervised": "data.tasks.unsupervised",
    "data.vector_files": "records.vector_files",
    "data.vocabulary": "vocabulary.loading",
    "data.vocabulary_files": "vocabulary.files",
    "data.worker_processes": "records.worker_processes",
    "evaluate.search": "retrieval.search",
    "init_rules": "checkpoints.init",
    "interop.orbax_params": "checkpoints.orbax_params",
    "plan.chips": "plan.topologies",
    "report": "report.runs",
    "report_chart": "report.chart",
    "report_page": "report.page",
    "run.best_step": "inference.best_step",
    "run.c4": "commands.c4",
    "run.caching": "commands.texts",
    "run.c4_bars": "report.chart",
    "run.c4_progress": "c4.progress",
    "run.c4_report": "report.c4",
    "nn.heads": "heads",
    "objectives.imported": "objectives.base",
    "run.cross_encoder": "inference.pairs",
    "run.completion": "commands.shell",
    "run.composing": "commands.deltas",
    "run.embedding": "commands.embeddings",
    "run.extending": "commands.deltas",
    "run.fisher": "commands.deltas",
    "run.head_pruning": "commands.deltas",
    "run.head_scorer": "inference.pairs",
    "run.hybrid": "commands.ranking",
    "run.mining": "commands.mining",
    "run.mining_inputs": "retrieval.mining_inputs",
    "run.mining_search": "inference.mining_search",
    "run.new_project": "commands.texts",
    "run.pair_making": "commands.pairs",
    "run.refreshing": "commands.mining",
    "run.synthesizing": "commands.pairs",
    "run.pair_scoring": "commands.ranking",
    "run.parts": "run.loading",
    "run.pushing": "commands.weights",
    "run.reranking": "commands.ranking",
    "run.sts": "commands.suites",
    "run.suites": "commands.suites",
    "run.texts": "commands.texts",
    "run.text_to_text": "inference.checkpoint",
    "run.text_encoder": "inference.text_encoder",
    "serialization": "config.json",
    "train.updates": "optim.updates",
}
"""Old module -> new module, in t5x_lite."""

OPTIONS = {
    "--data.negatives": "--data.layout.negatives",
    "--init-step": "--init.step",
    "--init-rename": "--init.rename",
    "--init-fresh": "--init.fresh",
}
"""Old option of a config -> new option."""

PARTS = {"--data.layout": "layout=layouts.Encoder(), Labelled(), ... of t5x_lite.data.layouts"}
"""Option that was replaced by a part of the config file -> what stands in the file."""

_DATA = re.compile(r"t5x_lite\.(data\.config|config(\.experiment)?):Data")
_LAYOUTS = {
    "seq2seq": "seq2seq:Seq2Seq",
    "lm": "lm:LM",
    "prefix_lm": "lm:PrefixLM",
    "concat_lm": "lm:ConcatLM",
    "encoder": "encoder:Encoder",
    "pairs": "groups:Groups",
    "labelled": "labelled:Labelled",
}
_EXPERIMENT = re.compile(r"t5x_lite\.config(\.experiment)?:Experiment")
_IMPORTED = "t5x_lite.objectives.imported:Imported"
_ADAPTERS = {
    "t5x_lite.adapters.lora:Lora": ("lora", "lora"),
    "t5x_lite.adapters.bottleneck:Bottleneck": ("seq_bn", "bottleneck"),
}
"""Config of a module -> the method that has its fields, and its name where it has none."""
_IMPORTED_HEADS = {"electra_rtd": "electra", "deberta_rtd": "deberta"}

FORMER_VALUES = {
    "attention": "plain",
    "share_attention_dropout": True,
    "share_embedding_norm": False,
    "unroll": 1,
}
"""Field -> what a config means that was written before the field was there, if not its default."""

_NAMES = {
    "run.adapter_interchange.export_adapter": "commands.weights.export_adapter",
    "run.adapter_interchange.import_adapter": "commands.weights.import_adapter",
    "run.interchange.export_hf": "commands.weights.export_hf",
    "run.interchange.import_hf": "commands.weights.import_hf",
    "run.interchange.import_t5x": "commands.weights.import_t5x",
}
"""Functions that left a module which is still there."""


def current(module: str) -> str:
    """Today's name of a module, or of a function, that an earlier version may have named."""
    name = module.removeprefix(_PACKAGE)
    if name == module:
        return module
    for old, new in _PACKAGES.items():
        if name == old or name.startswith(f"{old}."):
            return _PACKAGE + new + name.removeprefix(old)
    return _PACKAGE + (_MODULES | _NAMES).get(name, name)


def current_paths(paths: Iterable[str]) -> dict[str, str]:
    """Path of a saved array -> today's path; an earlier version may have saved them.

    Args:
      paths: of all arrays of an item, such as params/.
    """
    paths = list(paths)
    head = "rtd" if any(map(_DETECTION.fullmatch, paths)) else "mlm"
    rules = (*_PATHS, (_HEAD, rf"\1heads/{head}/\2"))
    return {path: _renamed(path, rules) for path in paths}


def _renamed(path: str, rules: Sequence[tuple[re.Pattern[str], str]]) -> str:
    for pattern, replacement in rules:
        match = pattern.fullmatch(path)
        if match:
            return match.expand(replacement)
    return path


def current_fields(node: dict[str, Any]) -> dict[str, Any]:
    """An encoded config with today's fields, of one that an earlier version may have written."""
    if _DATA.fullmatch(str(node.get("type"))):
        return _current_data(node)
    if not _EXPERIMENT.fullmatch(str(node.get("type"))):
        return dict(node)
    given = dict(node)
    if isinstance(given.get("init"), str):
        old = {"checkpoint": given.pop("init"), "step": given.pop("init_step", None)}
        old |= {name: given.pop(f"init_{name}", []) for name in ("rename", "fresh")}
        # Without a checkpoint the rest meant nothing.
        given["init"] = {"type": "t5x_lite.checkpoints.init:Init"}
        given["init"] |= old if old["checkpoint"] else {}
    if isinstance(given.get("adapters"), list):
        lines = [_module_line(each) for each in given["adapters"]]
        given["adapters"] = {"type": "t5x_lite.adapters.config:Adapters", "add": lines}
    objective = given.get("objective")
    if isinstance(objective, dict) and objective.get("type") == _IMPORTED:
        given["objective"] = {"type": "t5x_lite.objectives.base:NoLoss"}
        if kind := _IMPORTED_HEADS.get(str(objective.get("head"))):
            given["heads"] = [{"type": "t5x_lite.heads.rtd:Rtd", "name": "rtd", "kind": kind}]
    return given


def _module_line(node: Any) -> str:
    """The line of `adapters.add` that a config of a module has become."""
    options = dict(node) if isinstance(node, dict) else {}
    method = _ADAPTERS.get(str(options.pop("type", None)))
    if method is None:
        return str(node)  # refused where it is parsed
    name = options.pop("name", method[1])
    values = {key: tuple(v) if isinstance(v, list) else v for key, v in options.items()}
    words = ", ".join(f"{key}={value!r}" for key, value in values.items())
    return f"{name} = {method[0]}({words})"


def _current_data(node: dict[str, Any]) -> dict[str, Any]:
    """The fields of `Data`, whose layout was a name, and whose negatives are the layout's now."""
    given = dict(node)
    negatives = given.pop("negatives", 0)
    if isinstance(given.get("layout"), str) and given["layout"] in _LAYOUTS:
        name = _LAYOUTS[given["layout"]]
        given["layout"] = {"type": f"{_PACKAGE}data.layouts.{name}"}
        if name.endswith(":Groups"):
            given["layout"] |= {"negatives": negatives, "negatives_top": max(200, negatives)}
    return given


def hint(error: BaseException) -> str:
    """What an import error of a module that was renamed should say besides; or nothing."""
    if not isinstance(error, ImportError) or error.name is None:
        return ""
    inner = _NO_NAME.match(str(error))  # from t5x_lite.data import stages
    missing = f"{error.name}.{inner[1]}" if inner else error.name
    if inner and current(missing) == missing and current(error.name) != error.name:
        if not hasattr(importlib.import_module(current(error.name)), inner[1]):
            return ""
        missing = error.name  # from t5x_lite.checkpoints import find_step
    return "" if current(missing) == missing else f"; {missing} is {current(missing)} now"
