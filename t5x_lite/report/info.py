"""Descriptions of checkpoints, deltas and caches for `t5x-lite info`, without loading a model.

    print(as_text(described("work/sst2")))
    # work/sst2: work directory
    # family      T5 (T5Config)
    # parameters  1,869,568
    # ...

The directory may be a work directory, a checkpoint, an imported checkpoint, a delta (changes of a
model's parameters) or a cache.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from t5x_lite.checkpoints import items, reading
from t5x_lite.config import Experiment
from t5x_lite.core import trees
from t5x_lite.core.object_store import data_path
from t5x_lite.core.remote import local_path
from t5x_lite.data.cache.files import INDEX_NAME, Cache
from t5x_lite.data.vocabularies.added_tokens import (
    BYTES_NAME,
    MODEL_NAME,
    SPM_NAME,
    TOKENIZER_NAME,
    WORDPIECE_NAME,
)
from t5x_lite.inference.delta_files import open_delta
from t5x_lite.inference.loading import (
    Measured,
    find_step,
    learner_of,
    read_experiment,
    with_float32_base,
)
from t5x_lite.interop.hf_export import Origin, origin_of
from t5x_lite.objectives.learner import heads_of

_VOCABULARIES = {
    MODEL_NAME: "SentencePiece",
    BYTES_NAME: "bytes",
    TOKENIZER_NAME: "tokenizer.json",
    WORDPIECE_NAME: "WordPiece",
    SPM_NAME: "DeBERTa's SentencePiece",
}


def described(directory: str) -> dict[str, Any]:
    """Return a JSON description of a directory, such as a checkpoint or a cache."""
    if (data_path(directory) / INDEX_NAME).exists():
        return _cache(directory)
    path = local_path(directory, what="directory")
    step = Path(find_step(path))
    if (step / "files" / reading.DELTA_FILE).is_file():
        return _delta(directory, step)
    files = reading.step_files(step)
    experiment = read_experiment(step, files)
    return _checkpoint(directory, path, step, files, experiment)


def _checkpoint(
    directory: str,
    path: Path,
    step: Path,
    files: Mapping[str, bytes],
    experiment: Experiment,
) -> dict[str, Any]:
    origin = origin_of(step, files, experiment)
    stored = _stored(step)
    total = _size_of_model(experiment)
    is_run = step != path
    found: dict[str, Any] = {
        "directory": directory,
        "kind": "work directory" if is_run else "step directory",
        **_model(experiment),
        "parameters": total,
        "stored": {"parameters": stored, "dtypes": _dtypes(step)},
        "vocabulary": _vocabulary(files, experiment),
    }
    if is_run:
        found["steps"] = reading.saved_steps(step.parent)
        measured = Measured.of(step.parent)
        if measured is not None and (best := measured.best()) is not None:
            found["best"] = {"step": best, measured.metric: measured.values[best]}
    found["step"] = origin.step
    found["heads"] = list(heads_of(experiment.objective, experiment.heads))
    found["adapters"] = {
        module.name: type(module).__name__ for module in experiment.adapters.modules
    }
    found["metrics"] = dict(origin.metrics)
    base = reading.base_of(step)
    if base is not None:
        found["base"] = base.checkpoint
    return _without_empty(found | _training(experiment) | _made_by(origin, files, step))


def _delta(directory: str, step: Path) -> dict[str, Any]:
    delta = open_delta(step)
    config = delta.files.get(reading.CONFIG_FILE)
    experiment = None if config is None else read_experiment(step, {reading.CONFIG_FILE: config})
    parts = delta.delta.parts
    base = delta.delta.base
    found = {
        "directory": directory,
        "kind": "delta",
        **({} if experiment is None else _model(experiment)),
        "changed_arrays": len(parts),
        "forms": sorted({type(part).__name__.lower() for part in parts.values()}),
        "stored": {"parameters": _stored(step), "dtypes": _dtypes(step)},
        "base": "" if base is None else base.checkpoint,
    }
    return _without_empty(found)


def _cache(directory: str) -> dict[str, Any]:
    opened = Cache(directory)
    index = opened.index
    found = {
        "directory": directory,
        "kind": "cache",
        **{name: value for name, value in opened.summary().items() if name != "cache"},
        "vocabulary": {"size": index.vocabulary["size"]},
        "baked": index.baked is not None,
        "documents": index.documents,
    }
    return _without_empty(found)


def _model(experiment: Experiment) -> dict[str, Any]:
    model = type(experiment.model)
    return {"family": model.__name__.removesuffix("Config"), "config": model.__name__}


def _size_of_model(experiment: Experiment) -> int:
    learner = learner_of(with_float32_base(experiment))
    return trees.count_parameters(learner.shapes) - learner.num_unused()


def _stored(step: Path) -> int:
    arrays = items.lazy_params(step / "params")
    return sum(math.prod(array.shape) for array in arrays.values())


def _dtypes(step: Path) -> list[str]:
    arrays = items.lazy_params(step / "params")
    return sorted({str(array.dtype) for array in arrays.values()})


def _vocabulary(files: Mapping[str, bytes], experiment: Experiment) -> dict[str, Any]:
    folder = reading.VOCABULARY_DIRECTORY
    kinds = [kind for name, kind in _VOCABULARIES.items() if f"{folder}/{name}" in files]
    return {
        "kind": kinds[0] if kinds else "",
        "size": experiment.model.vocab_size,
        "extra_ids": experiment.data.extra_ids,
    }


def _training(experiment: Experiment) -> dict[str, Any]:
    data = experiment.data
    return {
        "objective": type(experiment.objective).__name__,
        "task": data.task or data.cache,
        "lengths": {"inputs": data.inputs_length, "targets": data.targets_length},
    }


def _made_by(origin: Origin, files: Mapping[str, bytes], step: Path) -> dict[str, Any]:
    has_optimizer = (step / "optimizer").is_dir()
    imported = not has_optimizer and any(name.startswith("huggingface/") for name in files)
    words = "import hf" if imported else ""
    found: dict[str, Any] = {"from": origin.base}
    if origin.start is not None:
        found |= {"command": origin.start.command, "versions": origin.start.versions}
    elif words:
        found["command"] = f"t5x-lite {words}"
    return found


def _without_empty(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if value not in ("", None, [], {}, ())}


def as_text(found: Mapping[str, Any]) -> str:
    """Return a directory's description as text, with lines of names and values."""
    lines = [f"{found['directory']}: {found['kind']}"]
    rest = {name: found[name] for name in found if name not in ("directory", "kind", "config")}
    width = max((len(name) for name in rest), default=0)
    for name, value in rest.items():
        lines.append(f"  {name.replace('_', ' '):<{width}}  {_words(value)}")
    return "\n".join(lines)


def _words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_words(one)}" for name, one in value.items())
    if isinstance(value, list | tuple):
        return " ".join(_words(one) for one in value)
    return str(value)
