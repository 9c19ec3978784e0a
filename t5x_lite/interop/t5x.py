"""Import of T5X checkpoints (google-research/t5x and flaxformer).

    checkpoint = read_t5x("t5_1_1_small/checkpoint_1000000")
    checkpoint.config                        T5Config(d_model=512, ...), from the arrays' shapes
    checkpoint.array("lm_head/kernel")       reads the array in t5x_lite's layout

Names and layouts (N layers, D d_model, H heads, K d_kv, F d_ff):

    examples/t5, flaxformer                        encoder/layers_0/mlp/wo/kernel    [F, D]
    examples/scalable_t5, its layers scanned       encoder/layers/mlp/wo/kernel      [F, N, D]
    flaxformer, scanned (the released umT5)        encoder/encoder/mlp/wo/kernel     [F, N, D]

    attention kernels                              [D, H K] or [D, H, K]; out [H K, D] or [H, K, D]
    relative bias, one for a stack                 encoder/relpos_bias/rel_embedding [H, buckets]
    relative bias, one for a layer                 .../relpos_bias/ or .../relative_posemb/ in each

T5 1.0, 1.1 and LM-adapted, mT5, ByT5, umT5, Flan-T5 and T0 have these names. Models with other
tensors (LongT5's local attention, the experts of Switch) and checkpoints without an encoder raise
an error that names the tensors. A checkpoint stores no hyperparameters: the dropout rate and the
maximum distance of the relative bias have T5's defaults unless the caller sets them.

A checkpoint is a directory checkpoint_N in one of three layouts (t5x checkpoints.py):

    checkpoint                        T5X: an index in Flax's msgpack. Its leaves are arrays,
    target.encoder.layers_0.../       or TensorStore specs of zarr folders in the same directory
    state/checkpoint                  Orbax until 2024: an index. A leaf with its own folder
    state/target.encoder.../          is the string "PLACEHOLDER://target.encoder..."
    state/_METADATA, ...              Orbax since then, read by Orbax

`read_t5x` reads only names and shapes; arrays are read later, one by one. The parameters are the
tree `target` of the index; optimizer state and data position are ignored. In the first two layouts
the directory may be gs://bucket/path.
"""

import contextlib
import dataclasses
import functools
import math
import os
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import tensorstore as ts
from etils import epath
from orbax.checkpoint import msgpack_utils

from t5x_lite.checkpoints.items import check_chunks
from t5x_lite.core import trees
from t5x_lite.core.errors import InputError
from t5x_lite.interop.rules import (
    LAYER,
    Piece,
    Rule,
    Source,
    check_finite,
    check_names,
    check_shape,
    pieces,
)
from t5x_lite.models.t5 import T5Config
from t5x_lite.nn.dense import FEED_FORWARDS
from t5x_lite.nn.slots import shapes

