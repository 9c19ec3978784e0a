"""Ours beside the library `adapters` 1.3.0: outputs and gradients of scripts/adapter_goldens.py."""

import functools
import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.adapters.bottleneck import double_seq_bn, par_bn, seq_bn
from t5x_lite.adapters.bottleneck_variants import compacter, compacter_plus_plus
from t5x_lite.adapters.delta_merging import Union
from t5x_lite.adapters.grammar import parse_trees
from t5x_lite.adapters.lora import Ia3, Lora
from t5x_lite.adapters.prefix import Prefix
from t5x_lite.core import trees
from t5x_lite.interop.encoder_checkpoints import family_of
from t5x_lite.interop.encoders import read_encoder
from t5x_lite.interop.hf import read_hf
from t5x_lite.interop.tensor_files import write_safetensors
from t5x_lite.objectives.learner import Learner
from t5x_lite.objectives.likelihood import Seq2Seq
from t5x_lite.objectives.masked_lm import MaskedLM

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "adapters"
HOSTS = ("bert", "deberta", "t5_1_0", "t5_1_1")
METHODS = {
    "seq_bn": seq_bn(name="m", reduction=4.0),
    "double_seq_bn": double_seq_bn(name="m", reduction=4.0),
    "par_bn": par_bn(name="m", reduction=2.0),
    "norms": seq_bn(name="m", reduction=4.0, ln_before=True, ln_after="branch", scale="learned"),
    "post_ln": seq_bn(name="m", reduction=4.0, residual="post_ln", scale="channel"),
    "compacter": compacter(name="m", reduction=2.0, phm_dim=2, activation="gelu"),
    "compacter_plus_plus": compacter_plus_plus(
        name="m", reduction=2.0, phm_dim=2, activation="gelu"
    ),
    "lora": Lora(name="m", rank=2, alpha=4.0),
    "ia3": Ia3(name="m", place="before"),
    "cross": double_seq_bn(name="m", reduction=4.0, cross=True),
    "gate": seq_bn(name="m", reduction=4.0, gate="all_tokens"),
    "gated_lora": Lora(name="m", rank=2, alpha=2.0, gate="all_tokens"),
    "network": Prefix(name="m", length=3, hidden=4),
    "two_gates": Prefix(name="m", length=3, hidden=4, gate="all_tokens", shared_gate=False),
    "unipelt": Union(
        name="m",
        members=(
            Prefix(name="m", length=3, hidden=4, gate="all_tokens"),
            seq_bn(name="m", reduction=4.0, gate="all_tokens"),
            Lora(name="m", rank=2, alpha=2.0, gate="all_tokens"),
        ),
    ),
}
OF_ENCODERS = ("gate", "gated_lora", "network", "two_gates", "unipelt")
CASES = [
    (host, method)
    for host in HOSTS
    for method in METHODS
    if method not in (OF_ENCODERS if host.startswith("t5") else ("cross",))
    and (host, method) not in {("deberta", "gated_lora"), ("deberta", "unipelt")}
]
ALWAYS = {
    *(("bert", method) for method in ("seq_bn", "norms", "compacter", "ia3", "gate", "unipelt")),
    *(("t5_1_1", method) for method in ("par_bn", "lora", "cross")),
    ("deberta", "lora"),
    ("t5_1_0", "ia3"),
}
SLOW = {
    *(("bert", method) for method in ("double_seq_bn", "post_ln", "gated_lora", "two_gates")),
    *(("deberta", method) for method in ("seq_bn", "par_bn", "norms", "gate", "two_gates")),
    *(("t5_1_1", method) for method in ("double_seq_bn", "compacter")),
    ("deberta", "compacter_plus_plus"),
}
"""With these, each method has been tried, most on two hosts; the others are exhaustive."""


def marked(host, method):
    """The marks of a case."""
    if (host, method) in ALWAYS:
        return ()
    return [pytest.mark.slow, *[pytest.mark.exhaustive] * ((host, method) not in SLOW)]


