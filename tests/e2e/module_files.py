"""Modules, differences and sentence encoders of other libraries, and deltas: made, and read."""

import functools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.e2e.reader import Reader

_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def _scratch() -> Path:
    """A directory until the process ends."""
    _KEPT.append(tempfile.TemporaryDirectory())
    return Path(_KEPT[-1].name)


@functools.cache
def _bert() -> Path:
    """A BERT of two layers and 12 d_model, as a checkpoint."""
    from tests.encoder_checkpoint import write_checkpoint

    return write_checkpoint(_scratch(), "bert")


@functools.cache
def _host(name: str) -> tuple[Path, dict[str, np.ndarray]]:
    """A model of random parameters, as a checkpoint, and its arrays."""
    from tests.adapters.delta_directories import write_base

    return write_base(_scratch() / "base", name)


EVERY = 25
"""Of so many files one is imported and written; the others are read."""


def _importing(base: Callable[[], Path], *names: str) -> Callable[[Path], None]:
    """Read each directory that differs from the first time."""
    seen: dict[str, list[bytes]] = {}
    count = 0

    def read(directory: Path) -> None:
        nonlocal count
        for name in names:
            now = [p.read_bytes() for p in sorted((directory / name).rglob("*")) if p.is_file()]
            if seen.get(name) == now:
                continue
            seen.setdefault(name, now)
            count += 1
            if count % EVERY and count > len(names):
                _read_module(directory / name, base())
                continue
            from t5x_lite.commands.weights import import_adapter

            with tempfile.TemporaryDirectory() as scratch:
                import_adapter(directory / name, Path(scratch) / name, base=base())

    return read


@functools.cache
def _parts_of(base: Path) -> tuple[Any, Any, Any]:
    """A checkpoint's experiment, its layers and its parameters."""
    from t5x_lite.checkpoints import reading
    from t5x_lite.inference.loading import read_experiment
    from t5x_lite.interop import adapter_checkpoints
    from t5x_lite.interop.encoder_checkpoints import hosts_of

    files = reading.step_files(base)
    experiment, kind = read_experiment(base, files), adapter_checkpoints.model_type_of(files)
    hosts = hosts_of(experiment.model, None, model_type=kind, where=base)
    return experiment, hosts, reading.lazy_params(base)


def _read_module(directory: Path, base: Path) -> None:
    """What `import_adapter` does before it writes."""
    from t5x_lite.adapters.grammar import parse_module, write_module
    from t5x_lite.interop import adapter_checkpoints
    from t5x_lite.interop.peft import head_of
    from t5x_lite.objectives.learner import heads_of

    experiment, hosts, params = _parts_of(base)
    file = adapter_checkpoints._read_file(directory)
    heads = heads_of(experiment.objective, experiment.heads)
    head_of(file.config_file, file.config, file.kept(), model=experiment.model, model_type="bert",
            heads=heads)  # fmt: skip
    norms = functools.partial(adapter_checkpoints._norms, hosts, params)
    module = file.module(hosts, name="adapter", norms=norms)
    for adapter in (module.adapter, *module.others):
        parse_module(write_module(adapter))
    for array in module.arrays.values():
        np.asarray(array)


def _make_peft(base: Path) -> None:
    from tests.interop.peft_files import IA3, LORA, bert_ia3, bert_lora, write

    patterns = {"target_modules": r".*\.(query|value)", "rank_pattern": {"query": 2, r"1\..*": 2},
                "alpha_pattern": {"value": 4}}  # fmt: skip
    write(base / "lora", {**LORA, **patterns}, bert_lora(size=12))
    write(base / "ia3", IA3, bert_ia3(size=12, d_ff=20))


def _make_library(base: Path) -> None:
    from tests.interop import test_adapters_library as library
    from tests.interop.peft_files import random

    shapes = {}
    for layer in range(2):
        start = f"bert.encoder.layer.{layer}.output.adapters.sst.adapter_"
        shapes |= {f"{start}down.0.weight": (3, 12), f"{start}down.0.bias": (3,),
                   f"{start}up.weight": (12, 3), f"{start}up.bias": (12,)}  # fmt: skip
    library.write(base / "bottleneck", "sst", library.BN, random(shapes))


@functools.cache
def _golden() -> dict[str, Any]:
    from tests.adapters.test_goldens import GOLDEN

    with np.load(GOLDEN / "directories.npz") as file:
        return {name: file[name] for name in file.files}


@functools.cache
def _of_golden() -> Path:
    """The model of the library's compositions, as a checkpoint."""
    from t5x_lite.commands.weights import import_hf
    from tests.interop.test_adapters_library import write_tensors

    theirs = _scratch()
    (theirs / "config.json").write_text(str(_golden()["config"]))
    own = {k.removeprefix("base/"): x for k, x in _golden().items() if k.startswith("base/")}
    write_tensors(theirs / "model.safetensors", own)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijk"]
    (theirs / "vocab.txt").write_text("\n".join(words) + "\n")
    import_hf(theirs, theirs / "ours")
    return theirs / "ours"


