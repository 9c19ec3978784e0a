"""The model card that `t5x-lite export hf` writes: README.md, as the Hugging Face Hub reads it.

    ---
    # license: say which, such as apache-2.0
    library_name: transformers
    pipeline_tag: text2text-generation
    base_model: "google/flan-t5-small"
    tags: ["t5x_lite"]
    model-index: [{"name": "sst2", "results": [{... "metrics": [{"type": "accuracy", ...}]}]}]
    ---
    # sst2
    ...

It says the task, the base model, what was measured at that step, the command and the versions, as
far as the checkpoint and its work directory say them. Licence and language are left to the user.
The head is JSON, line by line, which is YAML, too.
"""

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from t5x_lite.bound import heads_of
from t5x_lite.checkpoints import reading as checkpointing
from t5x_lite.config import Experiment
from t5x_lite.data.config import text_lengths
from t5x_lite.errors import InputError
from t5x_lite.interop.hf_config import CONFIG, read_json
from t5x_lite.interop.hub import Found
from t5x_lite.interop.m3 import flag_embedding
from t5x_lite.metrics.selection import is_test
from t5x_lite.models.encoder import is_encoder
from t5x_lite.remote import AnyPath
from t5x_lite.train.starts import Start, read_starts

CARD = "README.md"
SOURCE_FILE = "huggingface/source.json"
"""File of an imported step: {"repository", "revision"} where it came from the hub."""
_PIPELINES = {
    "ForConditionalGeneration": "text2text-generation",
    "ForMaskedLM": "fill-mask",
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForMultipleChoice": "multiple-choice",
}
_SENTENCES = "modules.json"
_AT_HUB = re.compile(r"[\w.-]+(/[\w.-]+)?")
_GENERIC = "feature-extraction"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Origin:
    """What a step directory and its work directory say about how it was made.

    Attributes:
      name: of the work directory, or of the step directory where it stands alone.
      step: its number; 0 of imported weights.
      start: the newest start of the run up to this step; None where there is no record.
      metrics: named "<split>/<name>", measured at this step; those of test splits are left out.
      hub_base: the model of the hub that its weights or those of its run's beginning are from; "".
      base: the same, or the path of the checkpoint that its run began with; "".
    """

    name: str
    step: int
    start: Start | None
    metrics: Mapping[str, float]
    hub_base: str
    base: str


def source_file(source: Found) -> dict[str, bytes]:
    """The file that says where imported weights came from; none where from a directory."""
    if not source.repository:
        return {}
    content = {"repository": source.repository, "revision": source.revision}
    return {SOURCE_FILE: json.dumps(content, indent=1).encode() + b"\n"}


def directory_file(source: Found) -> dict[str, bytes]:
    """The same of a local directory: where imported weights came from."""
    if source.repository:
        return source_file(source)
    content = {"directory": str(source.directory.absolute())}
    return {SOURCE_FILE: json.dumps(content, indent=1).encode() + b"\n"}


def origin_name(files: Mapping[str, bytes]) -> str:
    """Return the name at the hub, or else the directory, that imported weights came from; or ""."""
    found = _json_of(files.get(SOURCE_FILE, b"{}"))
    named = [found.get(key) for key in ("repository", "directory")]
    return next((name for name in named if isinstance(name, str) and name), "")


def write_adapter_card(
    directory: Path, *, library: str, base: str, experiment: Experiment, name: str
) -> None:
    """Write README.md beside an exported adapter.

    Args:
      directory: of the files.
      library: "peft" or "adapters".
      base: name at the hub or directory of the base; "" if unknown.
      experiment: config of the checkpoint.
      name: of the checkpoint.
    """
    head: dict[str, Any] = {"library_name": library, "tags": ["t5x_lite", library]}
    if _AT_HUB.fullmatch(base):
        head["base_model"] = base
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in head.items()]
    modules = "\n".join(f"    {line}" for line in experiment.adapters.add)
    task = f"Task: `{experiment.data.task}`." if experiment.data.task else ""
    called = f"Base model: `{base}`." if base else ""
    sections = [
        "\n".join(["---", "# license: say which, such as apache-2.0", *lines, "---"]),
        f"# {name}",
        " ".join(part for part in (called, task) if part),
        modules,
    ]
    text = "\n\n".join(section for section in sections if section) + "\n"
    (directory / CARD).write_text(text, encoding="utf-8")


def origin_of(step: AnyPath, files: Mapping[str, bytes], experiment: Experiment) -> Origin:
    """Reads what is known of a step.

    Args:
      step: its directory.
      files: of it, as `checkpoints.step_files` gives them.
      experiment: its config.
    """
    number = int(step.name) if step.name.isdigit() else 0
    in_workdir = step.parent.name == checkpointing.DIRECTORY
    workdir = step.parent.parent if in_workdir else step
    starts = [start for start in read_starts(workdir) if start.step <= number]
    measured = _json_of(files.get(checkpointing.METRICS_FILE, b"{}"))
    metrics = {
        name: float(value)
        for name, value in measured.items()
        if isinstance(value, int | float) and not is_test(name.partition("/")[0])
    }
    hub_base = _repository(files) or _base_of(experiment)
    return Origin(
        name=workdir.name,
        step=number,
        start=starts[-1] if starts else None,
        metrics=metrics,
        hub_base=hub_base,
        base=hub_base or str(experiment.init.checkpoint or ""),
    )


