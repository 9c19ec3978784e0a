"""Import and export of adapters of PEFT and the library `adapters`, as checkpoints.

`t5x-lite import adapter` and `t5x-lite export adapter` use this module. An imported adapter is a
checkpoint directory that holds only the adapter, or the adapters of a composition. All other arrays
stay in its base:

    params/                  adapters/NAME/..., and the head in the source, if any
    files/config.json        the base's Experiment, with the adapter
    files/base.json          the base: its path, and a digest of each of its arrays
    files/vocabulary/        vocabulary of the base; also huggingface/ of the base
    files/peft/              adapter_config.json of the source; for the library `adapters` in
                             files/adapters/, or its adapter_setup.json
    manifest.json            checksums of all of these, written last

A retriever with two encoders has the directories query/ and passage/, one for each encoder's
adapters.
"""

import dataclasses
import functools
import json
import logging
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from t5x_lite.adapters.base import ADAPTERS, Adapter
from t5x_lite.adapters.composition import Block, names_of, trained_of
from t5x_lite.adapters.config import Adapters
from t5x_lite.adapters.delta_merging import Union
from t5x_lite.adapters.delta_parts import LowRank, factored
from t5x_lite.adapters.grammar import write_module
from t5x_lite.adapters.lora import Lora
from t5x_lite.checkpoints import items as checkpoint_manifest
from t5x_lite.checkpoints import reading as checkpointing
from t5x_lite.checkpoints.init import BASE_FILE, Base, Init, Leaf, digests
from t5x_lite.checkpoints.items import write_step
from t5x_lite.checkpoints.reading import lazy_params
from t5x_lite.config import Experiment
from t5x_lite.config.file import to_json
from t5x_lite.core import trees
from t5x_lite.core.errors import InputError
from t5x_lite.core.files import new_directory
from t5x_lite.core.options import did_you_mean
from t5x_lite.core.remote import local_path
from t5x_lite.core.trees import LazyArray
from t5x_lite.data.vocabularies.byte_level import Bytes
from t5x_lite.data.vocabularies.loading import Vocabulary, load_vocabulary
from t5x_lite.data.vocabularies.tokenizer import Tokenizer
from t5x_lite.inference.delta_files import goes_along, open_delta
from t5x_lite.inference.loading import Step, find_step, learner_of, read_experiment
from t5x_lite.interop import hf
from t5x_lite.interop.adapters_heads import is_library
from t5x_lite.interop.adapters_library import read_library, write_library
from t5x_lite.interop.adapters_setups import is_setup, read_setup, write_setup
from t5x_lite.interop.encoder_checkpoints import (
    POOLER_FILE,
    Hosts,
    exported_head,
    head_modules,
    hosts_of,
    read_pooler_file,
    refuse_views,
    with_family,
)
from t5x_lite.interop.encoders import MODEL, SUFFIXES
from t5x_lite.interop.hf_export import (
    SOURCE_FILE,
    of_role,
    origin_name,
    source_file,
    tower_named,
    write_adapter_card,
)
from t5x_lite.interop.hub import find_source
from t5x_lite.interop.peft import CONFIG, Module, PeftFile, Site, base_change, head_of, read_peft
from t5x_lite.interop.peft_prompts import is_prefix, is_prompt, read_prefix, read_prompt, write_peft
from t5x_lite.interop.tokenizers import read_encoder_tokenizer, read_tokenizer
from t5x_lite.layouts import Encoder, Groups
from t5x_lite.models.base import ModelConfig
from t5x_lite.models.encoder import is_encoder
from t5x_lite.models.heads import HEADS, ClassHead, Head, Mlm
from t5x_lite.models.vector_heads import Dense, Role, as_model, dense_of, in_tower, tower_of
from t5x_lite.objectives.contrastive import DOT, Contrastive
from t5x_lite.objectives.learner import heads_of, views_of
from t5x_lite.objectives.task_heads import objective_for

Format = Literal["peft", "adapters"]

_logger = logging.getLogger(__name__)

_HUGGINGFACE = f"huggingface/{hf.CONFIG}"
_SUM = "sum"
"""Name of the exported adapter if several LoRAs are added into one."""
_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "spiece.model")
"""Names of tokenizer files that may be saved with an adapter."""
_OF_ADAPTER = (".json", ".safetensors", ".bin")
"""File name suffixes of the files of an adapter."""