INDEX = "checkpoint"
_METADATA = "_METADATA"
_OCDBT = "manifest.ocdbt"
_PLACEHOLDER = "PLACEHOLDER://"
_STATE = "state"
_MOST_COMPRESSED = {None: 1, "gzip": 1100, "zlib": 1100}
"""Maximum ratio of an array's size to the size of its files, by compressor."""
_MOST_COMPRESSED_BY_OTHERS = 50_000
_TENSORFLOW = b"model_checkpoint_path"
# "optimizer" is t5x's; "_optimizer" and "params" are from train states saved directly.
_TARGETS = (("optimizer", "target"), ("_optimizer", "target"), ("target",), ("params",))


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """Array of a T5X checkpoint on disk.

    Attributes:
      shape: shape in the checkpoint.
      dtype: dtype of the array that `read` returns.
      read: function (preferred outermost axis in memory, or None) -> array; raises InputError for
        damaged files.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[int | None], np.ndarray]


def find_checkpoint(source: str | Path, *, step: int | None = None) -> str:
    """Return the directory checkpoint_N of a step, by default of the last step."""
    text = str(source).rstrip("/")
    if text.startswith("gs://"):
        return text if step is None else f"{text}/checkpoint_{step}"
    directory = Path(source)
    if directory.name == INDEX and directory.is_file():
        directory = directory.parent
    if not directory.is_dir():
        raise InputError(f"t5x checkpoint {source}: no such directory")
    names = (re.fullmatch(r"checkpoint_(\d+)", path.name) for path in directory.iterdir())
    steps = sorted(int(match[1]) for match in names if match)
    if step is not None and step not in steps and directory.name != f"checkpoint_{step}":
        raise InputError(f"t5x checkpoint {source} has no step {step}; its steps are {steps}")
    if not steps:
        return str(directory)
    return str(directory / f"checkpoint_{steps[-1] if step is None else step}")


def read_target(directory: str) -> dict[str, StoredTensor]:
    """Return the parameters of a T5X checkpoint by path, such as "encoder/layers_0/mlp/wi"."""
    for folder in (directory, f"{directory}/{_STATE}"):
        store = _open_store(folder)
        index = _content(store, INDEX, folder)
        # If there is an Orbax database of all arrays, the folders in the index do not exist.
        if index is not None and _content(store, _OCDBT, folder) is None:
            return _indexed(folder, index)
        if _content(store, _METADATA, folder) is not None:
            return _orbax(folder)
    raise InputError(
        f"t5x checkpoint {directory}: contains none of the files {INDEX!r}, {_STATE}/{INDEX} "
        f"and {_STATE}/{_METADATA}; pass a directory checkpoint_N that t5x wrote, or its parent "
        "directory"
    )


def _kvstore(directory: str) -> dict[str, Any]:
    bucket = re.fullmatch(r"gs://([^/]+)/?(.*)", directory)
    if bucket:
        return {"driver": "gcs", "bucket": bucket[1], "path": f"{bucket[2]}/"}
    return {"driver": "file", "path": f"{Path(directory).absolute()}/"}


def _open_store(directory: str) -> ts.KvStore:
    with _reading(directory):
        return ts.KvStore.open(_kvstore(directory)).result()


def _content(store: ts.KvStore, name: str, where: str) -> bytes | None:
    """Return a file's content, or None if it does not exist."""
    with _reading(f"{where}/{name}"):
        found = store.read(name).result()
    return found.value if found.state == "value" else None


@contextlib.contextmanager
def _reading(where: str) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        reason = textwrap.shorten(str(error).partition(" [tensorstore_spec")[0], 200)
        raise InputError(f"t5x checkpoint {where}: unreadable ({reason})") from error


def _target(where: str, contents: Any) -> tuple[tuple[str, ...], Mapping[str, Any]]:
    """Return the keys and the content of the parameter tree in a T5X checkpoint's index."""
    for keys in _TARGETS:
        found = contents
        for key in keys:
            found = found.get(key) if isinstance(found, Mapping) else None
        if isinstance(found, Mapping) and found:
            return keys, found
    raise InputError(f"t5x checkpoint {where}: contains no parameters (no tree 'target')")


# t5x's own layout, and Orbax's old layout


def _indexed(directory: str, index: bytes) -> dict[str, StoredTensor]:
    where = f"{directory}/{INDEX}"
    if index.startswith(_TENSORFLOW):
        raise InputError(
            f"t5x checkpoint {where}: this is a checkpoint of Mesh TensorFlow; convert it with "
            "t5x's convert_tf_checkpoint first, or import the Hugging Face release"
        )
    with _reading(where):
        contents = msgpack_utils.msgpack_restore(index)
    if isinstance(contents, Mapping) and contents.get("version") == 1:
        raise InputError(
            f"t5x checkpoint {where}: format version 1 is not supported, only 2 and later"
        )
    leaves = dict(_leaves(_target(where, contents)[1]))
    # All are opened in parallel, because each waits for a small file, possibly in a bucket.
    opened = {}
    for path, leaf in leaves.items():
        if not isinstance(leaf, np.ndarray):
            with _reading(f"{where}: {path}"):
                opened[path] = ts.open(_zarr_spec(where, path, leaf, directory), open=True)
    tensors = {}
    for path, leaf in leaves.items():
        if isinstance(leaf, np.ndarray):
            tensors[path] = StoredTensor(leaf.shape, leaf.dtype, functools.partial(_given, leaf))
            continue
        with _reading(f"{directory}: {path}"):
            stored = opened[path].result()
            dtype = np.dtype(stored.dtype.numpy_dtype)
            _check_stored(stored, dtype)
        # Version 2 wrote the bits of bfloat16 as integers.
        dtype = np.dtype(jnp.bfloat16) if dtype == np.uint16 else dtype
        read = functools.partial(_read_zarr, f"{directory}: {path}", stored, dtype)
        tensors[path] = StoredTensor(tuple(stored.shape), dtype, read)
    return tensors


