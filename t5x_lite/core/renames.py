"""Former names of modules, options and parameter paths, so that older files still work.

A config.json names classes by their modules; `current` returns the present module. User code
imports modules by name; an import of a former name returns the present module and logs a warning
(`former_spec`). `hint` returns the present name of a moved object. A checkpoint names arrays by
their paths in the model; `current_paths` returns the present paths.

    current("t5x_lite.config")              -> "t5x_lite.config.experiment"
    current("t5x_lite.data.c4.config")      -> "t5x_lite.c4.config"
    current("tasks.mine")                   -> "tasks.mine"
    current_paths(["model/layers/wi/bias"]) -> {...: "model/layers/mlp/wi/bias"}
"""

import importlib
import logging
import re
from collections.abc import Iterable, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_logger = logging.getLogger(__name__)

_PACKAGE = "t5x_lite."
_NO_NAME = re.compile(r"cannot import name '(\w+)' from")
# Paths of parameters, and of their optimizer states: the feed-forward block of BERT's layers and of
# RetroMAE's decoder, and heads, which earlier belonged to the objective.
_PATHS = (
    (re.compile(r"((?:.*/)?(?:layers|decoder)/)(w[io]/(?:kernel|bias)(?:/.*)?)"), r"\1mlp/\2"),
    (re.compile(r"((?:.*/)?)objective/classifier/(.*)"), r"\1heads/classifier/\2"),
    (re.compile(r"((?:.*/)?)objective/spans/(.*)"), r"\1heads/span/\2"),
)
_HEAD = re.compile(r"((?:.*/)?)objective/head/(.*)")
# An array that the head of a masked language model does not have.
_DETECTION = re.compile(r"(?:.*/)?objective/head/out/.*")
_PACKAGES = {"data.c4": "c4"}
_FORMER = {
    "adapters.adapter_tree": "adapters.places adapters.slot_trees",
    "adapters.bottleneck_variants": (
        "adapters.compacter adapters.experts adapters.hyper adapters.invertible adapters.t5_adapter"
    ),
    "adapters.composition": "adapters.gates adapters.routing",
    "adapters.delta": "deltas.delta deltas.selection",
    "adapters.delta_merging": (
        "adapters.delta_form adapters.merging adapters.union deltas.merging deltas.ties"
    ),
    "adapters.delta_parts": "deltas.fastfood deltas.low_rank deltas.mask deltas.parts",
    "adapters.evaluation": "adapters.kernel_state adapters.row_states adapters.weighted",
    "adapters.grammar": "adapters.expression adapters.use deltas.expression",
    "adapters.lora": "adapters.ia3",
    "adapters.masks": "adapters.chosen adapters.heads",
    "adapters.prefix": "adapters.prompt",
    "adapters.sparse": "adapters.choice adapters.fastfood adapters.parts",
    "adapters.whole_arrays": "adapters.arrays adapters.copies",
    "c4.bad_words": "c4.filters c4.first_bytes",
    "c4.cleaning": "c4.language c4.length c4.sentences",
    "c4.cluster": "c4.cluster_work",
    "c4.config": "c4.rules",
    "c4.dedup": "c4.lines c4.spans c4.stages",
    "c4.local": "c4.local_tasks c4.progress c4.workers run.c4_progress",
    "c4.output": "c4.parts c4.workdir",
    "c4.pages": "c4.html c4.inputs c4.reading c4.urls",
    "c4.warc": "c4.gzip_members",
    "checkpoints.init": "checkpoints.base init_rules",
    "checkpoints.items": (
        "checkpoint_items checkpoint_manifest checkpoints.manifest checkpoints.orbax_params "
        "interop.orbax_params"
    ),
    "checkpoints.reading": "checkpoint_saving checkpoints checkpoints.saving",
    "commands.answers": "commands.embeddings commands.serving run.embedding",
    "commands.command": "commands.options",
    "commands.deltas": "run.composing run.extending run.fisher run.head_pruning",
    "commands.pairs": "commands.mining run.mining run.pair_making run.refreshing run.synthesizing",
    "commands.ranking": "run.hybrid run.pair_scoring run.reranking",
    "commands.shell": "run.completion",
    "commands.suites": "run.sts run.suites",
    "commands.texts": (
        "commands.c4 commands.project_files run.c4 run.caching run.new_project "
        "run.project_files run.texts"
    ),
    "commands.weights": "run.pushing",
    "config.batches": "run.loading run.parts run.step_sizes",
    "config.evaluation": (
        "config.checks config.per_task config.run_options train.early_stopping train.profiling"
    ),
    "config.experiment": "config",
    "config.file": "config.json config_file serialization",
    "core.accelerators": "accelerators chips",
    "core.beam": "data.beam_runner records.beam_runner",
    "core.devices": "memory run.allocator train.compilation",
    "core.errors": "errors extras invocation",
    "core.files": "files interop.directories",
    "core.jobs": "data.resumable records.resumable data.formats.resumable",
    "core.object_store": "buckets.asking buckets.objects buckets.paths",
    "core.option_types": "option_types",
    "core.options": "options",
    "core.project": "project",
    "core.remote": "remote",
    "core.renames": "renames",
    "core.sharding": "processes sharding train.microbatches",
    "core.signals": "data.log_lines records.log_lines signals",
    "core.tied_parameters": "views",
    "core.tracking": "core.run_history train.record train.starts train.tracking",
    "core.trees": "core.patterns patterns trees types",
    "core.workers": (
        "core.progress data.prefetch data.worker_processes progress records.prefetch "
        "records.worker_processes"
    ),
    "data.batches": "data.cache.batches data.cached data.live.batches",
    "data.cache.files": "data.cache.bucket_records data.cache_files",
    "data.cache.making": (
        "data.cache.job data.cache.writer data.cache_job data.cache_writer data.caching"
    ),
    "data.cache.making_beam": "data.caching_beam",
    "data.cache.parts": "data.cache.source_shards data.cache_parts data.source_shards",
    "data.cache.recipe": "data.cache.task_recipe data.recipe data.task_recipe",
    "data.config": "data.augment data.refresh data.shapes",
    "data.denoising": (
        "data.corruption data.corruption.mixture_of_denoisers data.corruption.noise "
        "data.corruption.recipes data.corruption.replacement data.mixture_of_denoisers "
        "data.noise data.replacement"
    ),
    "data.elements": "data.open_iterators data.quiet_tensorflow",
    "data.few_shot": "evaluate.few_shot",
    "data.formats.array_records": "records.highway_hash records.ranged_records",
    "data.formats.benchmark_files": (
        "data.benchmark_files records.benchmark_files records.tagged_files"
    ),
    "data.formats.documents": (
        "data.abbreviations data.formats.line_blocks data.line_blocks records.abbreviations "
        "records.documents records.line_blocks records.weighted_lines"
    ),
    "data.formats.lines": (
        "data.compressed data.json_lines data.lines records.compressed records.json_lines "
        "records.lines"
    ),
    "data.formats.pairs": (
        "data.formats.passages data.pairs data.text_records records.nli_files records.pairs "
        "records.passages records.shares records.text_records records.triplet_files"
    ),
    "data.formats.rankings": "records.answer_files records.run_files records.run_writer",
    "data.formats.released_files": "records.released_files",
    "data.formats.retrieval_sets": (
        "data.beir_files records.beir_files records.dpr_files records.marco_files "
        "records.miracl_files"
    ),
    "data.formats.suites": "records.suites",
    "data.formats.tables": (
        "data.formats.table_splits records.named_splits records.table_splits records.tables"
    ),
    "data.formats.vectors": (
        "data.formats.string_table data.vector_files records.m3_files records.string_table "
        "records.vector_files records.vector_shards"
    ),
    "data.loading": (
        "data.live.members data.live.mixture_members data.live.rows data.live.tasks "
        "data.live.truncation data.mixture_members"
    ),
    "data.mixing": "data.permutation data.rates",
    "data.preprocessors": (
        "data.columns data.preprocess data.preprocess.classification data.preprocess.questions "
        "data.preprocess.templates data.preprocess.winograd"
    ),
    "data.reading": (
        "data.live.demonstrations data.live.mixture_pipeline data.live.pipeline "
        "data.mixture_pipeline data.pipeline"
    ),
    "data.scheduled": (
        "data.cache.grouped data.cache.mixture data.cache.scheduled data.cache_mixture"
    ),
    "data.sources": "data.cache.truncation data.positions",
    "data.stream": "data.cache.stream",
    "data.tasks.benchmarks": "data.benchmarks",
    "data.tasks.encoder": (
        "data.encoder_task data.pair_task data.sentences data.tasks.document_spans "
        "data.tasks.pairs data.tasks.sentences"
    ),
    "data.tasks.glue_files": (
        "data.glue_files data.super_glue_files data.tasks.super_glue_files data.tasks.xnli_files"
    ),
    "data.tasks.labelled": "data.labelled_task data.span_task data.tasks.spans data.tasks.tokens",
    "data.tasks.names": (
        "data.seqio_vocabularies data.task_names data.tasks.seqio_registry data.tasks.wording"
    ),
    "data.tasks.python_docs": "data.python_docs",
    "data.tasks.questions": "data.tasks.candidates data.tasks.choices data.tasks.windows",
    "data.tasks.stages": "data.live.augmented data.stages data.tasks.augmented",
    "data.tasks.text_source": "data.shuffling data.tasks.shuffling data.text_source",
    "data.tasks.unsupervised": "data.tasks.text_files data.text_files data.unsupervised",
    "data.vocabularies.added_tokens": (
        "data.special_tokens data.vocabulary_files vocabulary.added_tokens vocabulary.files "
        "vocabulary.special_tokens"
    ),
    "data.vocabularies.byte_level": (
        "data.bytes_vocabulary data.spm_tokenizer data.vocabularies.spm vocabulary.byte_level "
        "vocabulary.spm"
    ),
    "data.vocabularies.encoder_tokens": (
        "data.beginnings data.encoder_tokens data.text_rows data.unknown_tokens "
        "data.vocabularies.unknown_tokens vocabulary.beginnings vocabulary.encoder_tokens "
        "vocabulary.fertility vocabulary.text_rows vocabulary.unknown_tokens"
    ),
    "data.vocabularies.loading": "data.vocabulary vocabulary.loading",
    "data.vocabularies.tokenizer": "data.tokenizer_vocabulary vocabulary.tokenizer",
    "decoding.generate": "decoding.ensemble",
    "decoding.sampling": "decoding.config decoding.constraints decoding.top_k",
    "decoding.search": "decoding.beam decoding.prepare",
    "evaluate.few_shot_trials": (
        "evaluate.few_shot_evaluator evaluate.spread evaluate.trials run.shown_examples"
    ),
    "evaluate.results": (
        "evaluate.fisher evaluate.head_importance evaluate.loss run.best run.outcome "
        "run.submissions"
    ),
    "evaluate.retrieval": "evaluate.head_retrieval evaluate.mteb run.mteb",
    "evaluate.submission": "evaluate.conll_file evaluate.squad_files",
    "evaluate.task_suite": "run.answerers run.task_settings run.task_suite",
    "inference.checkpoint": "inference.json_answers run.answering run.long_texts run.text_to_text",
    "inference.delta_files": "run.delta_files",
    "inference.generate": "evaluate.generate evaluate.interruption evaluate.rank evaluate.score",
    "inference.head_answers": "evaluate.heads evaluate.windows",
    "inference.loading": "inference.best_step inference.modules run.best_step run.modules",
    "inference.pairs": "evaluate.pair_scores run.cross_encoder run.head_scorer",
    "inference.text_encoder": (
        "evaluate.embed evaluate.head_vectors evaluate.mcls inference.vectors run.text_encoder"
    ),
    "interop.adapter_checkpoints": "run.adapter_interchange",
    "interop.adapters_heads": "interop.adapters_files interop.adapters_prefixes",
    "interop.adapters_library": "interop.adapters_writing",
    "interop.encoder_checkpoints": (
        "interop.encoder_families interop.module_hosts run.encoder_interchange"
    ),
    "interop.encoders": "interop.bert interop.encoder_heads",
    "interop.hf": "interop.hf_config",
    "interop.hf_export": "run.exporting run.model_card run.tower_export",
    "interop.hf_import": "run.interchange run.tower_import",
    "interop.peft": "interop.peft_config interop.peft_files interop.peft_heads",
    "interop.peft_prompts": "interop.peft_prefixes interop.peft_tables interop.peft_writing",
    "interop.retrievers": (
        "interop.condenser interop.m3 interop.pooler interop.sentence_projection "
        "interop.sentence_transformers"
    ),
    "interop.sft": "run.sft_interchange",
    "interop.t5x": "interop.t5x_files",
    "interop.tensor_files": "interop.msgpack_files interop.torch_files interop.torch_writing",
    "interop.tokenizers": "interop.encoder_tokenizer interop.tokenizer",
    "layouts": "data.layouts",
    "layouts.base": (
        "data.layouts.base data.layouts.packing data.layouts.rows data.packing data.rows"
    ),
    "layouts.groups": "data.layouts.groups data.layouts.ranked",
    "layouts.labelled": (
        "data.labels data.layouts.choices data.layouts.labelled data.layouts.tokens "
        "data.layouts.windows"
    ),
    "layouts.text": (
        "data.layouts.text data.layouts.encoder data.layouts.lm data.layouts.seq2seq "
        "data.layouts.spans"
    ),
    "metrics.benchmarks": (
        "evaluate.standings metrics.bootstrap metrics.paired metrics.selection metrics.statistics"
    ),
    "metrics.classification": "metrics.correlation metrics.entities",
    "metrics.text": "metrics.answers metrics.generation metrics.groups metrics.no_answer",
    "models.encoder": "models.bert",
    "models.heads": (
        "heads.base heads.choice heads.classes heads.classifier heads.mlm heads.rtd heads.span "
        "heads.token models.pretraining_heads nn.heads"
    ),
    "models.published": (
        "models.deberta_presets models.encoder_presets models.lm_presets models.presets"
    ),
    "models.t5": "models.t5_encoder",
    "models.vector_heads": (
        "heads.dense heads.lexical heads.multi_vector models.pooling models.towers"
    ),
    "nn.attention_pattern": "nn.distance_attention nn.pattern nn.positions",
    "nn.dense": "nn.activations nn.dropout nn.embedding nn.mlp nn.norms nn.products nn.reductions",
    "nn.experts": "nn.sorted_tokens nn.tally",
    "nn.fused_attention": "nn.blocked_attention nn.cudnn_attention",
    "nn.layers": "nn.block nn.post_norm",
    "nn.pallas_attention": "nn.pallas_vmem",
    "nn.pallas_kernels": "nn.pallas_backward nn.pallas_blocks nn.pallas_forward",
    "nn.slots": "nn.bind",
    "nn.stack": "nn.remat nn.scan",
    "objectives.base": "objectives.imported objectives.roc",
    "objectives.contrastive": (
        "objectives.bi_encoder objectives.block_scores objectives.candidates objectives.graded"
    ),
    "objectives.learner": "bound learner",
    "objectives.likelihood": (
        "objectives.chunked objectives.language_model objectives.losses objectives.seq2seq"
    ),
    "objectives.m3": "objectives.distill objectives.ranker",
    "objectives.masked_lm": "objectives.masking",
    "objectives.retromae": "objectives.bag_of_words objectives.cocondenser objectives.condenser",
    "objectives.task_heads": (
        "objectives.choose objectives.classify objectives.of_heads objectives.spans "
        "objectives.tag_tokens"
    ),
    "optim.config": "optim.schedules",
    "optim.partial": "optim.layer_decay optim.unfreezing optim.updates train.updates",
    "plan.hlo": "plan.links",
    "plan.program": "plan.attached plan.chips plan.shards plan.sheet plan.topologies",
    "report.c4": "run.c4_report",
    "report.compare": "report.retrieval",
    "report.info": "run.info",
    "report.page": "report.chart report.suites report_chart report_page run.c4_bars",
    "report.runs": "report report.history report.settings",
    "retrieval.analyzers": "retrieval.porter retrieval.words",
    "retrieval.bm25": "retrieval.bm25_index",
    "retrieval.exact": "evaluate.search retrieval.exact_runs retrieval.host_best retrieval.search",
    "retrieval.fusion": "retrieval.hybrid retrieval.rerank retrieval.sparse",
    "retrieval.mining": (
        "inference.mining_search inference.queries retrieval.mine retrieval.queries "
        "run.mining_search"
    ),
    "retrieval.pairs": "retrieval.pair_filters retrieval.pair_rules retrieval.synthesis",
    "retrieval.refresh_search": (
        "inference.refresh_search retrieval.mining_inputs retrieval.pool run.mining_inputs"
    ),
    "serve.app": "serve.page",
    "serve.batching": "serve.limits serve.requests serve.shapes",
    "serve.endpoints": "run.endpoints",
    "serve.server": "run.serving serve.connections serve.counts serve.serving",
    "train.benchmarks": "run.benchmarks",
    "train.finetuning": "run.finetuning",
    "train.hosts": "run.hosts run.metadata",
    "train.loop": "train.ahead",
    "train.measuring": "run.measuring",
    "train.phases": "run.base_scores run.phases",
    "train.planning": "run.planning run.rehearsal",
    "train.restoring": "run.restoring run.workdir train.workdir",
    "train.step": "train.state",
    "train.stopping": "run.preemption train.save_clock train.stop train.watchdog",
    "train.throughput": "train.window",
    "train.track": (
        "train.background train.display train.events train.goodput train.mlflow_tracker "
        "train.trackers train.wandb_tracker"
    ),
    "train.training": "run.data_facts run.schedule_offset run.training train.completion",
}
"""Module of t5x_lite -> former names, separated by spaces."""
_MODULES = {old: new for new, names in _FORMER.items() for old in names.split()}