def import_module(
    source: str | Path,
    destination: str | Path,
    *,
    base: str | Path,
    step: Step,
    name: str,
    revision: str | None,
) -> Path:
    """Import an adapter of PEFT or the library `adapters` as a t5x_lite checkpoint directory."""
    at_hub = find_source(source, revision=revision)
    sides = _sides_of(at_hub.directory)
    file = _read_file(sides.get("query", at_hub.directory))
    where = Path(find_step(local_path(base, what="base"), step=step))
    checkpoint_manifest.verify(where, "params", "files")
    files = checkpointing.step_files(where)
    experiment = read_experiment(where, files)
    if experiment.adapters.modules:
        raise InputError(
            f"base checkpoint {where} already has adapters; merge them with `t5x-lite merge` "
            "and pass the merged checkpoint"
        )
    refuse_views(where, views_of(experiment.model, experiment.objective))
    params = lazy_params(where)
    options: dict[str, Any] = {"files": files, "name": name, "where": where}
    if sides:
        params, experiment = _with_towers(params), _two_towers(experiment, where=where)
        fitted = _fitted_towers(
            sides, experiment, params=params, source=at_hub.directory, **options
        )
    elif experiment.objective.more_towers():
        raise InputError(
            f"{source} holds an adapter for one encoder, but checkpoint {where} has two "
            "encoders; pass a directory with "
            f"{' and '.join(f'{role}/' for role in get_args(Role))}, one adapter for each "
            "encoder"
        )
    else:
        fitted = _fitted(file, experiment, params=params, source=at_hub.directory, **options)
    made, module = fitted.experiment, fitted.module
    with new_directory(destination) as directory:
        place = Path(destination).absolute() / "files" / checkpointing.VOCABULARY_DIRECTORY
        kept = {name: content for name, content in files.items() if goes_along(name)}
        if fitted.vocabulary is not None:
            made = _with_vocabulary(made, fitted.vocabulary, place)
            kept = _replaced(kept, fitted.vocabulary)
        empty = Base.of({}, {}, base=where, steps=directory.parent)
        sources = {path: fitted.sources.get(path, path) for path in fitted.left}
        leaves = {path: leaf_of(theirs, params[path]) for path, theirs in sources.items()}
        contents = {
            **kept,
            checkpointing.CONFIG_FILE: to_json(made).encode(),
            BASE_FILE: dataclasses.replace(empty, arrays=leaves).content(),
            f"{file.library}/{file.config_file.name}": file.config_file.read_bytes(),
            **source_file(at_hub),
        }
        arrays = {path: _lazy(array) for path, array in module.arrays.items()}
        write_step(directory, contents, arrays)
    names = ", ".join(each.name for each in (module.adapter, *module.others))
    _logger.info("%s: imported adapter %s from %s", destination, names, source)
    return Path(destination)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Fitted:
    """Imported adapter, and the experiment config of its base model with the adapter."""

    experiment: Experiment
    module: Module
    left: list[str]
    vocabulary: Vocabulary | None
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict)


def _sides_of(directory: Path) -> dict[Role, Path]:
    """Return the adapter directories of the two encoders of a retriever, or {}."""
    found: dict[Role, Path] = {role: directory / role for role in get_args(Role)}
    if not any(path.is_dir() for path in found.values()):
        return {}
    if any(path.is_file() for path in directory.iterdir() if path.suffix in _OF_ADAPTER):
        return {}
    for role, path in found.items():
        if not path.is_dir():
            raise InputError(
                f"{directory}: the directory {role}/ with the adapter of the {role} encoder is "
                "missing; add it, or import the existing adapter directory separately"
            )
    return found


def _with_towers(params: Mapping[str, LazyArray]) -> dict[str, LazyArray]:
    """Return the arrays of a model, with a copy of its encoder as passage encoder."""
    model = {in_tower(p, "passage"): a for p, a in params.items() if p.startswith(MODEL)}
    return {**model, **params}


def _two_towers(experiment: Experiment, *, where: Path) -> Experiment:
    """Return the config of a retriever with two encoders that are copies of the base model."""
    objective = experiment.objective.with_two_towers()
    if objective.more_towers():
        return dataclasses.replace(experiment, objective=objective)
    head = dense_of(heads_of(experiment.objective, experiment.heads))
    if head is None:
        head = Dense(pooling="cls", normalize=False)
        _logger.warning(
            "%s does not define how text vectors are computed; assuming [CLS] states and dot "
            "products; set objective.pooling and objective.normalize if this is wrong",
            where,
        )
    temperature = {} if head.normalize else {"temperature": DOT["temperature"]}
    vectors = {"pooling": head.pooling, "normalize": head.normalize}
    objective = Contrastive(towers="two", **vectors, **temperature)
    pairs = {"task": "tasks.pairs:jsonl", "layout": Groups(), "pack": Groups.packs}
    data = dataclasses.replace(experiment.data, **pairs)
    return dataclasses.replace(experiment, objective=objective, data=data)