def _repository(files: Mapping[str, bytes]) -> str:
    """The name at the hub that imported weights came from, "" where they did not."""
    found = _json_of(files.get(SOURCE_FILE, b"{}")).get("repository")
    return found if isinstance(found, str) else ""


def _base_of(experiment: Experiment) -> str:
    """The name at the hub that the checkpoint of `init` was imported from; "" without one."""
    checkpoint = experiment.init.checkpoint
    if not checkpoint:
        return ""
    try:
        path = checkpointing.find_step(checkpoint) / "files" / SOURCE_FILE
        return _repository({SOURCE_FILE: path.read_bytes()} if path.exists() else {})
    except (InputError, OSError):  # it has been moved
        return ""


def _json_of(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def write_card(directory: Path, origin: Origin, experiment: Experiment) -> None:
    """Writes README.md beside the exported files, whose config.json says what they are.

    Args:
      directory: holds them.
      origin: of the checkpoint.
      experiment: its config.
    """
    architecture = str((read_json(directory / CONFIG).get("architectures") or [""])[0])
    sentences = (directory / _SENTENCES).is_file()
    card = model_card(origin, experiment, architecture=architecture, sentences=sentences)
    (directory / CARD).write_text(card, encoding="utf-8")


def model_card(
    origin: Origin, experiment: Experiment, *, architecture: str, sentences: bool = False
) -> str:
    """The card.

    Args:
      origin: of the checkpoint.
      experiment: its config.
      architecture: the class of transformers, "T5ForConditionalGeneration".
      sentences: whether sentence-transformers loads it.
    """
    pipeline = next((p for end, p in _PIPELINES.items() if architecture.endswith(end)), _GENERIC)
    head = _head(origin, experiment, pipeline="sentence-similarity" if sentences else pipeline)
    if sentences:
        head["library_name"] = "sentence-transformers"
    lines = [f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in head.items()]
    sections = [
        "\n".join(["---", "# license: say which, such as apache-2.0", *lines, "---"]),
        f"# {origin.name}",
        _about(origin, experiment),
        _usage(architecture, sentences=sentences),
        _flag_usage(experiment),
        _metrics(origin),
        _command(origin),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _head(origin: Origin, experiment: Experiment, *, pipeline: str) -> dict[str, Any]:
    head: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": pipeline}
    if origin.hub_base:
        head["base_model"] = origin.hub_base
    head["tags"] = ["t5x_lite"]
    task = experiment.data.task
    if origin.metrics and task:
        metrics = [
            {"type": name.rpartition("/")[2], "name": name, "value": value}
            for name, value in origin.metrics.items()
        ]
        result = {
            "task": {"type": pipeline},
            "dataset": {"name": task, "type": task.rpartition(":")[2]},
            "metrics": metrics,
        }
        head["model-index"] = [{"name": origin.name, "results": [result]}]
    return head


def _about(origin: Origin, experiment: Experiment) -> str:
    data = experiment.data
    source = data.task or ", ".join([data.cache] if isinstance(data.cache, str) else data.cache)
    rows = [("Task", f"`{source}`"), ("Model", type(experiment.model).__name__)]
    if origin.base:
        rows.append(("Base model", f"`{origin.base}`"))
    if origin.step:
        rows.append(("Steps", f"{origin.step:,} of {experiment.steps:,}"))
        rows.append(("Batch", f"{data.batch_size:,} rows"))
    if texts := text_lengths(data):
        lengths = ", ".join(f"{size} tokens of a {name}" for name, size in texts.items())
    else:
        lengths = f"{data.inputs_length} tokens of input"
        if not data.layout.of_encoder:
            lengths += f", {data.targets_length} of targets"
    rows.append(("Lengths", lengths))
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])


def _usage(architecture: str, *, sentences: bool) -> str:
    if sentences:
        code = (
            "from sentence_transformers import SentenceTransformer\n\n"
            'model = SentenceTransformer("DIRECTORY_OR_NAME")\n'
            'vectors = model.encode(["a text"])'
        )
    else:
        name = architecture or "AutoModel"
        code = (
            f"from transformers import AutoTokenizer, {name}\n\n"
            'tokenizer = AutoTokenizer.from_pretrained("DIRECTORY_OR_NAME")\n'
            f'model = {name}.from_pretrained("DIRECTORY_OR_NAME")'
        )
    return f"## Use\n\n```python\n{code}\n```"


def _flag_usage(experiment: Experiment) -> str:
    """Show how FlagEmbedding loads a BGE-M3; "" for other checkpoints."""
    if not is_encoder(experiment.model):
        return ""
    heads = heads_of(experiment.objective, experiment.heads)
    if not (call := flag_embedding(heads, experiment.model)):
        return ""
    return (
        "FlagEmbedding gives all three scores:\n\n```python\n"
        f"from FlagEmbedding import BGEM3FlagModel\n\nmodel = {call}\n```"
    )


def _metrics(origin: Origin) -> str:
    if not origin.metrics:
        return ""
    rows = [f"| {name} | {value:.4f} |" for name, value in origin.metrics.items()]
    head = [f"## Metrics at step {origin.step:,}", "", "| metric | value |", "|---|---|"]
    return "\n".join([*head, *rows])


def _command(origin: Origin) -> str:
    if origin.start is None:
        return ""
    versions = ", ".join(f"{name} {value}" for name, value in origin.start.versions.items())
    lines = ["## Training", "", "```", origin.start.command, "```"]
    lines += ["", f"On {origin.start.devices}; {versions}."] if versions else []
    return "\n".join(lines)