OPTIONS = {
    "--data.negatives": "--data.layout.negatives",
    "--init-step": "--init.step",
    "--init-rename": "--init.rename",
    "--init-fresh": "--init.fresh",
}
"""Former name of a config option -> present name."""

PARTS = {"--data.layout": "layout=layouts.Encoder(), Labelled(), ... of t5x_lite.layouts"}
"""Removed command-line option -> text that a config file needs instead."""

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
"""Former config class of an adapter -> present adapter method and default adapter name."""
_IMPORTED_HEADS = {"electra_rtd": "electra", "deberta_rtd": "deberta"}

FORMER_VALUES = {
    "attention": "plain",
    "share_attention_dropout": True,
    "share_embedding_norm": False,
    "unroll": 1,
}
"""Config field -> value for older configs without the field, if it differs from the default."""

_NAMES = {
    "adapters.choice.Chosen": "adapters.sparse.ChosenEntries",
    "data.cache.bucket_records.BucketRecords": "data.cache.files.Shards",
    "data.cache.batches.CachedBatches": "data.batches.Batches",
    "data.cache.stream.Source": "data.sources.Source",
    "data.live.pipeline.eval_batches": "data.batches.eval_batches",
    "data.live.pipeline.train_batches": "data.batches.train_batches",
    "data.tasks.super_glue_files.FILES": "data.tasks.glue_files.SUPER_GLUE_FILES",
    "interop.encoder_families.is_encoder": "models.encoder.is_encoder",
    "records.beir_files.read_pairs": "data.formats.retrieval_sets.read_beir_pairs",
    "records.beir_files.splits": "data.formats.retrieval_sets.beir_splits",
    "records.dpr_files.read_pairs": "data.formats.retrieval_sets.read_dpr_pairs",
    "records.dpr_files.splits": "data.formats.retrieval_sets.dpr_splits",
    "records.marco_files.read_pairs": "data.formats.retrieval_sets.read_marco_pairs",
    "records.marco_files.splits": "data.formats.retrieval_sets.marco_splits",
    "records.miracl_files.read_pairs": "data.formats.retrieval_sets.read_miracl_pairs",
    "records.miracl_files.splits": "data.formats.retrieval_sets.miracl_splits",
    "records.nli_files.read_pairs": "data.formats.pairs.read_nli_pairs",
    "records.nli_files.splits": "data.formats.pairs.nli_splits",
    "run.adapter_interchange.export_adapter": "commands.weights.export_adapter",
    "run.adapter_interchange.import_adapter": "commands.weights.import_adapter",
    "run.interchange.export_hf": "commands.weights.export_hf",
    "run.interchange.import_hf": "commands.weights.import_hf",
    "run.interchange.import_t5x": "commands.weights.import_t5x",
}
"""Former path of a moved function or class -> present path."""