def _fitted_towers(
    sides: Mapping[Role, Path],
    experiment: Experiment,
    *,
    files: Mapping[str, bytes],
    params: Mapping[str, LazyArray],
    name: str,
    source: Path,
    where: Path,
) -> _Fitted:
    """Combine the adapters of a retriever's two encoders with their base model."""
    found: dict[Role, _Fitted] = {}
    for role, directory in sides.items():
        alone, own = of_role(experiment, params, role)
        options: dict[str, Any] = {"files": files, "params": own, "name": name, "where": where}
        found[role] = _fitted(_read_file(directory), alone, source=directory, **options)
        head = next((p for p in found[role].module.arrays if p.startswith(HEADS)), None)
        if head is not None:
            raise InputError(
                f"{directory}: the adapter contains the head {head}, but a retriever's encoder "
                "cannot have a head; import this adapter separately"
            )
    query, passage = found["query"], found["passage"]
    for what, ours, theirs in (
        ("adapters", query.experiment.adapters, passage.experiment.adapters),
        ("models", query.experiment.model, passage.experiment.model),
        ("vocabularies", _content_of(query.vocabulary), _content_of(passage.vocabulary)),
    ):
        if ours != theirs:
            shown = (
                f": {', '.join(query.experiment.adapters.add)} and "
                f"{', '.join(passage.experiment.adapters.add)}"
                if what == "adapters"
                else ""
            )
            raise InputError(
                f"{source}: query/ and passage/ have different {what}{shown}, but the encoders "
                "of a retriever must share method, model and vocabulary"
            )
    tower = tower_named(experiment, "passage")
    arrays = dict(query.module.arrays)
    arrays |= {in_tower(path, tower): array for path, array in passage.module.arrays.items()}
    made = dataclasses.replace(query.experiment, objective=experiment.objective)
    here = checkpointing.lazy_params(where)
    left = left_to_base(made, arrays, params, source=source, where=where)
    of_tower = [path for path in left if path not in here]
    sources = {path: own[1] for path in of_tower if (own := tower_of(path)) is not None}
    return _Fitted(
        experiment=made,
        module=dataclasses.replace(query.module, arrays=arrays),
        left=left,
        vocabulary=query.vocabulary,
        sources=sources,
    )


def _content_of(vocabulary: Vocabulary | None) -> Mapping[str, bytes]:
    return {} if vocabulary is None else vocabulary.files()


def _fitted(
    file: Any,
    experiment: Experiment,
    *,
    files: Mapping[str, bytes],
    params: Mapping[str, LazyArray],
    name: str,
    source: Path,
    where: Path,
) -> _Fitted:
    options: dict[str, Any] = {"files": files, "params": params, "name": name}
    options |= {"source": source, "where": where}
    if file.library != "adapters" or not file.kept():
        return _fit(file, experiment, **options)
    try:
        return _fit(file, experiment, **options)
    except InputError as error:
        fitted = _fit(file.without_kept(), experiment, **options)
        _logger.warning("%s: importing the adapter without its head: %s", source, error)
        return fitted


def _fit(
    file: Any,
    experiment: Experiment,
    *,
    files: Mapping[str, bytes],
    params: Mapping[str, LazyArray],
    name: str,
    source: Path,
    where: Path,
) -> _Fitted:
    kind, kept = model_type_of(files), file.kept()
    options: dict[str, Any] = {"model": experiment.model, "model_type": kind}
    heads = heads_of(experiment.objective, experiment.heads)
    head = head_of(file.config_file, file.head_config(), kept, heads=heads, **options)
    hosts = hosts_of(experiment.model, head, model_type=kind, where=where)
    norms = functools.cache(functools.partial(_norms, hosts, params))
    module = file.module(hosts, name=name, norms=norms)
    change = base_change(
        file.where,
        kept,
        hosts,
        model=experiment.model,
        scaled=_is_scaled(files, experiment.model),
        read=lambda path: params[path].read().astype(np.float32),
    )
    own = {**_pooler_arrays(files, params, hosts), **module.arrays, **change.arrays}
    module = dataclasses.replace(module, arrays=own)
    vocabulary = _vocabulary_of(source, files, experiment, rows=change.model.vocab_size)
    resized = change.model.vocab_size != experiment.model.vocab_size
    made = dataclasses.replace(experiment, model=change.model)
    made = _with_head(made, head or module.head, files=files, resized=resized)
    lines = tuple(map(write_module, (module.adapter, *module.others)))
    adapters = Adapters(add=lines, use=module.use)
    made = dataclasses.replace(
        made,
        data=dataclasses.replace(made.data, pack=made.data.pack and not adapters.unpackable),
        adapters=adapters,
        init=Init(checkpoint=str(where.absolute())),
        train=(),
    )
    left = left_to_base(made, module.arrays, params, source=source, where=where)
    if file.library == PeftFile.library:
        _warn_of_names(head, source=source, where=where)
    return _Fitted(experiment=made, module=module, left=left, vocabulary=vocabulary)


