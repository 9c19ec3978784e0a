import dataclasses
import functools
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import print_saved_residuals

from t5x_lite.core.errors import InputError
from t5x_lite.core.sharding import MeshConfig, make_mesh
from t5x_lite.models.t5 import T5Config
from t5x_lite.nn import attention, fused_attention
from t5x_lite.nn.attention import dot_product_attention, softmax_attention
from t5x_lite.nn.attention_pattern import Pattern, RelativeTable
from t5x_lite.nn.fused_attention import check, check_sizes
from t5x_lite.nn.masks import Visibility
from t5x_lite.nn.slots import bind, shapes
from tests.nn.test_pallas_attention import CASES, MAX_DISTANCE, operands, plain

H100 = "NVIDIA H100 80GB HBM3"


def pattern(case, table):
    visible, direction = CASES[case]
    bias = None
    if direction is not None:
        bias = RelativeTable(table=table, bidirectional=direction, max_distance=MAX_DISTANCE)
    return visible, bias


def ours(case, query, key, value, table):
    """By XLA in place of cuDNN: what is around the kernel is the same."""
    visible, bias = pattern(case, table)
    return fused_attention.cudnn_attention(
        query, key, value, visible=visible, bias=bias, implementation="xla"
    )


def fused(case, query, key, value, table):
    visible, bias = pattern(case, table)
    visible = dataclasses.replace(visible, fused=True)
    return dot_product_attention(query, key, value, pattern=Pattern(visible, bias))


@functools.partial(jax.jit, static_argnums=(0, 1))
def run(function, case, query, key, value, table, g):
    """Output and gradients of query, key, value and table."""
    out, pullback = jax.vjp(functools.partial(function, case), query, key, value, table)
    return out, *pullback(g)


def check_equal(function, case, given):
    for got, wanted in zip(run(function, case, *given), run(plain, case, *given), strict=True):
        assert np.all(np.isfinite(got))
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_what_is_around_the_kernel_is_plain_attention(case):
    """Rows of 11 keys are filled up, and some queries see nothing."""
    check_equal(ours, case, operands(case))


@pytest.mark.parametrize("case", ["decoder, packed", "across, packed"])
def test_elsewhere_it_is_plain_attention(case):
    check_equal(fused, case, operands(case))


NUM_KEYS = np.array([20, 7])
"""Keys of the rows that hold one text each."""
ONE_TEXT = {
    "encoder": (True, False, True),
    "encoder with segments": (True, True, True),
    "decoder": (False, True, False),
    "across": (True, False, None),
}
"""Name -> whether queries see both ways, whether segments are given, and the bias's direction."""


def one_text(case, num_keys=NUM_KEYS):
    both_ways, segments, direction = ONE_TEXT[case]
    ids = jnp.asarray((np.arange(20) < num_keys[:, None]).astype(np.int32))
    queries = ids if segments else None
    visible = Visibility(keys=ids, queries=queries, causal=not both_ways, one_text=True)
    return visible, direction, ids


