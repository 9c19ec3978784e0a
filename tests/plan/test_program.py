import types

import jax
import jax.numpy as jnp
import pytest

from t5x_lite.core.sharding import MeshConfig, batch_sharding, make_mesh, replicated
from t5x_lite.plan import program
from t5x_lite.plan.program import OutOfMemory, bytes_on_device, compile_step, read_overflow
from t5x_lite.train.step import TrainState

GIB = 2**30


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory "
            "space hbm. Used 25.30G of 15.75G hbm. Exceeded hbm capacity by 9.55G.",
            (round(25.3 * GIB), round(15.75 * GIB)),
        ),
        (
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
            "temporaries (1.31T) exceeds available HBM (95.74G).",
            (round(1.31 * 2**40), round(95.74 * GIB)),
        ),
        ("RESOURCE_EXHAUSTED: Out of something.", (None, None)),
        ("INTERNAL: a bug", None),
    ],
)
def test_read_overflow(message, expected):
    assert read_overflow(message) == expected


def abstract(mesh, **shapes):
    return {
        name: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=replicated(mesh))
        for name, shape in shapes.items()
    }


@pytest.fixture
def given():
    """A mesh of one device, a state of 6 + 2 + 1 numbers, and a batch of 4 x 3."""
    mesh = make_mesh(MeshConfig(), devices=jax.devices()[:1])
    step = jax.ShapeDtypeStruct((), jnp.int32, sharding=replicated(mesh))
    state = TrainState(step, abstract(mesh, kernel=(3, 2)), abstract(mesh, moment=(2,)))
    rows = jax.ShapeDtypeStruct((4, 3), jnp.int32, sharding=batch_sharding(mesh))
    return mesh, state, {"decoder_target_tokens": rows}


def test_bytes_on_device(given):
    _, state, batch = given
    assert bytes_on_device(state.params) == 24
    assert bytes_on_device(batch) == 48


def test_a_program_s_memory(given):
    mesh, state, batch = given

    def step(state, batch):
        moved = batch["decoder_target_tokens"].astype(jnp.float32) @ state.params["kernel"]
        params = jax.tree.map(lambda x: x + jnp.sum(moved), state.params)
        return TrainState(state.step + 1, params, state.optimizer), {"loss": jnp.sum(moved)}

    found = compile_step(jax.jit(step, donate_argnums=0), state, batch, mesh=mesh)
    memory = found.memory
    assert (memory.parameters, memory.optimizer, memory.batch) == (24, 12, 48)
    assert memory.results >= 4
    assert memory.peak >= 24 + 12 + 48 + memory.temporaries + memory.results
    assert found.reading is not None
    assert found.reading.collectives == {}
    assert found.compile_seconds > 0
    assert found.trace_seconds > 0
    assert found.flops is not None
    assert found.flops >= 2 * 4 * 3 * 2  # the product
    assert found.bytes_accessed is not None
    assert found.bytes_accessed >= 24 + 48


def test_a_step_that_does_not_fit(given):
    def compile_():
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Used 2.00K of 1.00K hbm.")

    step = types.SimpleNamespace(lower=lambda *_: types.SimpleNamespace(compile=compile_))
    mesh, state, batch = given
    with pytest.raises(OutOfMemory) as raised:
        compile_step(step, state, batch, mesh=mesh)
    assert (raised.value.needed, raised.value.available) == (2048, 1024)


def test_a_text_that_cannot_be_printed():
    def as_text():
        raise jax.errors.JaxRuntimeError("INTERNAL: RET_CHECK failure")

    assert program._read(types.SimpleNamespace(as_text=as_text)) is None