def _warn_of_names(head: Head | None, *, source: Path, where: Path) -> None:
    """Log a warning if neither an adapter nor its base has names for the classes of a head."""
    if isinstance(head, ClassHead) and head.num_classes > 1 and not head.labels:
        _logger.warning(
            "%s: the classes of head %s are named LABEL_0, LABEL_1, ..., because PEFT does not "
            "store class names and base checkpoint %s has none for %d classes; to set names, "
            "import the base from a transformers model with this head and with id2label in its "
            "config.json",
            *(source, head.name, where, head.num_classes),
        )


def _pooler_arrays(
    files: Mapping[str, bytes], params: Mapping[str, LazyArray], hosts: Hosts
) -> dict[str, np.ndarray]:
    name = f"huggingface/{POOLER_FILE}"
    if name not in files:
        return {}
    found = read_pooler_file(files[name])
    arrays = {}
    for piece in hosts.pieces:
        names = [each for each in (piece.name, *piece.aliases) if each in found]
        if names and piece.path not in params and found[names[0]].shape == piece.shape:
            arrays[piece.path] = piece.to_ours(found[names[0]]).astype(np.float32)
    return arrays


def _is_scaled(files: Mapping[str, bytes], model: ModelConfig) -> bool:
    """Return True if transformers multiplies the decoder's output by d_model**-0.5."""
    config = _of_json(files.get(_HUGGINGFACE, b"{}"))
    if config.get("model_type") in hf.MODEL_TYPES:
        return hf.output(config).scaled
    return hf.is_tied_t5(model)


def _vocabulary_of(
    source: Path, files: Mapping[str, bytes], experiment: Experiment, *, rows: int
) -> Vocabulary | None:
    """Return the vocabulary of an adapter that added tokens to the vocabulary, or None."""
    resized = rows != experiment.model.vocab_size
    own = any((source / file).is_file() for file in _TOKENIZERS)
    if not own:
        if resized:
            raise InputError(
                f"{source}: the embedding has {rows} rows, but the base has "
                f"{experiment.model.vocab_size} and the tokenizer is missing; copy the "
                "tokenizer's files into the directory"
            )
        return None
    if not resized and not (source / "added_tokens.json").is_file():  # no tokens were added
        return None
    with tempfile.TemporaryDirectory() as scratch:
        if is_encoder(experiment.model):
            pad_id = experiment.model.pad_id
            return read_encoder_tokenizer(source, vocab_size=rows, pad_id=pad_id)
        config = _of_json(files.get(_HUGGINGFACE, b"{}"))
        return read_tokenizer(
            source, config, vocab_size=rows, sentinels="hf", scratch=Path(scratch)
        )


def _with_vocabulary(made: Experiment, vocabulary: Vocabulary, place: Path) -> Experiment:
    is_bytes = isinstance(vocabulary, Bytes)
    data = dataclasses.replace(
        made.data,
        vocabulary=str(vocabulary.model_path) if is_bytes else str(place),
        extra_ids=0 if is_encoder(made.model) else vocabulary.extra_ids,
    )
    return dataclasses.replace(made, data=data)


def _replaced(files: Mapping[str, bytes], vocabulary: Vocabulary) -> dict[str, bytes]:
    start = f"{checkpointing.VOCABULARY_DIRECTORY}/"
    kept = {name: content for name, content in files.items() if not name.startswith(start)}
    return kept | {start + name: content for name, content in vocabulary.files().items()}


def _read_file(directory: Path) -> Any:
    if is_setup(directory):
        return read_setup(directory)
    if is_library(directory):
        return read_library(directory)
    if is_prefix(directory):
        return read_prefix(directory)
    return read_prompt(directory) if is_prompt(directory) else read_peft(directory)