@pytest.mark.parametrize("case", ONE_TEXT)
def test_rows_of_one_text_need_no_mask(case):
    """Outputs of queries that are no padding, and all gradients, are those of plain attention."""
    visible, direction, ids = one_text(case)
    query, key, value, table, g = operands("encoder")
    real = (ids if visible.queries is not None else jnp.ones_like(ids))[..., None, None]
    bias = None
    if direction is not None:
        bias = RelativeTable(table=table, bidirectional=direction, max_distance=MAX_DISTANCE)

    def fused(query, key, value):
        return fused_attention.cudnn_attention(
            query, key, value, visible=visible, bias=bias, implementation="xla"
        )

    def plain(query, key, value):
        logits = None if bias is None else bias.block(20, 0, 20)[None]
        return softmax_attention(query, key, value, logits, visible.dense(20))

    found, wanted = (jax.vjp(attend, query, key, value) for attend in (fused, plain))
    np.testing.assert_allclose(found[0] * real, wanted[0] * real, rtol=1e-5, atol=1e-5)
    for got, right in zip(found[1](g * real), wanted[1](g * real), strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", ["encoder", "across"])
def test_padding_before_a_token_is_seen(case):
    visible, direction, ids = one_text(case)
    query, key, value, table, _ = operands("encoder")
    bias = None
    if direction is not None:
        bias = RelativeTable(table=table, bidirectional=direction, max_distance=MAX_DISTANCE)
    visible = dataclasses.replace(visible, keys=ids.at[1, 3].set(0))
    out = fused_attention.cudnn_attention(
        query, key, value, visible=visible, bias=bias, implementation="xla"
    )
    assert np.all(np.isnan(out[1]))
    empty = dataclasses.replace(visible, keys=jnp.zeros_like(ids))
    out = fused_attention.cudnn_attention(
        query, key, value, visible=empty, bias=bias, implementation="xla"
    )
    assert np.all(np.isfinite(out))


@pytest.mark.parametrize(("length", "filled"), [(512, 512), (114, 114), (11, 12), (192, 194)])
def test_rows_are_filled_up_to_what_cudnn_takes(length, filled):
    assert length + fused_attention._fill(length) == filled


def test_what_is_added_to_the_logits():
    mask = fused_attention._whole(jnp.array([[[[True, False]]]]), (2, 2), (1, 1))
    assert mask is not None
    np.testing.assert_array_equal(mask[0, 0], [[1, 0, 0], [1, 0, 0], [1, 1, 0]])
    bias = jnp.array([[[[1.0, 2.0], [3.0, 4.0]]]])
    added = fused_attention._added(mask, bias, least=-9.0)
    np.testing.assert_array_equal(added[0, 0], [[1, -9, -9], [3, -9, -9], [0, 0, -9]])
    assert fused_attention._whole(None, (2, 2), (0, 0)) is None
    assert fused_attention._added(None, bias, least=-9.0) is bias


@pytest.fixture
def with_cudnn(monkeypatch):
    """A GPU and its cuDNN pretended, as far as a program is lowered, not compiled."""
    where = "jax._src.cudnn.fused_attention_stablehlo.cuda_versions"
    monkeypatch.setattr(where, types.SimpleNamespace(cudnn_get_version=lambda: 91300))
    monkeypatch.setattr(attention, "traced_kind", lambda: H100)


def cuda_calls(function, *arguments):
    """The names of the library calls in the program for CUDA, in order."""
    text = jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()
    return re.findall(r"custom_call @__cudnn\$(\w+)", text), text


@pytest.mark.parametrize(
    ("case", "shape"),
    [
        ("decoder", "1x2x20x20"),  # cuDNN masks what is behind
        ("encoder", "2x2x20x20"),
        ("prefix", "2x2x20x20"),
        ("across, packed", "2x1x20x12"),
    ],
)
def test_the_program_for_cuda(with_cudnn, case, shape):
    low = operands(case, dtype=jnp.bfloat16)
    low = [jnp.tile(x, (1, 1, 1, 2)) if x.ndim == 4 else x for x in low]
    calls, text = cuda_calls(functools.partial(run, fused, case), *low)
    assert calls == ["fmhaScaleBiasSoftmax", "fmhaScaleBiasSoftmaxBackward"]
    # Its last operand is what is added; the gradient of that is asked for.
    forward, backward = [line for line in text.splitlines() if "@__cudnn" in line]
    assert f", tensor<{shape}xbf16>) -> (" in forward
    if CASES[case][1] is not None:
        assert f"tensor<{shape}xbf16>, tensor<0xui8>)" in backward
    assert ("PADDING" in text, "\\22CAUSAL\\22" in text) == (False, case == "decoder")
    assert "fmha_scale\\22: 1.0" in text


@pytest.mark.parametrize(
    ("case", "shape", "order"),
    [
        ("encoder with segments", "1x2x20x20", "\\22PADDING\\22"),
        ("decoder", "1x2x20x20", "PADDING_CAUSAL"),
        ("across", "", "\\22PADDING\\22"),
    ],
)
def test_the_program_for_rows_of_one_text(with_cudnn, case, shape, order):
    """The bias is shared by all rows, and where there is none nothing is added."""
    visible, direction, _ = one_text(case)
    visible = dataclasses.replace(visible, fused=True)
    query, key, value, table, _ = operands("encoder", dtype=jnp.bfloat16)
    query, key, value = (jnp.tile(x, (1, 1, 1, 2)) for x in (query, key, value))
    bias = None
    if direction is not None:
        bias = RelativeTable(table=table, bidirectional=direction, max_distance=MAX_DISTANCE)

    def loss(*arrays):
        return jnp.sum(dot_product_attention(*arrays, pattern=Pattern(visible, bias)))

    calls, text = cuda_calls(jax.grad(loss, argnums=(0, 1, 2)), query, key, value)
    biased = "ScaleBias" if shape else ""
    assert calls == [f"fmha{biased}Softmax", f"fmha{biased}SoftmaxBackward"]
    assert order in text
    assert "2x2x20x20xbf16" not in text
    assert not shape or f"tensor<{shape}xbf16>" in text


def test_float32_is_plain_on_a_gpu_too(with_cudnn):
    calls, _ = cuda_calls(functools.partial(run, fused, "encoder"), *operands("encoder"))
    assert calls == []


def test_the_bias_is_not_kept_for_the_backward_pass(with_cudnn, capsys):
    query, key, value, table, _ = operands("encoder", dtype=jnp.bfloat16)
    query, key, value = (jnp.tile(x, (1, 1, 1, 2)) for x in (query, key, value))
    print_saved_residuals(functools.partial(fused, "encoder"), query, key, value, table)
    kept = capsys.readouterr().out
    assert "bf16[2,20,2,8]" in kept  # the output
    assert "f32[2,2,20]" in kept  # of the softmax
    assert "[2,2,20,20]" not in kept


def test_a_train_step_of_t5_for_cuda(with_cudnn):
    config = T5Config(
        vocab_size=32, d_model=16, d_kv=8, d_ff=16, num_heads=2, num_encoder_layers=2,
        num_decoder_layers=2, attention="cudnn",
    )  # fmt: skip
    graphdef, abstract, _ = shapes(lambda rngs: config.build(rngs=rngs))
    low = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16), abstract)
    tokens = jax.ShapeDtypeStruct((2, 12), jnp.int32)
    key = jax.eval_shape(lambda: jax.random.key(0))

    def loss(params, tokens, key):
        logits = bind(graphdef, params)(
            encoder_input_tokens=tokens, decoder_input_tokens=tokens, key=key
        )
        return jnp.sum(logits)

    calls, _ = cuda_calls(jax.grad(loss), low, tokens, key)
    # Of both stacks and across, in the body of a scan; dropout is not cuDNN's.
    assert sorted(calls) == ["fmhaScaleBiasSoftmax"] * 3 + ["fmhaScaleBiasSoftmaxBackward"] * 3


