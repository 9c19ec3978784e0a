import functools
import os
import subprocess
import sys
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from t5x_lite.core.errors import InputError
from t5x_lite.core.sharding import MeshConfig, make_mesh
from t5x_lite.nn import masks
from t5x_lite.nn import pallas_attention as pallas
from t5x_lite.nn import pallas_attention as pallas_vmem
from t5x_lite.nn.attention import dot_product_attention, softmax_attention
from t5x_lite.nn.attention_pattern import Pattern, RelativeBias, RelativeTable
from t5x_lite.nn.dense import WeightDropout, kept_keys
from t5x_lite.nn.fused_attention import blocked_attention
from t5x_lite.nn.pallas_attention import costs, pallas_attention

B, H, K = 2, 2, 4
BUCKETS, MAX_DISTANCE = 8, 6
LENGTH = 20  # three blocks of 8, the last one not full

# Row 1 ends with padding; its queries see nothing.
SEGMENTS = jnp.array([[1] * 7 + [2] * 9 + [3] * 4, [1] * 10 + [2] * 3 + [0] * 7])
INPUT_SEGMENTS = jnp.array([[1] * 7 + [3] * 4, [1] * 3 + [2] * 7 + [0]])  # row 0 has no segment 2
PREFIX = jnp.array([[1] * 3 + [0] * 4 + [1] * 5 + [0] * 8, [1] * 4 + [0] * 16])
TOKENS = jnp.array([[5] * 9 + [0] * 11, [0] * 20])  # row 1 sees nothing

CASES = {
    "encoder": (masks.of_encoder(TOKENS), True),
    "encoder, packed": (masks.of_encoder(SEGMENTS, SEGMENTS), True),
    "decoder": (masks.of_decoder(), False),
    "decoder, packed": (masks.of_decoder(SEGMENTS), False),
    "prefix": (masks.of_decoder(SEGMENTS, prefix=PREFIX), True),
    "across, packed": (masks.across(INPUT_SEGMENTS, INPUT_SEGMENTS, SEGMENTS), None),
}


def normal(*shape, seed=0, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape).astype(dtype))


def operands(case, *, dtype=jnp.float32, rows=B, heads=H):
    """Query, key, value and table of a case, and a cotangent."""
    num_keys = LENGTH if CASES[case][1] is not None else 11
    query, g = (normal(rows, LENGTH, heads, K, seed=s, dtype=dtype) for s in (0, 4))
    key, value = (normal(rows, num_keys, heads, K, seed=s, dtype=dtype) for s in (1, 2))
    return query, key, value, normal(BUCKETS, heads, seed=3), g


def ours(case, query, key, value, table, *, block=8, draws=None):
    visible, direction = CASES[case]
    bias = None
    if direction is not None:
        bias = RelativeTable(table=table, bidirectional=direction, max_distance=MAX_DISTANCE)
    visible = masks.Visibility(**{**visible.__dict__, "block_size": block})
    return pallas_attention(
        query, key, value, visible=visible, bias=bias, draws=draws, interpret=True
    )


DRAWS = WeightDropout(jax.random.key(7), 0.25)


def dropping(case, *given):
    return ours(case, *given, draws=DRAWS)


def dropping_16(case, *given):
    """Blocks of whole pairs of draws."""
    return ours(case, *given, block=16, draws=DRAWS)


def dropping_in_blocks(case, query, key, value, table):
    visible, direction = CASES[case]
    bias = None
    if direction is not None:
        bias = RelativeTable(table=table, bidirectional=direction, max_distance=MAX_DISTANCE)
    return blocked_attention(query, key, value, visible=visible, bias=bias, draws=DRAWS)


def masked_plain(case, query, key, value, table):
    """Plain attention, and the mask of dropped weights as an array."""
    streams = DRAWS.streams(len(query), query.shape[2], query.shape[1])
    return plain(case, query, key, value, table, kept_keys(DRAWS.rate, streams, 0, key.shape[1]))


def plain(case, query, key, value, table, kept=None):
    visible, direction = CASES[case]
    bias = None
    if direction is not None:
        module = RelativeBias(
            table.shape[1], num_buckets=BUCKETS, max_distance=MAX_DISTANCE, rngs=nnx.Rngs(0)
        )
        module.table[...] = table
        bias = module(jnp.arange(LENGTH), jnp.arange(LENGTH), bidirectional=direction)
    return softmax_attention(query, key, value, bias, visible.dense(LENGTH), kept)


@functools.partial(jax.jit, static_argnums=(0, 1))
def run(function, case, query, key, value, table, g):
    """Output and gradients of query, key, value and table."""
    out, pullback = jax.vjp(functools.partial(function, case), query, key, value, table)
    return out, *pullback(g)


def check(case, given):
    for got, wanted in zip(run(ours, case, *given), run(plain, case, *given), strict=True):
        assert np.all(np.isfinite(got))
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.gate("decoder, packed")
@pytest.mark.parametrize("case", ["decoder, packed", "prefix"])
@pytest.mark.slow
def test_it_is_plain_attention_in_output_and_gradients(case):
    given = operands(case)
    check(case, given)
    assert all(np.any(gradient) for gradient in run(ours, case, *given)[1:])


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("case", ["encoder", "encoder, packed", "decoder", "across, packed"])
def test_the_other_masks(case):
    check(case, operands(case))