def _with_head(
    base: Experiment, head: Head | None, *, files: Mapping[str, bytes], resized: bool
) -> Experiment:
    """Add a task head, and an objective that trains this head, to an experiment config."""
    if resized and (head is None or head.name != Mlm().name):
        others = tuple(each for each in base.heads if each.name != Mlm().name)
        base = dataclasses.replace(base, heads=others)
        if any(each.name == Mlm().name for each in _read(base)) and head is None:
            objective, task = objective_for(None, mask_id=0)
            layout = next(iter(objective.layouts), Encoder)()
            data = dataclasses.replace(base.data, task=task, layout=layout, pack=layout.packs)
            base = dataclasses.replace(base, objective=objective, data=data)
    if head is None or head in base.heads or head in _read(base):
        return base
    objective, task = objective_for(head, mask_id=_mask_id(head, files))
    layout = next(iter(objective.layouts), Encoder)()
    data = dataclasses.replace(base.data, task=task, layout=layout, pack=layout.packs)
    others = tuple(each for each in base.heads if each.name != head.name)
    return dataclasses.replace(base, objective=objective, heads=(*others, head), data=data)


def _mask_id(head: Head, files: Mapping[str, bytes]) -> int:
    """Return the id of the [MASK] token for a masked language model head; 0 for other heads."""
    if head.name != Mlm().name:
        return 0
    start = f"{checkpointing.VOCABULARY_DIRECTORY}/"
    with tempfile.TemporaryDirectory() as scratch:
        for name, content in files.items():
            if name.startswith(start):
                path = Path(scratch) / name.removeprefix(start)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        vocabulary = load_vocabulary(scratch, extra_ids=0)
        return vocabulary.mask_id if isinstance(vocabulary, Tokenizer) else 0


def _read(experiment: Experiment) -> tuple[Head, ...]:
    return tuple(heads_of(experiment.objective, experiment.heads).values())


def left_to_base(
    made: Experiment,
    arrays: Mapping[str, np.ndarray],
    params: Mapping[str, LazyArray],
    *,
    source: Path,
    where: Path,
) -> list[str]:
    """Check that an adapter fits its base model; return the paths of arrays in the base."""
    wanted = trees.flatten(learner_of(made).shapes)
    for path, array in arrays.items():
        shape = tuple(wanted[path].shape) if path in wanted else None
        if shape != array.shape:
            has = "has no such array" if shape is None else f"must have shape {shape}"
            raise InputError(
                f"{source}: the adapter array {path} has shape {array.shape}, but with the base "
                f"{where} the adapter {has}; pass the base that the adapter was trained on"
            )
    left = [path for path in wanted if path not in arrays]
    lacking = next((path for path in left if path.startswith(ADAPTERS)), None)
    if lacking is not None:
        raise InputError(
            f"{source}: the adapter has no array {lacking}, which its config and the base require"
        )
    for path in left:
        if path not in params:
            raise InputError(
                f"array {path} is missing in both the base checkpoint {where} and the adapter "
                "directory; import the base with the head that has this array, or save the adapter "
                "with the head in modules_to_save"
            )
        if params[path].shape != tuple(wanted[path].shape):
            raise InputError(
                f"base checkpoint {where}: the array {path} has shape {params[path].shape}, but "
                f"the adapter requires {tuple(wanted[path].shape)}"
            )
    return left


def leaf_of(path: str, array: LazyArray) -> Leaf:
    """Return the path and a digest of one array."""
    return Leaf(path, digests({path: array.read()})[path])


def _norms(hosts: Hosts, params: Mapping[str, LazyArray], site: Site) -> np.ndarray:
    """Return the column norms of a dense kernel in each layer, float32 [layers, outputs]."""
    kernel = params[hosts.paths[site]].read().astype(np.float32)
    return np.sqrt(np.sum(np.square(kernel), axis=-2))