_SITES = {
    "attention.output": "after_attention",
    "output": "after_mlp",
    "intermediate.dense": "mlp/in",
    "encoder layer.0": "after_attention",
    "encoder layer.1": "after_mlp",
    "decoder layer.0": "after_attention",
    "decoder layer.1": "after_cross_attention",
    "decoder layer.2": "after_mlp",
}
_PROJECTIONS = {"q": "query", "k": "key", "v": "value"}
_PARTS = {
    "adapter_up.weight": "up/kernel",
    "adapter_up.bias": "up/bias",
    "adapter_up.W_left": "up/left",
    "adapter_up.W_right": "up/right",
    "adapter_up.b": "up/bias",
    "adapter_down.0.W_left": "down/left",
    "adapter_down.0.W_right": "down/right",
    "adapter_down.0.b": "down/bias",
    "adapter_norm_before.weight": "norm_before/scale",
    "adapter_norm_before.bias": "norm_before/bias",
    "adapter_norm_after.weight": "norm_after/scale",
    "adapter_norm_after.bias": "norm_after/bias",
    "scaling": "scale",
    "gate.weight": "gate/kernel",
    "gate.bias": "gate/bias",
    "lora_A": "a",
    "lora_B": "b",
    "m.weight": "magnitude",
}


_NETWORK = {
    "wte.weight": "network/encoder/attention/prefix/embedding",
    "control_trans.0.weight": "network/encoder/attention/prefix/kernel",
    "control_trans.0.bias": "network/encoder/attention/prefix/bias",
    "control_trans.2.weight": "encoder/attention/prefix/kernel",
    "control_trans.2.bias": "encoder/attention/prefix/bias",
}
_MEMBERS = {"adapters": "bottleneck/", "loras": "lora/", "prefix_gates": "prefix/"}


def network(name, array, method, heads=2):
    """Our path and array of what makes a prefix; None of other parameters."""
    match = re.fullmatch(rf".*prefix_tunings\.{method}\.self_prefix\.(.*)", name)
    if match is None:
        return None
    path = _NETWORK[match[1]]
    if ".2." in name:  # [(layer, key or value, head, K), M], or without M
        layers, width = 2, 4
        array = array.reshape(layers, 2, heads, width, *array.shape[1:])
        array = np.moveaxis(array, -1, 1) if array.ndim > 4 else array
    elif path.endswith("/kernel"):
        array = array.T
    return f"{'prefix/' if method == 'unipelt' else ''}{path}", array


def place(name, method):
    """Their name -> our path below the adapter, and the layer."""
    if name.startswith("shared_parameters"):
        return "rule", None
    stack, number, above, kind, part = re.fullmatch(
        r"(encoder|decoder)\.(?:layer|block)\.(\d+)\.(.*)\.(?:prefix_tuning\.)?"
        rf"(adapters|loras|prefix_gates)\.{method}\.(.*)",
        name,
    ).groups()
    stack = f"{_MEMBERS[kind]}{stack}" if method == "unipelt" else stack
    if kind == "prefix_gates":
        return f"{stack}/attention/prefix/gate/{_PARTS[f'gate.{part}'][5:]}", int(number)
    dense = re.search(r"(\w*)[aA]ttention\.(?:self\.)?(q|k|v|query|key|value)(_proj)?$", above)
    if dense:
        cross = "cross_" if dense[1] == "EncDec" else ""
        site = f"{cross}attention/{_PROJECTIONS.get(dense[2], dense[2])}"
    elif re.search(r"DenseReluDense\.wi(_1)?$", above):
        site = "mlp/in"
    else:
        site = _SITES.get(above) or _SITES[f"{stack.rpartition('/')[2]} {above}"]
    if re.fullmatch(r"adapter_down\.[01]\.(weight|bias)", part):
        ours = "down/kernel" if part.endswith("weight") else "down/bias"
    else:
        ours = "scale" if method == "ia3" else _PARTS[part]
    return f"{stack}/{site}/{ours}", int(number)


