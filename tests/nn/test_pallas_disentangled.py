import functools
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from t5x_lite.core.errors import InputError
from t5x_lite.nn import pallas_disentangled as kernel
from t5x_lite.nn import pallas_kernels
from t5x_lite.nn.attention_pattern import Operands, attend
from t5x_lite.nn.dense import WeightDropout, kept_keys
from t5x_lite.nn.masks import segments
from t5x_lite.nn.pallas_attention import tell
from t5x_lite.nn.pallas_disentangled import costs, pallas_disentangled, supports
from tests.nn.test_pallas_simulated import RACE, SIMULATED

BOTH = ("c2p", "p2c")
DRAWS = WeightDropout(jax.random.key(7), 0.25)


def normal(*shape, seed=0, dtype=jnp.float32):
    return jnp.asarray(0.5 * np.random.default_rng(seed).normal(size=shape), dtype)


def operands(length, *, terms=BOTH, rows=2, heads=2, size=4, dtype=jnp.float32):
    """Operands, and a cotangent of the output."""
    query, key, value, g = (
        normal(rows, length, heads, size, seed=seed, dtype=dtype) for seed in range(4)
    )
    c2p, p2c = (normal(2 * length - 1, heads, size, seed=seed, dtype=dtype) for seed in (4, 5))
    strips = (c2p if "c2p" in terms else None, p2c if "p2c" in terms else None)
    return Operands(query, key, value, *strips), g