def export_module(
    where: Path,
    target: Path,
    role: Role,
    *,
    files: Mapping[str, bytes],
    form: Format,
    name: str | None,
    head: bool,
    base_name: str | None,
    rank: int | None,
) -> Path:
    """Export the adapters of a model, or of one encoder of a retriever, to a directory."""
    experiment = read_experiment(where, files)
    if form == "peft" and (rank is not None or _is_sum(experiment, name)):
        options: dict[str, Any] = {"base_name": base_name, "rank": rank, "role": role}
        return export_sum(where, target, use=name, head=head, **options)
    tree = _composition(experiment) if form == "adapters" and name is None else None
    modules = {module.name: module for module in experiment.adapters.modules}
    chosen = (
        [_chosen(experiment, name, where=where)]
        if tree is None
        else [modules[each] for each in names_of((tree,))]
    )
    adapter = chosen[0]
    refuse_views(where, views_of(experiment.model, experiment.objective))
    left = Base.read(files, where=where)
    base = _base_name(files, left, experiment) if base_name is None else base_name
    if form == "peft" and base_name is None:
        _warn_of_base(base, role, where=where)
    tower = tower_named(experiment, role)
    experiment, params = of_role(experiment, lazy_params(where), role)
    if left is not None:
        left = dataclasses.replace(left, arrays=as_model(left.arrays, tower))
    _warn_of_projection(experiment, form, where=where)
    if form == "adapters":
        _refuse_trained(experiment, params, left, where=where)
        own = None if not head else head_for_export(experiment, where=where)
        return _export_library(
            target, chosen, tree, experiment, params, left, own, files, base=base, where=where
        )
    kept = None if not head else _trained_head(experiment, params, left, where=where)
    kind = model_type_of(files)
    hosts = hosts_of(
        experiment.model,
        kept or head_for_export(experiment, where=where),
        model_type=kind,
        where=where,
    )
    changed = _changed(experiment, params, left)
    paths = [path for path in params if path.startswith(f"{ADAPTERS}{adapter.name}/")]
    if kept is not None:
        paths += _own_modules(hosts, left)
    arrays = {path: params[path].read().astype(np.float32) for path in (*paths, *changed)}
    with new_directory(target) as directory:
        write_peft(
            directory,
            adapter,
            arrays,
            hosts,
            norms=functools.cache(functools.partial(_norms, hosts, params)),
            base=base,
            where=where,
            scaled=_is_scaled(files, experiment.model),
        )
        write_adapter_card(
            directory,
            library="peft",
            base=base,
            experiment=experiment,
            step=where,
            files=files,
        )
    _logger.info(
        "%s: exported adapter %s of checkpoint %s, for use with %s",
        target,
        adapter.name,
        where,
        base or "its base",
    )
    return target


def _warn_of_projection(experiment: Experiment, form: Format, *, where: Path) -> None:
    head = dense_of(heads_of(experiment.objective, experiment.heads))
    if head is not None and head.projection is not None:
        _logger.warning(
            "%s: skipping the projection of head %s, which the %s format cannot store; "
            "`t5x-lite export hf --sentence-transformers` exports it",
            *(where, head.name, form),
        )


def _is_sum(experiment: Experiment, name: str | None) -> bool:
    modules = {module.name: module for module in experiment.adapters.modules}
    if name in modules or (name is None and len(modules) == 1):
        adapter = modules[name] if name in modules else next(iter(modules.values()))
        return isinstance(adapter, Union) and all(isinstance(x, Lora) for x in adapter.members)
    used = [modules[each] for each in names_of(experiment.adapters.composition) if each in modules]
    return name is None and len(used) > 1 and all(isinstance(each, Lora | Union) for each in used)