def _check_stored(stored: ts.TensorStore, dtype: np.dtype) -> None:
    """Raise ValueError if an array's files are too small for its shape."""
    spec: Any = stored.spec().to_json()
    metadata = spec.get("metadata", {})
    compressor = (metadata.get("compressor") or {}).get("id")
    if "codecs" in metadata:  # zarr3 chains several codecs
        compressor = "codecs"
    chunk = [length or 1 for length in stored.chunk_layout.read_chunk.shape or ()]
    size = max(math.prod(stored.shape), math.prod(chunk)) * dtype.itemsize
    store: Any = stored.kvstore
    folder = store.spec().to_json()
    files = _bytes_below(folder["path"]) if folder["driver"] == "file" else None
    _check_size(size, files, _MOST_COMPRESSED.get(compressor, _MOST_COMPRESSED_BY_OTHERS))


def _check_size(size: int, files: int | None, most: int) -> None:
    """Raise ValueError if an array is too large for its files or for the memory."""
    if files is not None and size > files * most:
        raise ValueError(
            f"an array of this shape requires {size} bytes, but its files have only {files} bytes"
        )
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if size > memory:
        raise ValueError(
            f"an array of this shape requires {size} bytes, but this machine has only {memory} "
            "bytes of memory"
        )


def _bytes_below(directory: str) -> int:
    return sum(path.stat().st_size for path in Path(directory).rglob("*") if path.is_file())


def _given(array: np.ndarray, outermost: int | None) -> np.ndarray:
    del outermost
    return array


def _read_zarr(
    where: str, stored: ts.TensorStore, dtype: np.dtype, outermost: int | None
) -> np.ndarray:
    axis = outermost or 0
    with _reading(where):
        # A scanned kernel of XXL has 4 GB: it is transposed while reading, not copied afterwards.
        moved = stored[ts.d[axis].transpose[0]] if stored.rank else stored
        array = moved.read().result().view(dtype)
    return np.moveaxis(array, 0, axis) if stored.rank else array


def _is_spec(leaf: Any) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(leaf, Mapping) and {"driver", "kvstore"} <= leaf.keys()


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and not _is_spec(value):
            yield from _leaves(value, f"{path}/")
        elif isinstance(value, np.generic | int | float) and not isinstance(value, bool):
            yield path, np.asarray(value)
        elif value is not None:
            yield path, value


def _zarr_spec(where: str, path: str, leaf: Any, directory: str) -> dict[str, Any]:
    """Return TensorStore's spec to read a parameter."""
    if _is_spec(leaf):
        # TensorStore before 0.1.14 wrote the path outside the kvstore.
        store = leaf["kvstore"] if isinstance(leaf["kvstore"], Mapping) else {}
        driver, folder = leaf["driver"], store.get("path", leaf.get("path", ""))
    elif isinstance(leaf, str) and leaf.startswith(_PLACEHOLDER):
        driver, folder = "zarr", leaf.removeprefix(_PLACEHOLDER)
    else:
        raise InputError(
            f"t5x checkpoint {where}: {path} is neither an array nor the location of an array"
        )
    name = str(folder).rstrip("/").rpartition("/")[2]
    if driver not in ("zarr", "zarr3") or name in ("", ".", ".."):
        raise InputError(
            f"t5x checkpoint {where}: the array {path} must be in a zarr folder, got {driver} "
            f"{folder!r}"
        )
    store = _kvstore(directory)
    return {
        "driver": driver,
        "kvstore": {**store, "path": f"{store['path']}{name}/"},
        # A missing chunk would be read as zeros; t5x also writes the chunks that are all zero.
        "fill_missing_data_reads": False,
    }