def current(module: str) -> str:
    """Return the present name of a module, function or class from its former name."""
    name = module.removeprefix(_PACKAGE)
    if name == module:
        return module
    for old, new in _PACKAGES.items():
        if name == old or name.startswith(f"{old}."):
            name = new + name.removeprefix(old)
    return _PACKAGE + (_MODULES | _NAMES).get(name, name)


class _FormerModule(ModuleType):
    """Module under its former name, with the attributes of the renamed module."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        place, _, today = current(f"{self.__name__}.{name}").rpartition(".")
        if place == self.__name__:
            place, today = current(place), name
        if place == self.__name__:  # a package with no remaining modules
            raise AttributeError(f"module {place!r} has no attribute {name!r}")
        return getattr(importlib.import_module(place), today)


class _Loader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _FormerModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        if (today := current(module.__name__)) != module.__name__:
            _logger.warning(
                "%s is renamed to %s; the old name will be removed in 0.3.0", module.__name__, today
            )


def former_spec(module: str) -> ModuleSpec | None:
    """Return the import spec for a former module name, or None if no module had this name."""
    name = module.removeprefix(_PACKAGE)
    is_room = any(old.startswith(f"{name}.") for old in _MODULES)
    if name == module or not (is_room or current(module) != module):
        return None
    return ModuleSpec(module, _Loader(), is_package=True)


def current_paths(paths: Iterable[str]) -> dict[str, str]:
    """Map paths of arrays in a checkpoint to their present paths in the model."""
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
    """Convert the JSON form of a config from an earlier version to the present field names."""
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
    options = dict(node) if isinstance(node, dict) else {}
    method = _ADAPTERS.get(str(options.pop("type", None)))
    if method is None:
        return str(node)  # rejected where it is parsed
    name = options.pop("name", method[1])
    values = {key: tuple(v) if isinstance(v, list) else v for key, v in options.items()}
    words = ", ".join(f"{key}={value!r}" for key, value in values.items())
    return f"{name} = {method[0]}({words})"


def _current_data(node: dict[str, Any]) -> dict[str, Any]:
    """Convert the JSON form of a `Data` config from an earlier version to the present fields."""
    given = dict(node)
    negatives = given.pop("negatives", 0)
    if isinstance(given.get("layout"), str) and given["layout"] in _LAYOUTS:
        module, _, name = _LAYOUTS[given["layout"]].partition(":")
        given["layout"] = {"type": f"{current(f'{_PACKAGE}data.layouts.{module}')}:{name}"}
        if name == "Groups":
            given["layout"] |= {"negatives": negatives, "negatives_top": max(200, negatives)}
    return given


def hint(error: BaseException) -> str:
    """Return a hint with the new name if an ImportError is about a renamed module, or ""."""
    if not isinstance(error, ImportError) or error.name is None:
        return ""
    inner = _NO_NAME.match(str(error))  # from t5x_lite.data import stages
    missing = f"{error.name}.{inner[1]}" if inner else error.name
    if inner and current(missing) == missing and current(error.name) != error.name:
        if not hasattr(importlib.import_module(current(error.name)), inner[1]):
            return ""
        missing = error.name  # from t5x_lite.checkpoints import find_step
    return "" if current(missing) == missing else f"; {missing} is {current(missing)} now"
