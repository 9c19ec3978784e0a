"""Writes checkpoints as t5x does, after t5x/checkpoints.py: nothing here is of our package."""

import pathlib

import numpy as np
import orbax.checkpoint as ocp
import tensorstore as ts
from etils import epath
from flax import serialization

STATE = {
    "step": np.int32(7),
    "param_states": {"m": None, "v_row": {"driver": "zarr", "kvstore": {}}},
}


def flat(tree, prefix=()):
    """A nested dict's leaves by their keys."""
    leaves = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            leaves |= flat(value, (*prefix, key))
        else:
            leaves[(*prefix, key)] = value
    return leaves


def nested(leaves):
    tree = {}
    for keys, value in leaves.items():
        node = tree
        for key in keys[:-1]:
            node = node.setdefault(key, {})
        node[keys[-1]] = value
    return tree


def write_zarr(directory, name, array, *, chunks=None):
    """One array in the folder that t5x writes; returns the spec that it puts into the index."""
    spec = {
        "driver": "zarr",
        "dtype": array.dtype.name,
        "kvstore": {"driver": "file", "path": name},
        "metadata": {
            "compressor": {"id": "gzip"},
            "shape": list(array.shape),
            "chunks": list(chunks or array.shape),
        },
    }
    absolute = {**spec, "kvstore": {"driver": "file", "path": f"{directory}/{name}"}}
    ts.open(absolute, create=True, open=True).result().write(array).result()
    return ts.Spec(spec).to_json()


def write_legacy(directory, target, *, inline=("scale",), version=3, chunks=None):
    """A checkpoint_N of t5x's Checkpointer; arrays whose last key is inline are in the index."""
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    leaves = {}
    for keys, array in flat(target).items():
        name = ".".join(("target", *keys))
        kept = keys[-1] in inline
        leaves[keys] = array if kept else write_zarr(directory, name, array, chunks=chunks)
    write_index(
        directory, {"version": version, "optimizer": {"target": nested(leaves), "state": STATE}}
    )
    return directory


def write_index(directory, contents):
    (pathlib.Path(directory) / "checkpoint").write_bytes(serialization.msgpack_serialize(contents))


def write_orbax(directory, target, *, use_ocdbt=False):
    """A directory checkpoint_N of t5x's OrbaxCheckpointManagerInterface, as Orbax writes it now."""
    tree = {"target": target, "state": {"step": np.int32(7), "param_states": {"m": None}}}
    checkpointer = ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=use_ocdbt))
    checkpointer.save(epath.Path(directory) / "state", args=ocp.args.PyTreeSave(tree))
    checkpointer.close()
    return pathlib.Path(directory)


def write_old_orbax(directory, target):
    """The same as Orbax wrote it with t5x: an index whose leaves name the folders beside it."""
    state = pathlib.Path(directory) / "state"
    state.mkdir(parents=True)
    leaves = {}
    for keys, array in flat(target).items():
        name = ".".join(("target", *keys))
        write_zarr(state, name, array)
        leaves[keys] = f"PLACEHOLDER://{name}"
    write_index(state, {"target": nested(leaves), "state": {"step": np.int32(7)}})
    return pathlib.Path(directory)


def parameters(*, gated=True, tied=False, dtype=np.float32, seed=0):
    """Parameters of t5x's examples/t5/network.py by its modules' names.

    2 encoder and 3 decoder layers, D 8, 2 heads of 3, F 12, vocabulary 19, 32 buckets.
    """
    rng = np.random.default_rng(seed)

    def scale():
        return {"scale": rng.uniform(0.5, 1.5, size=8).astype(dtype)}

    def dense(*shape):
        return {"kernel": (rng.normal(size=shape) * shape[0] ** -0.5).astype(dtype)}

    def attention():
        return {
            "query": dense(8, 6), "key": dense(8, 6), "value": dense(8, 6), "out": dense(6, 8),
        }  # fmt: skip

    def mlp():
        wi = {"wi_0": dense(8, 12), "wi_1": dense(8, 12)} if gated else {"wi": dense(8, 12)}
        return {**wi, "wo": dense(12, 8)}

    def bias():
        return {"rel_embedding": rng.normal(size=(2, 32)).astype(dtype)}

    encoder = {
        f"layers_{layer}": {
            "pre_attention_layer_norm": scale(),
            "attention": attention(),
            "pre_mlp_layer_norm": scale(),
            "mlp": mlp(),
        }
        for layer in range(2)
    }
    decoder = {
        f"layers_{layer}": {
            "pre_self_attention_layer_norm": scale(),
            "self_attention": attention(),
            "pre_cross_attention_layer_norm": scale(),
            "encoder_decoder_attention": attention(),
            "pre_mlp_layer_norm": scale(),
            "mlp": mlp(),
        }
        for layer in range(3)
    }
    head = {} if tied else {"logits_dense": dense(8, 19)}
    return {
        "token_embedder": {"embedding": rng.normal(size=(19, 8)).astype(dtype)},
        "encoder": {**encoder, "relpos_bias": bias(), "encoder_norm": scale()},
        "decoder": {**decoder, "relpos_bias": bias(), "decoder_norm": scale(), **head},
    }


def per_layer_bias(target, *, name="relpos_bias", seed=1):
    """The same with a relative bias in each layer, as in flaxformer's umT5 or scalable_t5."""
    rng = np.random.default_rng(seed)
    changed = {**target}
    for stack in ("encoder", "decoder"):
        layers = {key: value for key, value in target[stack].items() if key != "relpos_bias"}
        dtype = target[stack]["relpos_bias"]["rel_embedding"].dtype
        for key in [key for key in layers if key.startswith("layers_")]:
            bias = {"rel_embedding": rng.normal(size=(2, 32)).astype(dtype)}
            layers[key] = {**layers[key], name: bias}
        changed[stack] = layers
    return changed


def scanned(target, *, names=("encoder", "decoder")):
    """The same with all layers of a stack in one tensor, on axis 1: encoder/<names[0]>/mlp/..."""
    changed = {**target}
    for stack, name in zip(("encoder", "decoder"), names, strict=True):
        layers = [key for key in target[stack] if key.startswith("layers_")]
        stacked = {
            keys: np.stack([flat(target[stack][layer])[keys] for layer in layers], axis=1)
            for keys in flat(target[stack][layers[0]])
        }
        rest = {key: value for key, value in target[stack].items() if key not in layers}
        changed[stack] = {**rest, name: nested(stacked)}
    return changed


def heads_apart(target):
    """The same with attention kernels [D, H, K] and [H, K, D], before `scanned`."""
    leaves = {}
    for keys, array in flat(target).items():
        if keys[-1] == "kernel" and keys[-3].endswith("attention"):
            array = array.reshape((2, 3, 8) if keys[-2] == "out" else (8, 2, 3))
        leaves[keys] = array
    return nested(leaves)