def export_sum(
    where: Path,
    destination: Path,
    *,
    use: str | None = None,
    head: bool,
    base_name: str | None,
    rank: int | None,
    role: Role | None = None,
) -> Path:
    """Export adapters or other weight changes of a model as a single LoRA of PEFT.

    Without `rank`, the LoRA factors are concatenated, which is exact. Otherwise a singular value
    decomposition reduces the change of each kernel to that rank. alpha equals the rank, so PEFT's
    scale is 1.
    """
    opened = open_delta(where, use=use)
    base, params = opened.base()
    kept = (
        opened.files
        if checkpointing.CONFIG_FILE in opened.files
        else checkpointing.step_files(base)
    )
    files = dict(kept)
    experiment = read_experiment(where, files)
    experiment = dataclasses.replace(experiment, adapters=Adapters())
    refuse_views(where, views_of(experiment.model, experiment.objective))
    if role is None and experiment.objective.more_towers():
        with new_directory(destination) as directory:
            options = {"use": use, "head": head, "base_name": base_name, "rank": rank}
            for each in get_args(Role):
                export_sum(where, directory / each, role=each, **options)
        _logger.info("%s: wrote one directory for each encoder of the retriever", destination)
        return destination
    role = role or "query"
    tower = tower_named(experiment, role)
    experiment, params = of_role(experiment, params, role)
    _warn_of_projection(experiment, "peft", where=where)
    if opened.delta.config:
        names = ", ".join(module.name for module in opened.delta.config)
        raise InputError(
            f"{where}: the adapter {names} cannot be converted to a LoRA of PEFT; exclude it "
            "from the composition"
        )
    extra = dict(opened.delta.extra) if head else {}
    own = head_for_export(experiment, where=where)
    start = "" if own is None else f"{HEADS}{own.name}/"
    trained = own is not None and any(path.startswith(start) for path in extra)
    hosts = hosts_of(experiment.model, own, model_type=model_type_of(files), where=where)
    sites = {path: site for site, path in hosts.paths.items()}
    parts: dict[Site, LowRank] = {}
    for path, part in as_model(opened.delta.parts, tower).items():
        if path not in sites or not part.additive:
            raise InputError(
                f"{where}: the change of {path} cannot be converted to a LoRA of PEFT; write "
                "the complete model with `t5x-lite merge` and `t5x-lite export hf`"
            )
        if rank is None and not isinstance(part, LowRank):
            raise InputError(
                f"{where}: the change of {path} is a {type(part).__name__.lower()} array, but a "
                "LoRA needs a low-rank product; pass --rank R for the closest product of rank R"
            )
        parts[sites[path]] = part if rank is None else factored(part, rank)  # pyright: ignore[reportArgumentType]
    if not parts:
        raise InputError(
            f"{where}: cannot export a LoRA, because the delta changes no dense layer of the base"
        )
    whole = max(part.rank for part in parts.values())
    arrays: dict[str, np.ndarray] = {}
    for (stack, site), part in parts.items():
        a, b = (np.asarray(x, np.float32) for x in (part.a, part.b))
        pad = [(0, 0)] * (a.ndim - 1) + [(0, whole - part.rank)]
        below = f"{ADAPTERS}{_SUM}/{stack}/{site}"
        arrays[f"{below}/a"] = np.pad(a, pad)
        arrays[f"{below}/b"] = np.swapaxes(
            np.pad(np.swapaxes(np.float32(part.scale) * b, -1, -2), pad), -1, -2
        )
    if trained:
        arrays |= {
            piece.path: np.asarray(extra[piece.path], np.float32)
            for piece in hosts.pieces
            if piece.path in extra
        }
    adapter = Lora(name=_SUM, rank=whole, alpha=float(whole))
    origin = _origin(base) if base_name is None else base_name
    if base_name is None:
        _warn_of_base(origin, role, where=where)
    with new_directory(destination) as directory:
        write_peft(
            directory,
            adapter,
            arrays,
            hosts,
            norms=functools.cache(functools.partial(_norms, hosts, params)),
            base=origin,
            where=where,
        )
        write_adapter_card(
            directory,
            library="peft",
            base=origin,
            experiment=experiment,
            step=where,
            files=opened.files,
        )
    _logger.info(
        "%s: exported %s as one LoRA of rank %d, for use with %s",
        *(destination, where, whole, origin or "its base"),
    )
    return destination


def _changed(
    experiment: Experiment, params: Mapping[str, LazyArray], left: Base | None
) -> list[str]:
    """Return the paths of model arrays that were trained, or that the base checkpoint lacks."""
    learner = learner_of(experiment)
    of_base = params if left is None else left.arrays
    return [
        path
        for path in params
        if path.startswith(MODEL) and (path not in of_base or learner.trains(path))
    ]


def _export_library(
    destination: Path,
    adapters: Sequence[Adapter],
    tree: Block | None,
    experiment: Experiment,
    params: Mapping[str, LazyArray],
    left: Base | None,
    head: Head | None,
    files: Mapping[str, bytes],
    *,
    base: str,
    where: Path,
) -> Path:
    kind = model_type_of(files)
    hosts = hosts_of(experiment.model, None, model_type=kind, where=where)
    starts = [f"{ADAPTERS}{adapter.name}/" for adapter in adapters]
    starts += [f"{ADAPTERS}{part}/" for part in trained_of((tree,) if tree else ())]
    wanted = tuple(trees.flatten(learner_of(experiment).shapes))
    heads = [] if head is None else [p for p in wanted if p.startswith(f"{HEADS}{head.name}/")]
    of_base = {} if left is None else left.arrays
    if head is not None and all(path in of_base for path in heads):  # the head was not trained
        head, heads = None, []
    elif head is not None and not all(path in params for path in heads):
        _logger.warning(
            "%s: skipping head %s, because the checkpoint has only some of the head's parameters",
            where,
            head.name,
        )
        head, heads = None, []
    paths = [path for path in params if path.startswith(tuple(starts))]
    arrays = {path: params[path].read().astype(np.float32) for path in (*paths, *heads)}
    options = {"base": base, "head": head, "where": where}
    with new_directory(destination) as directory:
        if tree is None:
            written = write_library(directory, adapters[0], arrays, hosts, **options)
        else:
            written = write_setup(directory, tree, adapters, arrays, hosts, **options)
        write_adapter_card(
            directory,
            library="adapters",
            base=base,
            experiment=experiment,
            step=where,
            files=files,
        )
    if head is not None and not written:
        _logger.warning(
            "%s: skipping head %s, which the library `adapters` does not support", where, head.name
        )
    names = ", ".join(adapter.name for adapter in adapters)
    _logger.info(
        "%s: exported adapter %s of checkpoint %s, for use with %s",
        destination,
        names,
        where,
        base or "its base",
    )
    return destination