@pytest.mark.gate("dropping-encoder, packed")
@pytest.mark.slow
@pytest.mark.parametrize("case", ["encoder, packed", "across, packed", "prefix"])
@pytest.mark.parametrize("function", [dropping, dropping_16, dropping_in_blocks])
def test_dropout_of_each_query_and_key_is_a_mask_by_row_head_query_and_key(function, case):
    """Output and gradients equal autodiff through an explicit mask, whatever the blocks."""
    given = operands(case)
    found, wanted = run(function, case, *given), run(masked_plain, case, *given)
    for got, expected in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    assert np.any(np.abs(wanted[0] - run(plain, case, *given)[0]) > 0.1)


@pytest.mark.slow
def test_bfloat16_is_as_near_to_float32_as_plain_attention_is():
    case = "across, packed"
    low = operands(case, dtype=jnp.bfloat16)
    got, plainly = run(ours, case, *low), run(plain, case, *low)
    assert [x.dtype for x in got] == [jnp.bfloat16] * 4 + [jnp.float32]
    exact = run(plain, case, *(x.astype(jnp.float32) for x in low))
    for x, other, wanted in zip(got[:4], plainly[:4], exact[:4], strict=True):
        error, of_plain = (np.max(np.abs(y.astype(np.float32) - wanted)) for y in (x, other))
        assert error < 2 * of_plain < 0.06 * np.max(np.abs(wanted))


def test_elsewhere_it_is_blocked_attention():
    visible = masks.Visibility(**{**CASES["decoder, packed"][0].__dict__, "kernel": True})

    def attend(case, query, key, value, table):
        bias = RelativeTable(table=table, bidirectional=False, max_distance=MAX_DISTANCE)
        return dot_product_attention(query, key, value, pattern=Pattern(visible, bias))

    given = operands("decoder, packed")
    wanted = run(plain, "decoder, packed", *given)
    for got, expected in zip(run(attend, "", *given), wanted, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_on_a_gpu_a_line_says_what_runs(monkeypatch, caplog):
    monkeypatch.setattr(pallas, "traced_kind", lambda: "NVIDIA H100 80GB HBM3")
    pallas_vmem.tell.cache_clear()
    case = "decoder"
    query, key, value, table, _ = operands(case)
    visible, _ = CASES[case]
    bias = RelativeTable(table=table, bidirectional=False, max_distance=MAX_DISTANCE)
    with caplog.at_level("WARNING"):
        for _ in range(2):
            pallas_attention(query, key, value, visible=visible, bias=bias)
    assert caplog.messages == [
        "model.attention 'pallas' needs a TPU, but the devices are NVIDIA H100 80GB HBM3; running "
        "blocked attention instead (--model.attention cudnn is a kernel for NVIDIA GPUs)"
    ]


def test_a_length_that_is_split_is_refused():
    mesh = make_mesh(MeshConfig(), devices=jax.devices()[:1])
    split = types.SimpleNamespace(empty=False, shape={**mesh.shape, "sequence": 2})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax.sharding, "get_abstract_mesh", lambda: split)
        with pytest.raises(InputError, match=r"set --mesh.sequence 1 or --model.attention"):
            ours("decoder", *operands("decoder")[:4])


def test_costs_of_one_row_of_base():
    forward, backward = costs(
        batch=1, num_queries=512, num_keys=512, num_heads=12, d_kv=64, bidirectional=True
    )
    pairs = 512 * 512 * 12
    assert (forward.exponentials, backward.exponentials) == (pairs, pairs)
    # A product over 128 lanes is twice one over a head's 64.
    assert forward.flops == 2 * pairs * (128 + 64)
    assert backward.flops == 2 * pairs * (2 * 128 + 3 * 64)
    half, _ = costs(batch=1, num_queries=512, num_keys=512, num_heads=12, d_kv=64, causal=True)
    assert half.flops == forward.flops * 3 / 4  # 3 of 4 pairs of blocks
    assert forward.vmem < backward.vmem < 16 * 2**20


MESH = """
import dataclasses, sys
import jax, numpy as np
from t5x_lite.core.sharding import MeshConfig, make_mesh
sys.path.insert(0, sys.argv[1])
import test_pallas_attention as cases

case = "decoder, packed"
visible, direction = cases.CASES[case]
ids = np.tile(np.asarray(visible.keys), (2, 1))
cases.CASES[case] = dataclasses.replace(visible, keys=ids, queries=ids), direction
given = cases.operands(case, rows=4)
with jax.set_mesh(make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))):
    found = cases.run(cases.ours, case, *given)
    print(found[0].sharding.spec)
    dropped = [cases.run(f, case, *given) for f in (cases.dropping, cases.dropping_in_blocks)]
for got, plain in [(found, cases.plain), *((one, cases.masked_plain) for one in dropped)]:
    for one, other in zip(got, cases.run(plain, case, *given), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
"""


@pytest.mark.slow
def test_on_eight_devices_it_is_plain_attention():
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
    done = subprocess.run(
        [sys.executable, "-c", MESH, str(Path(__file__).parent)],
        env={**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "tensor" in done.stdout
