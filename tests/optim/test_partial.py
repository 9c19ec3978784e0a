"""Gradual unfreezing: who moves when, and that a layer trains as if its run began there."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.adapters.lora import Lora
from t5x_lite.core.errors import InputError
from t5x_lite.core.sharding import MeshConfig, make_mesh
from t5x_lite.core.trees import flatten
from t5x_lite.models.t5 import T5Config
from t5x_lite.objectives.learner import Learner
from t5x_lite.objectives.likelihood import Seq2Seq
from t5x_lite.optim.config import Adafactor, AdamW, Constant
from t5x_lite.optim.partial import Gradual, joint_optimizer
from t5x_lite.train.step import init_state, make_train_step, state_shardings
from tests.adapters.hosts import PAIRS, SIZES

RATE = Constant(value=0.1)
OPTIMIZERS = {
    "adamw": AdamW(schedule=RATE, weight_decay=0.3, clip_norm=0.5),
    "adafactor": Adafactor(
        schedule=RATE, momentum=0.9, weight_decay_rate=0.1, min_dim_size_to_factor=2
    ),
}
AXES = {
    "model": {
        "embedding": ("vocab", "embed"),
        "encoder": {
            "layers": {"w": ("layers", "embed", "mlp")},
            "bias": ("relpos_buckets", "heads"),
        },
        "decoder": {"layers": {"w": ("layers", "embed", "mlp")}},
    },
    "heads": {"x": {"w": ("layers", "embed")}},
}


@pytest.mark.parametrize(
    ("options", "layers", "depth", "first"),
    [
        ({"total_steps": 10}, 3, 3, (6, 3, 0)),
        ({"total_steps": 12}, 12, 12, (11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)),
        ({"total_steps": 2}, 3, 3, (1, 0, 0)),
        ({"total_steps": 100}, 2, 4, (50, 0)),
        ({"total_steps": 100}, 2, 3, (66, 0)),
        ({"total_steps": 100}, 1, 4, (0,)),
        ({"total_steps": 100, "episodes": 2}, 4, 4, (50, 50, 0, 0)),
        ({"total_steps": 90, "episodes": 3}, 4, 4, (60, 30, 0, 0)),
    ],
)
def test_the_first_step_of_each_layer(options, layers, depth, first):
    assert Gradual(**options).first_steps(layers, depth=depth) == first


def test_settings_that_are_wrong():
    for options in ({"total_steps": -1}, {"total_steps": 3, "episodes": 0}, {"episodes": 2}):
        with pytest.raises(InputError, match=r"unfreezing\."):
            Gradual(**options)
    optimizer = AdamW(schedule=RATE, unfreezing=Gradual(total_steps=3))
    with pytest.raises(InputError, match="requires a model with layers"):
        optimizer.build({"model": {"w": ("embed",)}}, depth=0)


def test_a_table_begins_with_the_lowest_layer_of_its_own_stack():
    names = {"bias": ("relpos_buckets", "heads"), "layers": {"w": ("layers", "embed")}}
    axes = {"model": {"encoder": names, "decoder": names, "relative": {"bias": names["bias"]}}}
    table = np.zeros((2, 2))
    stacks = {
        stack: {"bias": table, "layers": {"w": np.zeros((layers, 2))}}
        for stack, layers in (("encoder", 3), ("decoder", 1))
    }
    starts = Gradual(total_steps=9).starts(axes, depth=3)
    found = starts({"model": {**stacks, "relative": {"bias": table}}})["model"]
    assert [found[stack]["bias"] for stack in ("encoder", "decoder", "relative")] == [6, 0, 6]


def values(seed):
    """Arrays of the axes' structure: 3 layers, and 2 of the decoder."""
    sizes = {"layers": 3, "vocab": 5, "embed": 3, "mlp": 4, "relpos_buckets": 2, "heads": 2}
    rng = np.random.default_rng(seed)

    def array(names):
        return jnp.asarray(rng.standard_normal([sizes[name] for name in names], np.float32))

    made = jax.tree.map(array, AXES, is_leaf=lambda node: isinstance(node, tuple))
    made["model"]["decoder"]["layers"]["w"] = made["model"]["decoder"]["layers"]["w"][:2]
    return made