def segments_of(length, rows=2):
    """Two segments and padding; one segment and much padding, of which queries see nothing."""
    ids = np.ones((rows, length), np.int32)
    ids[::2, length // 3 :] = 2
    ids[::2, length - 2 :] = 0
    ids[1::2, length // 2 :] = 0
    return jnp.asarray(ids)


def ours(given, *, block=8, draws=None, interpret: Any = True):
    ids = segments_of(given.query.shape[1], len(given.query))
    return pallas_disentangled(given, ids, block=block, draws=draws, interpret=interpret)


class Explicit(WeightDropout):
    """Dropout by the mask of all weights that the kernel drops."""

    def kept(self, shape, block=0):
        return kept_keys(self.rate, self.streams(*shape[:3]), 0, shape[3])


EXPLICIT = Explicit(DRAWS.key, DRAWS.rate)


def plain(given, *, draws=None):
    ids = segments_of(given.query.shape[1], len(given.query))
    return attend(given, segments(ids, ids), draws)


@functools.partial(jax.jit, static_argnums=0)
def run(function, given, g):
    """Output and gradients of queries, keys, values and strips."""
    out, pullback = jax.vjp(function, given)
    return out, *jax.tree.leaves(pullback(g)[0])


def check(function, expected, given, g):
    found, wanted = run(function, given, g), run(expected, given, g)
    assert len(found) == len(wanted)
    for got, other in zip(found, wanted, strict=True):
        assert np.any(other)
        np.testing.assert_allclose(got, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("size", "width"), [(8, 8), (16, 48), (128, 128)])
def test_rows_and_columns_are_moved_and_moved_back(size, width):
    x, y = normal(size, width + size), normal(size, width, seed=1)
    row, column = np.arange(size)[:, None], np.arange(width)
    moved = np.asarray(x)[row, column + size - row]
    np.testing.assert_array_equal(kernel.skew_lanes(x), moved)
    np.testing.assert_array_equal(kernel.skew_rows(x.T), moved.T)
    back = np.zeros((size, width + size), np.float32)
    back[row, column + size - row] = y
    np.testing.assert_array_equal(kernel.unskew_lanes(y), back)
    np.testing.assert_array_equal(kernel.unskew_rows(y.T), back.T)


@pytest.mark.slow
@pytest.mark.gate("20-terms0")
@pytest.mark.parametrize("terms", [BOTH, ("c2p",), ("p2c",)])
@pytest.mark.parametrize("length", [20])
def test_it_is_disentangled_attention_in_output_and_gradients(length, terms):
    """Three blocks of 8, the last one not full."""
    check(ours, plain, *operands(length, terms=terms))


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(("length", "block"), [(16, 16), (40, 16), (300, 256)])
def test_other_lengths_and_blocks(length, block):
    check(functools.partial(ours, block=block), plain, *operands(length))


@pytest.mark.slow
@pytest.mark.parametrize("block", [8, 16])
def test_dropout_is_a_mask_by_row_head_query_and_key(block):
    given, g = operands(20)
    dropping = functools.partial(ours, block=block, draws=DRAWS)
    masked = functools.partial(plain, draws=EXPLICIT)
    check(dropping, masked, given, g)
    assert np.any(np.abs(masked(given) - plain(given)) > 0.1)


def test_elsewhere_it_is_blocked_attention():
    given, g = operands(20)
    check(functools.partial(ours, interpret=False), plain, given, g)
    dropping = functools.partial(ours, interpret=False, draws=DRAWS)
    check(dropping, functools.partial(plain, draws=EXPLICIT), given, g)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_groups_of_heads(monkeypatch):
    monkeypatch.setattr(pallas_kernels, "LANES", 8)  # two heads of 4 fill them: two groups
    given, g = operands(12, heads=4)
    check(lambda x: ours(x), plain, given, g)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_two_cores_share_the_heads_without_a_race(monkeypatch, capfd):
    monkeypatch.setattr(pallas_kernels, "LANES", 4)
    pltpu.reset_tpu_interpret_mode_state()
    given, g = operands(12)
    found = jax.block_until_ready(run(functools.partial(ours, interpret=SIMULATED), given, g))
    pltpu.reset_tpu_interpret_mode_state()
    for got, wanted in zip(found, run(plain, given, g), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
    assert RACE not in "".join(capfd.readouterr())


@pytest.mark.slow
@pytest.mark.exhaustive
def test_bfloat16_is_as_near_to_float32_as_plain_attention_is():
    given, g = operands(20, dtype=jnp.bfloat16)
    got, plainly = run(ours, given, g), run(plain, given, g)
    assert {x.dtype for x in got} == {jnp.dtype(jnp.bfloat16)}
    exact = run(plain, *jax.tree.map(lambda x: x.astype(jnp.float32), (given, g)))
    for x, other, wanted in zip(got, plainly, exact, strict=True):
        error, of_plain = (np.max(np.abs(y.astype(np.float32) - wanted)) for y in (x, other))
        assert error < 2 * of_plain < 0.1 * np.max(np.abs(wanted))


def test_costs_of_one_row_of_base():
    call = kernel._Call(block=512, rate=0.0, terms=2, interpret=False)
    layout = call.layout((1, 512, 12, 64), kind="", itemsize=2)
    assert (layout.query_block, layout.zeros) == (512, True)
    forward, backward = costs(2, layout, 1, 2)
    pairs = 512 * 512 * 12
    assert forward.flops == 2 * pairs * (128 + 64 + 2 * 1.25 * 128)
    assert backward.flops == 2 * pairs * (2 * 128 + 3 * 64 + 2 * 1.25 * (128 + 2 * 64))
    assert forward.vmem < backward.vmem < 24 * 2**20


def test_chips_that_have_the_kernel():
    sizes = {"length": 512, "d_kv": 64, "itemsize": 2}
    kinds = ("TPU v4", "TPU v5 lite", "TPU v5p", "TPU v6 lite", "TPU7x", "NVIDIA H200", "cpu")
    assert [supports(kind, **sizes) for kind in kinds] == [False, *4 * [True], False, False]
    assert not supports("TPU v5p", **{**sizes, "length": 2**16})
    assert supports("TPU v99", **{**sizes, "length": 2**16})


def test_what_is_refused(monkeypatch):
    given, _ = operands(8)
    before = given._replace(prefix_key=given.key, prefix_value=given.value)
    for wrong in (before, given._replace(position_key=None, position_query=None)):
        with pytest.raises(ValueError, match="with a term by distance and without a prefix"):
            ours(wrong)
    monkeypatch.setattr(kernel, "traced_kind", lambda: "TPU v4")
    with pytest.raises(InputError, match="needs a TPU v5 or later, but the devices are TPU v4"):
        ours(given)


def test_on_a_gpu_a_line_says_what_runs(monkeypatch, caplog):
    monkeypatch.setattr(kernel, "traced_kind", lambda: "NVIDIA H200")
    tell.cache_clear()
    with caplog.at_level("WARNING"):
        for _ in range(2):
            ours(operands(8)[0], interpret=False)
    assert caplog.messages == [
        "model.attention 'pallas' needs a TPU, but the devices are NVIDIA H200; running blocked "
        "attention instead"
    ]


MESH = """
import functools, sys
import jax, numpy as np
from t5x_lite.core.sharding import MeshConfig, make_mesh
sys.path.insert(0, sys.argv[1])
from tests.nn import test_pallas_disentangled as cases

given, g = cases.operands(12, rows=4)
dropping = functools.partial(cases.ours, draws=cases.DRAWS)
with jax.set_mesh(make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))):
    found = cases.run(dropping, given, g)
    print(found[0].sharding.spec)
plain = functools.partial(cases.plain, draws=cases.EXPLICIT)
for one, other in zip(found, cases.run(plain, given, g), strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
"""


@pytest.mark.slow
def test_on_eight_devices_it_is_plain_attention():
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
    done = subprocess.run(
        [sys.executable, "-c", MESH, str(Path(__file__).parents[2])],
        env={**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "tensor" in done.stdout


PROGRAM = """
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from t5x_lite.core.sharding import MeshConfig, make_mesh
from t5x_lite.nn.attention_pattern import Operands
from t5x_lite.nn.dense import WeightDropout
from t5x_lite.nn.pallas_disentangled import pallas_disentangled
from t5x_lite.plan.program import topology_devices

mesh = make_mesh(MeshConfig(), devices=topology_devices("v5e:2x2"))
rows, every = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data",), ()))
x = jax.ShapeDtypeStruct((4, 300, 2, 64), jnp.bfloat16, sharding=rows)
strip = jax.ShapeDtypeStruct((599, 2, 64), jnp.bfloat16, sharding=every)
ids = jax.ShapeDtypeStruct((4, 300), jnp.int32, sharding=rows)

def loss(operands, ids):
    draws = WeightDropout(jax.random.key(0), 0.1)
    return jnp.sum(pallas_disentangled(operands, ids, block=256, draws=draws) ** 2)

with jax.set_mesh(mesh):
    compiled = jax.jit(jax.grad(loss)).lower(Operands(x, x, x, strip, strip), ids).compile()
print(compiled.as_text().count("tpu_custom_call"), "kernels")
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs the extra `plan`")
def test_it_compiles_for_a_v5e():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "2 kernels\n"), done.stderr[-2000:]
