"""What a compiled train step of a module does, and does not do: searched in its HLO."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import pytest

from t5x_lite.adapters.bottleneck import seq_bn
from t5x_lite.adapters.lora import Lora
from t5x_lite.adapters.sparse import BitFit
from t5x_lite.core.sharding import MeshConfig, make_mesh
from t5x_lite.objectives.learner import Learner
from t5x_lite.optim.config import AdamW, Constant
from t5x_lite.optim.partial import joint_optimizer
from t5x_lite.train.step import abstract_state, make_train_step, state_shardings
from tests.adapters.hosts import HOSTS

D_MODEL, D_FF = 12, 44  # sizes that no other array of the step has
MODULES = {
    "lora": (Lora(rank=2),),
    "bitfit": (BitFit(),),
    "seq_bn": (seq_bn(reduction=4.0),),
    "full": (),
}


@functools.cache
def compiled(host, modules, *, dtype="float32"):
    """The step of a family's model, not run."""
    model, objective, batch = HOSTS[host]
    sizes = {"d_model": D_MODEL, "d_ff": D_FF, "dropout_rate": 0.0}
    learner = Learner.of(
        dataclasses.replace(model, **sizes),
        objective,
        adapters=modules,
        optimizer=AdamW(schedule=Constant(value=0.1)),
        dtype=dtype,
    )
    updates, mesh = learner.updates(), make_mesh(MeshConfig())
    layout = state_shardings(mesh, learner.axes, learner.optimizer_axes())
    state = abstract_state(learner.shapes, joint_optimizer(updates), layout)
    step = make_train_step(updates, mesh=mesh, layout=layout, seed=0, microbatches=1)
    with jax.set_mesh(mesh):
        return step.lower(state, jax.tree.map(jnp.asarray, batch)).compile()


def gradients_of_kernels(text):
    """Instructions that make, or write into, a float32 array of a feed-forward kernel's shape.

    A product that has this shape is x^T dy; in a scan it is written into the layers' own.
    """
    sizes = rf"(?:\d+,)?(?:{D_MODEL},{D_FF}|{D_FF},{D_MODEL})"
    made = rf"= f32\[{sizes}\]\S* (dot|dynamic-update-slice|multiply|add|divide|sqrt)\("
    return re.findall(made, text)


@pytest.mark.parametrize("host", ["t5", "deberta"])
@pytest.mark.gate("t5")
@pytest.mark.slow
def test_no_step_of_a_module_makes_the_gradient_of_a_frozen_kernel(host):
    """In bfloat16 no step of a module does, nor in float32; full fine-tuning makes them."""
    sides = {"full": "float32", "lora": "bfloat16", "seq_bn": "float32"}
    found = {
        name: gradients_of_kernels(compiled(host, MODULES[name], dtype=dtype).as_text())
        for name, dtype in sides.items()
    }
    assert found.pop("full")
    assert not [name for name, gradients in found.items() if gradients]


@pytest.mark.gate("bert")
@pytest.mark.parametrize("host", ["t5", "bert"])
@pytest.mark.slow
def test_a_step_of_biases_needs_less_memory_than_one_of_lora(host):
    """The gradient of A needs what goes into a layer; that of a bias does not."""
    steps = {name: compiled(host, MODULES[name]) for name in ("bitfit", "lora")}
    size = {name: step.memory_analysis().temp_size_in_bytes for name, step in steps.items()}
    assert 0 < size["bitfit"] < size["lora"]
    assert not [name for name, step in steps.items() if gradients_of_kernels(step.as_text())]