# Orbax


def _orbax(directory: str) -> dict[str, StoredTensor]:
    handler = ocp.PyTreeCheckpointHandler()
    path = epath.Path(directory)
    path = path if directory.startswith("gs://") else path.absolute()
    with _reading(directory):
        contents = handler.metadata(path).tree
    keys, tree = _target(directory, contents)
    tensors = dict(_orbax_tensors(handler, path, tree, keys))
    # In a database of all arrays, the bytes cannot be assigned to one array.
    files = None if directory.startswith("gs://") else _bytes_below(directory)
    for name, tensor in tensors.items():
        with _reading(f"{directory}: {name}"):
            size = math.prod(tensor.shape) * tensor.dtype.itemsize
            _check_size(size, files, _MOST_COMPRESSED_BY_OTHERS)
    return tensors


def _orbax_tensors(
    handler: ocp.PyTreeCheckpointHandler,
    directory: Any,
    tree: Mapping[str, Any],
    root: tuple[str, ...],
    keys: tuple[str, ...] = (),
) -> Iterator[tuple[str, StoredTensor]]:
    for key, value in tree.items():
        below = (*keys, str(key))
        if isinstance(value, Mapping):
            yield from _orbax_tensors(handler, directory, value, root, below)
        elif getattr(value, "shape", None) is not None:
            with _reading(str(directory)):
                check_chunks("/".join(below), value)
            read = functools.partial(_read_orbax, handler, directory, (*root, *below))
            dtype = np.dtype(value.dtype)
            yield "/".join(below), StoredTensor(tuple(value.shape), dtype, read)


def _read_orbax(
    handler: ocp.PyTreeCheckpointHandler,
    directory: Any,
    keys: Sequence[str],
    outermost: int | None,
) -> np.ndarray:
    del outermost
    item: Any = 0
    restore: Any = ocp.RestoreArgs(restore_type=np.ndarray)
    for key in reversed(keys):
        item, restore = {key: item}, {key: restore}
    with _reading(f"{directory}: {'/'.join(keys)}"):
        args = ocp.args.PyTreeRestore(item=item, restore_args=restore, partial_restore=True)
        array: Any = handler.restore(directory, args=args)
        for key in keys:
            array = array[key]
        return np.asarray(array)