def adapted(arrays, method, prefix):
    """Their arrays of a method as a nested dict of ours."""
    found, rule = {}, {}
    for key, array in arrays.items():
        if key.startswith(f"{method}/{prefix}/"):
            made = network(key.removeprefix(f"{method}/{prefix}/"), array, method)
            if made is not None:
                rule |= dict([made])
                continue
            path, layer = place(key.removeprefix(f"{method}/{prefix}/"), method)
            if layer is None:
                rule[path] = array
                continue
            if path.endswith(("/kernel", "/a", "/b")):
                array = array.T
            if method == "ia3" or path.endswith("magnitude"):
                array = array[:, 0]
            found.setdefault(path, {})[layer] = array
    stacks = {path: np.stack([by[i] for i in sorted(by)]) for path, by in found.items()}
    return {"m": trees.unflatten({**stacks, **rule})}


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    """Host -> its arrays, model, objective and base parameters."""

    @functools.cache
    def read(host):
        with np.load(GOLDEN / f"{host}.npz") as file:
            arrays = dict(file)
        directory = tmp_path_factory.mktemp(host)
        config = json.loads(str(arrays["config"]))
        (directory / "config.json").write_text(json.dumps(config))
        base = {
            key.removeprefix("base/"): trees.LazyArray(
                value.shape, value.dtype, lambda value=value: value
            )
            for key, value in arrays.items()
            if key.startswith("base/")
        }
        write_safetensors(directory / "model.safetensors", base)
        if host.startswith("t5"):
            source = read_hf(directory)
            model, objective, prefix = source.config, Seq2Seq(), ""
        else:
            path = directory / "config.json"
            source = read_encoder(family_of(config), directory, config, where=path)
            model, objective, prefix = source.model, MaskedLM(mask_id=3), "model/"
        paths = [path for path in source.shapes if path.startswith(prefix)]
        params = {p.removeprefix(prefix): jnp.asarray(source.array(p)) for p in paths}
        return arrays, model, objective, trees.unflatten(params)

    return read


def compiled(call, theta):
    """Value and gradient as users compile them.

    With the tests' little effort T5 1.0's unscaled attention rounds by 1.6e-4 on a processor
    without AVX-512.
    """
    step = jax.jit(jax.value_and_grad(call, has_aux=True)).lower(theta)
    effort = {"xla_cpu_use_fusion_emitters": True, "xla_backend_optimization_level": 3}
    return step.compile(effort)(theta)


def run(golden, host, method, config):
    """Our output and gradients with their parameters, and theirs."""
    arrays, model, objective, base = golden(host)
    made = Learner.of(model, objective, adapters=(config,))
    heads = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), made.shapes)
    theta = jax.tree.map(jnp.asarray, adapted(arrays, method, "theta"))
    assert {p: x.shape for p, x in trees.flatten(theta).items()} == {
        p: x.shape for p, x in trees.flatten(made.shapes["adapters"]).items()
    }

    def call(theta):
        bound = made.bind_model({**heads, "model": base, "adapters": theta})
        ids = jnp.asarray(arrays["ids"], jnp.int32)
        if "targets" in arrays:
            out = bound(ids, jnp.asarray(arrays["targets"], jnp.int32))
        else:
            out = bound(ids, segment_ids=jnp.ones_like(ids))
        return jnp.sum(out * arrays[f"{method}/cotangent"]), out

    (_, out), grads = compiled(call, theta)
    return (out, grads), (arrays[f"{method}/out"], adapted(arrays, method, "grad"))


@pytest.mark.gate("t5_1_1-lora", "bert-compacter", "deberta-lora")
@pytest.mark.parametrize(
    ("host", "method"),
    [pytest.param(*case, marks=marked(*case)) for case in CASES],
)
@pytest.mark.slow
def test_as_the_library(golden, host, method):
    (out, grads), (their_out, their_grads) = run(golden, host, method, METHODS[method])
    np.testing.assert_allclose(out, their_out, rtol=1e-5, atol=1e-5 * np.abs(their_out).max())
    theirs = trees.flatten(their_grads)
    floor = 0.01 * max(np.abs(leaf).max() for leaf in theirs.values())
    for path, ours in trees.flatten(grads).items():
        if method == "norms" and path.endswith("after_mlp/scale"):
            # The norm after it takes it out again: what is left of its gradient is rounding.
            assert max(np.abs(ours).max(), np.abs(theirs[path]).max()) < floor
            continue
        least = 1e-4 * max(np.abs(theirs[path]).max(), floor)
        np.testing.assert_allclose(ours, theirs[path], rtol=1e-4, atol=least, err_msg=path)