@pytest.mark.parametrize(
    ("kind", "dtype", "message"),
    [
        ("cpu", "bfloat16", "needs NVIDIA GPUs, but the devices are of the kind 'cpu'; set"),
        ("TPU v5 lite", "bfloat16", "of the kind 'TPU v5 lite'"),
        (H100, "float32", "compute_dtype is 'float32'; set --compute-dtype bfloat16"),
    ],
)
def test_devices_and_dtypes_that_are_refused(kind, dtype, message):
    with pytest.raises(InputError, match=message) as raised:
        check(kind=kind, dtype=dtype)
    assert "\n" not in str(raised.value)
    check(kind=H100, dtype="bfloat16")


@pytest.mark.parametrize("d_kv", [4, 260, 264])
def test_heads_that_are_refused(d_kv):
    with pytest.raises(InputError, match=f"a multiple of 8 and at most 256, but d_kv is {d_kv}"):
        check_sizes(d_kv=d_kv)
    check_sizes(d_kv=64)


def test_a_length_that_is_split_is_refused(monkeypatch):
    mesh = make_mesh(MeshConfig(), devices=jax.devices()[:1])
    split = types.SimpleNamespace(empty=False, shape={**mesh.shape, "sequence": 2})
    monkeypatch.setattr(jax.sharding, "get_abstract_mesh", lambda: split)
    with pytest.raises(
        InputError,
        match=r"cuDNN's attention needs complete rows on each device, but mesh.sequence is 2",
    ):
        ours("decoder", *operands("decoder")[:4])


MESH = """
import dataclasses
import jax, numpy as np
from t5x_lite.core.sharding import MeshConfig, make_mesh
from tests.nn import test_cudnn_attention as ours, test_pallas_attention as cases

for case in ("decoder, packed", "decoder", "across, packed"):
    visible, direction = cases.CASES[case]
    def tiled(x):
        return None if x is None else np.tile(np.asarray(x), (2, 1))
    visible = dataclasses.replace(visible, keys=tiled(visible.keys), queries=tiled(visible.queries))
    cases.CASES[case] = visible, direction
    given = cases.operands(case, rows=4)
    with jax.set_mesh(make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))):
        found = ours.run(ours.ours, case, *given)
        print(found[0].sharding.spec)
    for got, wanted in zip(found, ours.run(cases.plain, case, *given), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
"""


@pytest.mark.slow
def test_on_eight_devices_it_is_plain_attention():
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
    done = subprocess.run(
        [sys.executable, "-c", MESH],
        env={**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("tensor") == 3