_EMBEDDING = "token_embedder/embedding"
_HEAD = "decoder/logits_dense/kernel"
_NORMS = {
    "encoder": {"attention": "pre_attention_layer_norm", "mlp": "pre_mlp_layer_norm"},
    "decoder": {
        "self_attention": "pre_self_attention_layer_norm",
        "cross_attention": "pre_cross_attention_layer_norm",
        "mlp": "pre_mlp_layer_norm",
    },
}
_ATTENTIONS = {
    "encoder": {"attention": "attention"},
    "decoder": {
        "self_attention": "self_attention",
        "cross_attention": "encoder_decoder_attention",
    },
}
_SCAN_AXIS = 1
"""Layer axis of arrays with all layers: param_scan_axis of scalable_t5 and flaxformer's T5."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class T5XCheckpoint(Source):
    """T5X checkpoint of a T5 model.

    Attributes:
      config: model config, derived from the shapes.
      step: training step in the directory name checkpoint_N, or None for other names.
    """

    config: T5Config
    step: int | None = None

    def read(self, piece: Piece) -> np.ndarray:
        ours = piece.to_ours(self.tensors[piece.name].read(piece.rule.stack_axis))
        check_finite(self.where, piece.name, ours)
        return ours


def read_t5x(source: str | Path, *, step: int | None = None, **fields: Any) -> T5XCheckpoint:
    """Read the tensor names and shapes of a T5X checkpoint; load arrays only when needed."""
    directory = find_checkpoint(source, step=step)
    where = f"t5x checkpoint {directory}"
    tensors = read_target(directory)
    stacks = [_find_stack(where, name, tensors) for name in ("encoder", "decoder")]
    sizes = _sizes(where, stacks, tensors)
    try:
        config = T5Config(**{**sizes, **fields})
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    abstract = shapes(lambda rngs: config.build(rngs=rngs))[1]
    ours = {path: tuple(leaf.shape) for path, leaf in trees.flatten(abstract).items()}
    wanted = pieces(table(config, stacks), ours)
    check_names(where, wanted, tensors)
    for piece in wanted:
        tensor = tensors[piece.name]
        check_shape(where, piece, tensor.shape)
        if not jnp.issubdtype(tensor.dtype, jnp.floating):
            raise InputError(
                f"{where}: {piece.name} has dtype {tensor.dtype}, but weights must be "
                "floating-point"
            )
    number = re.fullmatch(r"checkpoint_(\d+)", Path(directory).name)
    return T5XCheckpoint(
        where=where,
        config=config,
        step=int(number[1]) if number else None,
        shapes=ours,
        pieces=wanted,
        tensors=tensors,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stack:
    """Layout of the tensors of an encoder or a decoder in a T5X checkpoint.

    Attributes:
      name: "encoder" or "decoder".
      layer: prefix of a layer's tensor names; it contains "{layer}" if each layer has its own
        tensors.
      axis: layer axis of tensors that contain all layers, or None for one tensor per layer.
      num_layers: number of layers.
      joined: True if attention kernels have a joint axis for heads and head size.
      bias: tensor name of the relative position bias.
    """

    name: str
    layer: str
    axis: int | None
    num_layers: int
    joined: bool
    bias: str

    @property
    def bias_per_layer(self) -> bool:
        return self.bias.startswith(f"{self.layer}/")


def table(config: T5Config, stacks: Sequence[Stack]) -> list[Rule]:
    """Return the rules that map T5's parameter paths to the tensor names of a T5X checkpoint."""
    rules = [Rule("token_embedding/table", _EMBEDDING)]
    for stack in stacks:
        rules += _stack_rules(config, stack)
    if not config.tie_embeddings:
        rules.append(Rule("lm_head/kernel", _HEAD))
    return rules


def _stack_rules(config: T5Config, stack: Stack) -> list[Rule]:
    def rule(ours: str, theirs: str, **how: Any) -> Rule:
        ours, theirs = f"{stack.name}/layers/{ours}", f"{stack.layer}/{theirs}"
        return Rule(ours, theirs, stack_axis=stack.axis, **how)

    rules = [
        rule(f"{ours}_norm/scale", f"{theirs}/scale") for ours, theirs in _NORMS[stack.name].items()
    ]
    heads = (config.num_heads, config.d_kv)
    into = None if stack.joined else (config.d_model, *heads)
    out = None if stack.joined else (*heads, config.d_model)
    for ours, theirs in _ATTENTIONS[stack.name].items():
        for kernel, shape in {"query": into, "key": into, "value": into, "out": out}.items():
            rules.append(rule(f"{ours}/{kernel}/kernel", f"{theirs}/{kernel}/kernel", shape=shape))
    gated = FEED_FORWARDS[config.feed_forward][1]
    for kernel in ("wi_0", "wi_1", "wo") if gated else ("wi", "wo"):
        rules.append(rule(f"mlp/{kernel}/kernel", f"mlp/{kernel}/kernel"))
    if stack.bias_per_layer:
        name = stack.bias.removeprefix(f"{stack.layer}/")
        rules.append(rule("relative_bias/table", name, transpose=True))
    else:
        rules.append(Rule(f"{stack.name}/relative_bias/table", stack.bias, transpose=True))
    rules.append(Rule(f"{stack.name}/final_norm/scale", f"{stack.name}/{stack.name}_norm/scale"))
    return rules


