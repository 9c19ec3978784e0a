"""The attention kernel in JAX's simulation of a TPU: two cores, memory of NaN, races."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from t5x_lite.nn.attention_pattern import RelativeTable
from t5x_lite.nn.pallas_attention import pallas_attention
from tests.nn.test_pallas_attention import CASES, MAX_DISTANCE, operands, plain, run

FIELDS = {field.name for field in dataclasses.fields(pltpu.InterpretParams)}
CORES = "num_cores_or_threads" if "num_cores_or_threads" in FIELDS else "num_cores_per_device"
SIMULATED = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan", **{CORES: 2})
RACE = "RACE DETECTED"


@pytest.fixture(autouse=True)
def fresh():
    """What one simulation leaves behind must not change the next."""
    pltpu.reset_tpu_interpret_mode_state()
    yield
    pltpu.reset_tpu_interpret_mode_state()


def simulated(case, query, key, value, table):
    visible, direction = CASES[case]
    bias = None
    if direction is not None:
        bias = RelativeTable(table=table, bidirectional=direction, max_distance=MAX_DISTANCE)
    visible = dataclasses.replace(visible, block_size=8)
    return pallas_attention(query, key, value, visible=visible, bias=bias, interpret=SIMULATED)


def compare(case, capfd, *, heads):
    given = operands(case, rows=1, heads=heads)
    found = jax.block_until_ready(run(simulated, case, *given))
    for got, wanted in zip(found, run(plain, case, *given), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
    assert RACE not in "".join(capfd.readouterr())


def first_row(case):
    visible, direction = CASES[case]

    def cut(ids):
        return None if ids is None else ids[:1]

    fields = ("keys", "queries", "both_ways")
    changes = {name: cut(getattr(visible, name)) for name in fields}
    return dataclasses.replace(visible, **changes), direction


@pytest.mark.parametrize(
    "case",
    [
        "decoder, packed",
        pytest.param("prefix", marks=[pytest.mark.slow, pytest.mark.exhaustive]),
        pytest.param("encoder", marks=[pytest.mark.slow, pytest.mark.exhaustive]),
        pytest.param("across, packed", marks=[pytest.mark.slow, pytest.mark.exhaustive]),
    ],
)
def test_two_cores_share_the_heads_without_a_race(case, capfd, monkeypatch):
    monkeypatch.setitem(CASES, case, first_row(case))
    monkeypatch.setattr("t5x_lite.nn.pallas_kernels.LANES", 4)  # a head of 4 fills them: two groups
    compare(case, capfd, heads=2)


def test_a_race_would_be_seen(capfd):
    def kernel(x, out):
        out[...] = x[...] + pl.program_id(0)

    @jax.jit
    def both_write_one_block(x):
        return pl.pallas_call(
            kernel,
            grid=(2,),
            in_specs=[pl.BlockSpec((8, 128), lambda i: (0, 0))],
            out_specs=pl.BlockSpec((8, 128), lambda i: (0, 0)),
            out_shape=jax.ShapeDtypeStruct((8, 128), jnp.float32),
            interpret=SIMULATED,
            compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
        )(x)

    jax.block_until_ready(both_write_one_block(jnp.zeros((8, 128))))
    assert RACE in "".join(capfd.readouterr())


def test_memory_that_nothing_wrote_is_nan():
    def kernel(x, out, kept):
        out[...] = x[...] + kept[...]

    call = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((8, 128), jnp.float32),
        scratch_shapes=[pltpu.VMEM((8, 128), jnp.float32)],
        interpret=SIMULATED,
    )
    assert np.all(np.isnan(jax.jit(call)(jnp.zeros((8, 128)))))