def _make_compositions(base: Path) -> None:
    from tests.interop.test_adapters_setups import saved

    for name in ("setup", "mam"):
        saved(_golden(), name, base / name)


def _make_sft(base: Path) -> None:
    from t5x_lite.interop.sft import export_sft
    from tests.interop.test_sft_interchange import sparse_run

    run, _ = sparse_run(_scratch() / "run", _host("bert"))
    export_sft(run, base / "sft")


@functools.cache
def _table() -> Any:
    """Shapes and names of the tensors of the model that a difference is from."""
    from t5x_lite.interop.adapter_checkpoints import head_for_export
    from t5x_lite.interop.sft import table_of

    base = _host("bert")[0]
    experiment = _parts_of(base)[0]
    head = head_for_export(experiment, where=base)
    return table_of(experiment.model, head, model_type=None, where=base)


def _read_sft(base: Path) -> None:
    from t5x_lite.interop.sft import read_sft

    read_sft(base / "sft", *_table())


def _make_delta(base: Path) -> None:
    from t5x_lite.inference import delta_files
    from tests.adapters.delta_directories import write_run

    run, _ = write_run(_scratch() / "run", "bert", _host("bert"), "m = lora(r=2)")
    delta_files.save(delta_files.load(run), base / "delta")


def _read_delta(base: Path) -> None:
    from t5x_lite.inference import delta_files

    delta = delta_files.load(base / "delta")
    for part in delta.parts.values():
        np.asarray(getattr(part, "a", 0))


def _sign_delta(base: Path) -> None:
    from t5x_lite.checkpoints import items

    items.write(base / "delta")


def _make_sentences(base: Path) -> None:
    from safetensors.numpy import save_file

    from t5x_lite.interop.retrievers import sentence_files
    from t5x_lite.models.vector_heads import Dense
    from tests.encoder_checkpoint import _BERT, goldens

    goldens.write_release(goldens.read("bert"), base / "st")
    base = base / "st"
    (base / "vocab.txt").write_text("\n".join([*_BERT, *"abcdefghijklmno"]) + "\n")
    (base / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    head = Dense(pooling="mean", normalize=True, projection=4)
    for name, content in sentence_files(head, d_model=12, max_length=8).items():
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_bytes(content)
    tensors = {"linear.weight": np.ones((4, 12), np.float32), "linear.bias": np.ones(4, np.float32)}
    save_file(tensors, base / "2_Dense" / "model.safetensors")
    modules = json.loads((base / "modules.json").read_text())
    assert [module["path"] for module in modules][1:3] == ["1_Pooling", "2_Dense"]


def _read_sentences(base: Path) -> None:
    from t5x_lite.config.file import from_json, to_json
    from t5x_lite.core.errors import InputError
    from t5x_lite.interop.encoder_checkpoints import family_of
    from t5x_lite.interop.encoders import read_encoder
    from t5x_lite.interop.hf import CONFIG, read_config
    from t5x_lite.interop.retrievers import projection_of, read_sentences, sentence_files

    directory = base / "st"
    config = read_config(directory)
    if (family := family_of(config)) is None:
        raise InputError("another family, as import_hf says")
    source = read_encoder(family, directory, config, where=directory / CONFIG)
    head = read_sentences(directory, d_model=source.model.d_model, lowers=True)
    projection_of(directory, d_model=source.model.d_model)
    if head is not None:
        assert from_json(to_json(head), source="head") == head
        sentence_files(head, d_model=source.model.d_model, max_length=8)


_MODULE = {"*.json": "json", "*.safetensors": "safetensors", "*.bin": "archive"}
READERS = {
    "PEFT": Reader(_make_peft, _importing(_bert, "lora", "ia3"), _MODULE),
    "adapters": Reader(_make_library, _importing(_bert, "bottleneck"), _MODULE),
    "adapter compositions": Reader(
        _make_compositions, _importing(_of_golden, "setup", "mam"), _MODULE
    ),
    "composable-sft": Reader(_make_sft, _read_sft, _MODULE),
    "delta": Reader(
        _make_delta, _read_delta, {"*.json": "json", "_METADATA": "json"}, _sign_delta
    ),
    "sentence-transformers": Reader(
        _make_sentences,
        _read_sentences,
        {"modules.json": "json", "config_sentence_transformers.json": "json",
         "sentence_bert_config.json": "json", "1_Pooling/*.json": "json", "2_Dense/*.json": "json",
         "config.json": "json", "*.safetensors": "safetensors"},
    ),
}  # fmt: skip