def _find_stack(where: str, name: str, tensors: Mapping[str, StoredTensor]) -> Stack:
    """Return the layout of an encoder or decoder, derived from its tensor names."""
    first_norm = next(iter(_NORMS[name].values()))
    matches = (re.match(rf"{name}/layers_(\d+)/", path) for path in tensors)
    numbers = sorted({int(match[1]) for match in matches if match})
    if numbers:
        layer, axis, num_layers = f"{name}/layers_{LAYER}", None, len(numbers)
        if numbers != list(range(num_layers)):
            raise InputError(
                f"{where}: some layers of the {name} are missing; its layers are {numbers}"
            )
    else:
        scanned = (f"{name}/layers", f"{name}/{name}")
        found = [prefix for prefix in scanned if f"{prefix}/{first_norm}/scale" in tensors]
        if not found:
            raise InputError(
                f"{where}: contains no layers of a T5 {name}, such as {name}/layers_0/mlp; only "
                "encoder-decoders are supported, but this checkpoint has "
                f"{', '.join(sorted(tensors)[:3])}, ..."
            )
        layer, axis = found[0], _SCAN_AXIS
        num_layers = _shape(where, tensors, f"{layer}/{first_norm}/scale")[axis]
    attention = next(iter(_ATTENTIONS[name].values()))
    query = f"{layer}/{attention}/query/kernel"
    own = [f"{layer}/{bias}/rel_embedding" for bias in ("relpos_bias", "relative_posemb")]
    biases = [bias for bias in own if bias.replace(LAYER, "0") in tensors]
    return Stack(
        name=name,
        layer=layer,
        axis=axis,
        num_layers=num_layers,
        joined=len(_shape(where, tensors, query, ranks=(2, 3), axis=axis)) == 2,
        bias=biases[0] if biases else f"{name}/relpos_bias/rel_embedding",
    )


def _sizes(
    where: str, stacks: Sequence[Stack], tensors: Mapping[str, StoredTensor]
) -> dict[str, Any]:
    """Return the fields of T5Config that follow from the tensor shapes."""
    encoder, decoder = stacks
    if encoder.bias_per_layer != decoder.bias_per_layer:
        raise InputError(
            f"{where}: encoder and decoder must both have a relative bias per layer, or "
            f"neither, but they have {encoder.bias} and {decoder.bias}"
        )
    axis = encoder.axis
    vocab_size, d_model = _shape(where, tensors, _EMBEDDING)
    gated = f"{encoder.layer}/mlp/wi_0/kernel".replace(LAYER, "0") in tensors
    hidden = f"{encoder.layer}/mlp/{'wi_0' if gated else 'wi'}/kernel"
    query = f"{encoder.layer}/attention/query/kernel"
    query = _shape(where, tensors, query, ranks=(2, 3), axis=axis)
    num_heads, relative_buckets = _shape(
        where, tensors, encoder.bias, axis=axis if encoder.bias_per_layer else None
    )
    if encoder.joined and query[1] % num_heads:
        raise InputError(f"{where}: the kernel shape {query} is not divisible by {num_heads} heads")
    return {
        "vocab_size": vocab_size,
        "d_model": d_model,
        "d_kv": query[1] // num_heads if encoder.joined else query[2],
        "d_ff": _shape(where, tensors, hidden, axis=axis)[1],
        "num_heads": num_heads,
        "num_encoder_layers": encoder.num_layers,
        "num_decoder_layers": decoder.num_layers,
        "feed_forward": "gated-gelu" if gated else "relu",
        "tie_embeddings": _HEAD not in tensors,
        "relative_buckets": relative_buckets,
        "relative_bias_per_layer": encoder.bias_per_layer,
    }


def _shape(
    where: str,
    tensors: Mapping[str, StoredTensor],
    name: str,
    *,
    ranks: Sequence[int] = (2,),
    axis: int | None = None,
) -> tuple[int, ...]:
    """Return the shape of one layer of a tensor, without the layer axis."""
    name = name.replace(LAYER, "0")
    if name not in tensors:
        raise InputError(f"{where}: {name} is missing")
    shape = tensors[name].shape
    rest = shape if axis is None else (*shape[:axis], *shape[axis + 1 :])
    if len(rest) not in ranks or len(shape) - len(rest) != (axis is not None):
        raise InputError(f"{where}: {name} has shape {shape}, which does not fit a T5")
    return rest