def _composition(experiment: Experiment) -> Block | None:
    match experiment.adapters.composition:
        case (Block() as tree,):
            return tree
    return None


def _chosen(experiment: Experiment, name: str | None, *, where: Path) -> Adapter:
    modules = {module.name: module for module in experiment.adapters.modules}
    if not modules:
        raise InputError(
            f"checkpoint {where} has no adapter; export the model with `t5x-lite export hf`"
        )
    if name is None and len(modules) > 1:
        raise InputError(
            f"checkpoint {where} has several adapters; select one of {', '.join(modules)} "
            "with --name"
        )
    chosen = next(iter(modules)) if name is None else name
    if chosen not in modules:
        raise InputError(
            f"checkpoint {where} has no adapter {chosen!r}{did_you_mean(chosen, modules)}; it has "
            f"{', '.join(modules)}"
        )
    return modules[chosen]


def _refuse_trained(
    experiment: Experiment, params: Mapping[str, LazyArray], left: Base | None, *, where: Path
) -> None:
    """Raise InputError if arrays of the base model were trained with the adapter."""
    if changed := _changed(experiment, params, left):
        raise InputError(
            f"checkpoint {where}: {changed[0]} was trained together with the adapter, but the "
            "library `adapters` cannot store it; export the merged model with `t5x-lite export "
            "hf`"
        )


def head_for_export(experiment: Experiment, *, where: Path) -> Head | None:
    """Return the encoder head that `t5x-lite export hf` exports, or None."""
    if not is_encoder(experiment.model):
        return None
    _, family = with_family(experiment.model, where=where)
    return exported_head(experiment, family, None, where=where)


def _trained_head(
    experiment: Experiment, params: Mapping[str, LazyArray], base: Base | None, *, where: Path
) -> Head | None:
    """Return the task head that was trained with an adapter, or None."""
    head = head_for_export(experiment, where=where)
    if head is None:
        return None
    own = [path for path in params if path.startswith(f"{HEADS}{head.name}/")]
    if base is not None and all(path in base.arrays for path in own):
        return None
    if head.name not in SUFFIXES:
        raise InputError(
            f"checkpoint {where}: head {head.name} was trained with the adapter, but saving it "
            "in modules_to_save would also save the base's embedding; pass --no-head to export "
            "without the head"
        )
    return head


def _own_modules(hosts: Hosts, base: Base | None) -> list[str]:
    left = {} if base is None else base.arrays
    own = head_modules([piece for piece in hosts.pieces if piece.path not in left])
    return [piece.path for piece in hosts.pieces if head_modules([piece])[0] in own]


def _base_name(files: Mapping[str, bytes], base: Base | None, experiment: Experiment) -> str:
    """Return base_model_name_or_path of PEFT: the hub name or the path of the base model."""
    said = _of_json(files.get(f"{PeftFile.library}/{CONFIG}", b"{}")).get("base_model_name_or_path")
    if isinstance(said, str) and said:
        return said
    checkpoint = base.checkpoint if base is not None else str(experiment.init.checkpoint or "")
    return _origin(Path(checkpoint)) if checkpoint else ""


def _warn_of_base(base: str, role: Role, *, where: Path) -> None:
    """Log a warning, once for a retriever, if an export does not name its base model."""
    if not base and role == "query":
        _logger.warning(
            "checkpoint %s: base_model_name_or_path is empty in the exported adapter_config.json, "
            "because the source of the base model is unknown; set it to the base's Hub name or "
            "to the directory of `t5x-lite export hf` with --base-name",
            where,
        )


def _origin(checkpoint: Path) -> str:
    """Return the hub name or directory that a base model was imported from; "" if unknown."""
    path = checkpoint / "files" / SOURCE_FILE
    try:
        if not path.is_file():
            path = Path(find_step(checkpoint)) / "files" / SOURCE_FILE
        return origin_name({SOURCE_FILE: path.read_bytes()})
    except (InputError, OSError):  # it was moved, or trained here
        return ""


def model_type_of(files: Mapping[str, bytes]) -> str | None:
    """Return the Hugging Face model_type of an imported model, or None."""
    kind = _of_json(files.get(_HUGGINGFACE, b"{}")).get("model_type")
    return kind if isinstance(kind, str) else None


def _of_json(content: bytes) -> dict[str, Any]:
    """Parse a JSON object; return {} for invalid content."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _lazy(array: np.ndarray) -> LazyArray:
    return LazyArray(array.shape, np.dtype(np.float32), lambda: array)
