"""Prefixes and prompts of the library `adapters` on an encoder, in and out.

| theirs, below prefix_tuning.prefix_tunings.NAME.self_prefix | ours, below adapters/NAME |
|---|---|
| wte.weight [P, D] | network/encoder/attention/prefix/embedding |
| control_trans.0.{weight [M, D], bias} | network/encoder/attention/prefix/{kernel, bias} |
| control_trans.2.{weight [2 N J, M], bias} | encoder/attention/prefix/{kernel, bias} |
| control_trans [2 P N J] of a flat one | encoder/attention/prefix/{keys, values} [N, P, H, K] |
| ATTENTION.prefix_tuning.prefix_gates.NAME.{weight, bias} | .../gate/{kernel, bias} |
| prompt_tuning.prompt_tunings.NAME.prompt_embedding.weight | encoder/prompt/rows [P, D] |

A file repeats a prefix in each layer. On a T5 the library counts distances from the first key of
the prefix, which moves all of them by P, and puts a prompt before the decoder's tokens, too: there
the two cannot interchange.
Source: adapter-hub/adapters 1.3, methods/prefix_tuning.py, prompt_tuning.py.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from t5x_lite.adapters.base import ADAPTERS
from t5x_lite.adapters.prefix import Prefix
from t5x_lite.adapters.prompt import Prompt
from t5x_lite.errors import InputError
from t5x_lite.interop.adapters_files import PREFIX, PROMPT, LibraryFile
from t5x_lite.interop.module_hosts import Hosts
from t5x_lite.interop.peft import Module

_SITE = "encoder/attention/prefix"
_NETWORK = {
    "wte.weight": f"network/{_SITE}/embedding",
    "control_trans.0.weight": f"network/{_SITE}/kernel",
    "control_trans.0.bias": f"network/{_SITE}/bias",
    "control_trans.2.weight": f"{_SITE}/kernel",
    "control_trans.2.bias": f"{_SITE}/bias",
}
_FLAT = "control_trans"
_ROWS = "encoder/prompt/rows"

Tensors = dict[str, np.ndarray]


def prefix(file: LibraryFile, hosts: Hosts, *, name: str) -> Module:
    """A prefix of ours.

    Raises:
      InputError: the base is no encoder, or the tensors are not those of the config and the base.
    """
    config, where = file.config, file.config_file
    _check_encoder(where, hosts)
    for field, wanted in (("leave_out", 0), ("dropout", 0), ("non_linearity", "tanh")):
        value = config[field]
        if (len(value) if field == "leave_out" else value) != wanted:
            raise InputError(f"{where}: {field} {value!r} of prefixes is not supported")
    flat, gated = bool(config["flat"]), bool(config["use_gating"])
    found, gates = _tensors(file)
    wanted = {_FLAT} if flat else set(_NETWORK)
    if set(found) != wanted:
        raise InputError(f"{file.where}: a prefix has {', '.join(sorted(wanted))}: {sorted(found)}")
    length, num_gates = config["prefix_length"], 1 if config["shared_gating"] else 2
    adapter = Prefix(
        name=name,
        length=length,
        hidden=config["bottleneck_size"],
        flat=flat,
        gate="all_tokens" if gated else "none",
        shared_gate=num_gates == 1,
    )
    num, d_model, width = hosts.kernels["encoder", "attention/key"]
    sizes = (hosts.num_heads, width // hosts.num_heads)
    arrays: Tensors = {}
    try:
        if flat:
            pairs = found[_FLAT].reshape(length, num, 2, *sizes).transpose(1, 2, 0, 3, 4)
            arrays = {f"{_SITE}/keys": pairs[:, 0], f"{_SITE}/values": pairs[:, 1]}
        else:
            hidden = config["bottleneck_size"]
            arrays = {
                _NETWORK["wte.weight"]: found["wte.weight"].reshape(length, d_model),
                _NETWORK["control_trans.0.weight"]: found["control_trans.0.weight"]
                .reshape(hidden, d_model)
                .T,
                _NETWORK["control_trans.0.bias"]: found["control_trans.0.bias"].reshape(hidden),
                _NETWORK["control_trans.2.weight"]: np.moveaxis(
                    found["control_trans.2.weight"].reshape(num, 2, *sizes, hidden), -1, 1
                ),
                _NETWORK["control_trans.2.bias"]: found["control_trans.2.bias"].reshape(
                    num, 2, *sizes
                ),
            }
        if gated:
            arrays[f"{_SITE}/gate/kernel"] = np.stack(
                [gates[layer, "weight"].reshape(num_gates, d_model).T for layer in range(num)]
            )
            arrays[f"{_SITE}/gate/bias"] = np.stack(
                [gates[layer, "bias"].reshape(num_gates) for layer in range(num)]
            )
    except (ValueError, KeyError) as error:
        raise InputError(
            f"{file.where}: its prefix is not one of {length} rows for {num} layers of {sizes[0]} "
            f"heads with {sizes[1]} numbers ({error})"
        ) from error
    own = f"{ADAPTERS}{name}/"
    return Module(
        adapter=adapter, arrays={own + k: np.ascontiguousarray(x) for k, x in arrays.items()}
    )


def _tensors(file: LibraryFile) -> tuple[Tensors, dict[tuple[int, str], np.ndarray]]:
    """The tensors of a prefix by the ends of their names, and gates by layer and leaf.

    Raises:
      InputError: there are others, or those that are repeated differ.
    """
    found: Tensors = {}
    gates: dict[tuple[int, str], np.ndarray] = {}
    name = re.escape(file.name)
    for tensor, array in file.tensors.items():
        own = re.fullmatch(rf"(?:.*\.)?prefix_tunings\.{name}\.self_prefix\.(.*)", tensor)
        gate = re.fullmatch(
            rf"(?:.*\.)?layer\.(\d+)\..*prefix_gates\.{name}\.(weight|bias)", tensor
        )
        if gate is not None:
            gates[int(gate[1]), gate[2]] = array
        elif own is None:
            raise InputError(f"{file.where}: {tensor} is of no module that is supported here")
        elif not np.array_equal(found.setdefault(own[1], array), array):
            raise InputError(
                f"{file.where}: {tensor} differs from the same tensor at another layer"
            )
    return found, gates


def prompt(file: LibraryFile, hosts: Hosts, *, name: str) -> Module:
    """A prompt of ours.

    Raises:
      InputError: the base is no encoder, or the tensor is not that of the config and the base.
    """
    config, where = file.config, file.config_file
    _check_encoder(where, hosts)
    if config["combine"] != "prefix":
        raise InputError(f"{where}: combine {config['combine']!r} is not supported: 'prefix' is")
    wanted = f"prompt_tuning.prompt_tunings.{file.name}.prompt_embedding.weight"
    rows = next((x for tensor, x in file.tensors.items() if f".{tensor}".endswith(wanted)), None)
    d_model = hosts.kernels["encoder", "attention/key"][1]
    if rows is None or len(file.tensors) > 1 or rows.shape != (config["prompt_length"], d_model):
        said = None if rows is None else rows.shape
        raise InputError(
            f"{file.where}: must hold {wanted} of shape ({config['prompt_length']}, {d_model}) "
            f"alone: got {said}"
        )
    adapter = Prompt(name=name, length=config["prompt_length"])
    return Module(adapter=adapter, arrays={f"{ADAPTERS}{name}/{_ROWS}": rows})


def prefix_files(
    adapter: Prefix, own: Mapping[str, np.ndarray], hosts: Hosts, *, said: str
) -> tuple[dict[str, Any], Tensors]:
    """The config, and the tensors by name, of a prefix.

    Args:
      adapter: config of the module.
      own: its arrays, by path below it.
      hosts: the layers of the base.
      said: the module, for messages.

    Raises:
      InputError: the library has no such prefix.
    """
    _check_encoder(said, hosts)
    if adapter.place != "none" or adapter.gate == "real_tokens":
        what = "place='left'" if adapter.place != "none" else "gate='real_tokens'"
        raise InputError(f"{said}: `adapters` has no prefix with {what}")
    start = f"prefix_tuning.prefix_tunings.{adapter.name}.self_prefix."
    tensors: Tensors = {}
    if adapter.flat:
        pairs = np.stack([own[f"{_SITE}/{leaf}"] for leaf in ("keys", "values")], axis=1)
        tensors[start + _FLAT] = pairs.transpose(2, 0, 1, 3, 4).reshape(-1)
    else:
        for theirs, path in _NETWORK.items():
            array = own[path]
            if theirs == "control_trans.2.weight":
                array = np.moveaxis(array, 1, -1).reshape(-1, array.shape[1])
            elif theirs == "control_trans.2.bias":
                array = array.reshape(-1)
            elif theirs == "control_trans.0.weight":
                array = array.T
            tensors[start + theirs] = array
    if adapter.gate != "none":
        for layer in range(hosts.kernels["encoder", "attention/key"][0]):
            gate = f"encoder.layer.{layer}.attention.self.prefix_tuning.prefix_gates."
            kernel = own[f"{_SITE}/gate/kernel"][layer]
            tensors[f"{gate}{adapter.name}.weight"] = kernel.T
            tensors[f"{gate}{adapter.name}.bias"] = own[f"{_SITE}/gate/bias"][layer]
    config = {
        **PREFIX,
        "architecture": "prefix_tuning",
        "leave_out": [],
        "flat": adapter.flat,
        "prefix_length": adapter.length,
        "bottleneck_size": adapter.hidden,
        "use_gating": adapter.gate != "none",
        "shared_gating": adapter.shared_gate,
    }
    return config, tensors


def prompt_files(
    adapter: Prompt, own: Mapping[str, np.ndarray], hosts: Hosts, *, said: str
) -> tuple[dict[str, Any], Tensors]:
    """The config, and the tensor by its name, of a prompt; the arguments are `prefix_files`'.

    Raises:
      InputError: the library has no such prompt.
    """
    _check_encoder(said, hosts)
    if adapter.init == "vocab":
        raise InputError(
            f"{said}: it holds differences from rows of the table of tokens (init='vocab'), and "
            "the library's prompt the rows themselves"
        )
    config = {
        **PROMPT,
        "architecture": "prompt_tuning",
        "prompt_length": adapter.length,
        "prompt_init": "random_uniform",
    }
    name = f"prompt_tuning.prompt_tunings.{adapter.name}.prompt_embedding.weight"
    return config, {name: own[_ROWS]}


def _check_encoder(where: object, hosts: Hosts) -> None:
    """Refuses, by an InputError, a base that is no encoder of transformers."""
    if any(stack == "decoder" for stack, _ in hosts.kernels):
        raise InputError(
            f"{where}: on a T5 the library moves the distances of all tokens by a prefix's length, "
            "and has prompts before the decoder's tokens: these interchange on encoders alone"
        )