def run(optimizer, params, grads, axes=AXES, depth=3):
    """(parameters, state) before each step and after the last."""
    made = optimizer.build(axes, depth=depth)
    state, found = made.init(params), []
    step = jax.jit(made.update)
    for grad in grads:
        found.append((params, state))
        updates, state = step(grad, state, params)
        params = jax.tree.map(jnp.add, params, updates)
    return [*found, (params, state)]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_layer_trains_as_if_its_run_began_there(name):
    optimizer = dataclasses.replace(OPTIMIZERS[name], clip_norm=None)
    gradual = dataclasses.replace(optimizer, unfreezing=Gradual(total_steps=6))
    params, grads = values(0), [values(i) for i in range(1, 7)]
    found = run(gradual, params, grads)
    first = {"model/encoder/layers/w": (4, 2, 0), "model/decoder/layers/w": (4, 0)}
    whole = {"model/encoder/bias": 4, "model/embedding": 0, "heads/x/w": 0}
    before = flatten(params)
    for path, start in whole.items():
        for i, (now, _) in enumerate(found):
            assert np.array_equal(flatten(now)[path], before[path]) == (i <= start), (path, i)
    for path, starts in first.items():
        for layer, start in enumerate(starts):
            leaves = [flatten(now)[path][layer] for now, _ in found]
            still = [np.array_equal(leaf, before[path][layer]) for leaf in leaves]
            assert still == [i <= start for i in range(7)], (path, layer)
            states = [
                np.concatenate([np.ravel(leaf[layer]) for leaf in of_path(state, path)])
                for _, state in found
            ]
            assert [not state.any() for state in states] == [i <= start for i in range(7)]
            own = {"model": {"w": before[path][layer]}}
            alone = run(
                optimizer,
                own,
                [{"model": {"w": flatten(grad)[path][layer]}} for grad in grads[start:]],
                axes={"model": {"w": ("embed", "mlp")}},
            )
            np.testing.assert_allclose(leaves[-1], alone[-1][0]["model"]["w"], rtol=1e-6, atol=1e-7)


def of_path(state, path):
    """The arrays of an optimizer's state that are of a parameter."""
    return [leaf for key, leaf in flatten(state).items() if f"{path}/" in f"{key}/"]


@pytest.mark.parametrize(("name", "adapters"), [("adamw", ()), ("adafactor", (Lora(rank=2),))])
@pytest.mark.gate("adafactor-adapters1")
@pytest.mark.slow
def test_one_more_layer_of_each_stack_at_each_boundary(name, adapters):
    model = T5Config(**SIZES, d_kv=4, num_encoder_layers=3, num_decoder_layers=3)
    optimizer = dataclasses.replace(OPTIMIZERS[name], unfreezing=Gradual(total_steps=5))
    made = Learner.of(model, Seq2Seq(), adapters=adapters, optimizer=optimizer)
    (update,) = updates = made.updates()
    mesh = make_mesh(MeshConfig())
    layout = state_shardings(mesh, made.axes, made.optimizer_axes())
    state = init_state(made.init, joint_optimizer(updates), layout, seed=0)
    step = make_train_step(updates, mesh=mesh, layout=layout, seed=0)
    gradient = jax.jit(jax.grad(lambda p: made.loss(p, PAIRS).value()))
    moves = {0: {2}, 1: {1, 2}, 3: {0, 1, 2}}  # floor(n 5 / 3)
    stacked = [
        path for path in flatten(update.part(made.shapes)) if "layers" in flatten(made.axes)[path]
    ]
    assert {path.split("/")[-2 if adapters else -1] for path in stacked}
    for i in range(5):
        live = moves[max(start for start in moves if start <= i)]
        before = flatten(jax.tree.map(np.asarray, state.params))
        grads = flatten(gradient(state.params))
        state, metrics = step(state, PAIRS)
        after = flatten(jax.tree.map(np.asarray, state.params))
        square = 0.0
        for path in flatten(update.part(made.shapes)):
            table = "relative" in path or "bias" in path
            chosen = sorted(live) if path in stacked else slice(None)
            if path in stacked:
                moved = {j for j in range(3) if not np.array_equal(after[path][j], before[path][j])}
                # B of LoRA is 0 at first, so that A has no gradient at its first step.
                late = adapters and path.endswith("/a") and name == "adafactor"
                assert moved == live or late, (path, i)
                assert moved <= live, (path, i)
            elif table:
                assert np.array_equal(after[path], before[path]) == (i < 3), (path, i)
                chosen = slice(None) if i >= 3 else slice(0)
            square += float(np.sum(np.square(np.asarray(grads[path])[chosen])))
        np.testing.assert_allclose(float(metrics["gradient_norm"]), square**0.5, rtol=1e-4)