def fused(arrays, kind):
    """Their arrays of two adapters and of the fusion above them as a nested dict of ours."""
    found = {}
    for key, array in arrays.items():
        if not key.startswith(f"fusion/{kind}/"):
            continue
        name = key.removeprefix(f"fusion/{kind}/")
        match = re.fullmatch(r"(.*)\.adapter_fusion_layer\.fused_a,fused_b\.(\w+)\.(\w+)", name)
        if match is None:
            method = re.search(r"fused_\w", name)[0]
            path, layer = place(name, method)
            path = f"{method[-1]}/{path}"
        else:  # as a bias of an adapter at that site would be
            path, layer = place(f"{match[1]}.adapters.m.scaling", "m")
            part = "kernel" if match[3] == "weight" else "bias"
            path = f"fusion/f/{path.removesuffix('scale')}{match[2]}/{part}"
        found.setdefault(path, {})[layer] = array.T
    return trees.unflatten({p: np.stack([by[i] for i in sorted(by)]) for p, by in found.items()})


@pytest.mark.gate("bert")
@pytest.mark.parametrize("host", ["bert", "t5_1_1"])
@pytest.mark.slow
def test_a_fusion_as_the_library(golden, host):
    """In output and gradients of the fusion and of both adapters."""
    arrays, model, objective, base = golden(host)
    modules = tuple(seq_bn(name=name, reduction=4.0) for name in "ab")
    use = parse_trees("Fuse(a, b, name='f')")
    made = Learner.of(model, objective, adapters=modules, use=use)
    theta = jax.tree.map(jnp.asarray, fused(arrays, "theta"))
    assert {p: x.shape for p, x in trees.flatten(theta).items()} == {
        p: x.shape for p, x in trees.flatten(made.shapes["adapters"]).items()
    }
    heads = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), made.shapes)
    ids = jnp.asarray(arrays["ids"], jnp.int32)

    def call(theta):
        bound = made.bind_model({**heads, "model": base, "adapters": theta})
        if "targets" in arrays:
            out = bound(ids, jnp.asarray(arrays["targets"], jnp.int32))
        else:
            out = bound(ids, segment_ids=jnp.ones_like(ids))
        return jnp.sum(out * arrays["fusion/cotangent"]), out

    (_, out), grads = compiled(call, theta)
    theirs, largest = trees.flatten(fused(arrays, "grad")), np.abs(arrays["fusion/out"]).max()
    np.testing.assert_allclose(out, arrays["fusion/out"], rtol=1e-5, atol=1e-5 * largest)
    floor = 0.01 * max(np.linalg.norm(leaf) for leaf in theirs.values())
    for path, ours in trees.flatten(grads).items():  # a softmax's parts cancel out: by length
        least = 1e-4 * max(np.linalg.norm(theirs[path]), floor)
        assert np.linalg.norm(ours - theirs[path]) < least, path


@pytest.mark.gate("bert")
@pytest.mark.parametrize("host", ["bert", "t5_1_1"])
@pytest.mark.slow
def test_where_the_library_is_wrong(golden, host):
    """Its DoRA leaves s out of the norm, and scales the bias."""
    arrays, *_ = golden(host)
    assert "dora/out" in arrays
    (out, _), (theirs, _) = run(golden, host, "dora", Lora(name="m", rank=2, alpha=4.0, dora=True))
    assert np.abs(out - theirs).max() > 1e-2


@pytest.mark.parametrize(
    ("method", "config"),
    [("ia3", Ia3(name="m")), ("compacter", compacter(name="m", reduction=2.0, phm_dim=2))],
)
def test_what_ours_does_otherwise(golden, method, config):
    """The scale stands after the activation, which is gelu_new in a Compacter."""
    arrays, model, objective, base = golden("bert")
    made = Learner.of(model, objective, adapters=(config,))
    theta = {
        path.replace("mlp/in/", "mlp/hidden/"): jnp.asarray(leaf)
        for path, leaf in trees.flatten(adapted(arrays, method, "theta")).items()
    }
    heads = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), made.shapes)
    params = {**heads, "model": base, "adapters": trees.unflatten(theta)}
    ids = jnp.asarray(arrays["ids"], jnp.int32)
    out = made.bind_model(params)(ids, segment_ids=jnp.ones_like(ids))
    assert np.abs(out - arrays[f"{method}/out"]).max() > 5e-5
