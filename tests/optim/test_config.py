import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest

from t5x_lite.core import trees
from t5x_lite.core.errors import InputError
from t5x_lite.optim.config import (
    Adafactor,
    AdamW,
    Constant,
    InverseSquareRoot,
    Linear,
    Warmup,
    decays,
)

AXES = {
    "model": {
        "wi": ("layers", "embed", "mlp"),
        "norm": ("layers", "embed"),
        "relpos": ("relpos_buckets", "heads"),
        "embedding": ("vocab", "embed"),
    },
    "objective": {},
}


def make_params(seed=0):
    rng = np.random.default_rng(seed)
    shapes = {"wi": (2, 128, 256), "norm": (2, 128), "relpos": (32, 4), "embedding": (16, 128)}
    leaves = {k: jnp.asarray(rng.standard_normal(s), jnp.float32) for k, s in shapes.items()}
    return {"model": leaves, "objective": {}}


OPTIMIZERS = [
    Adafactor(schedule=Constant(value=0.1)),
    Adafactor(schedule=Constant(value=0.1), momentum=0.9, clip_norm=1.0),
    AdamW(schedule=Linear(peak=0.1, total_steps=10)),
    AdamW(schedule=Constant(value=0.1), clip_norm=1.0),
]


def run(transformation, params, grads, state=None):
    state = transformation.init(params) if state is None else state
    step = jax.jit(transformation.update)
    for grad in grads:
        updates, state = step(grad, state, params)
        params = optax.apply_updates(params, updates)
    return params, state


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: f"{type(o).__name__}{o.clip_norm}")
def test_state_axes_have_the_structure_and_ranks_of_the_state(optimizer):
    params = make_params()
    state = optimizer.build(AXES).init(params)
    axes = optimizer.state_axes(AXES, jax.eval_shape(lambda: params))
    ranks = jax.tree.map(len, axes, is_leaf=lambda node: isinstance(node, tuple))
    assert ranks == jax.tree.map(jnp.ndim, state)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: f"{type(o).__name__}{o.clip_norm}")
def test_the_state_survives_a_checkpoint_bit_for_bit(optimizer, tmp_path):
    params, transformation = make_params(), optimizer.build(AXES)
    grads = [make_params(seed) for seed in range(1, 5)]
    middle, state = run(transformation, params, grads[:2])
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", state)
        checkpointer.wait_until_finished()
        target = jax.eval_shape(transformation.init, params)
        restored = checkpointer.restore(tmp_path / "state", target)
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    expected, _ = run(transformation, params, grads)
    got, _ = run(transformation, middle, grads[2:], restored)
    jax.tree.map(np.testing.assert_array_equal, got, expected)


def test_adamw_equals_optax_with_the_mask_of_matrices():
    params, grads = make_params(), [make_params(seed) for seed in range(1, 6)]
    schedule = Linear(peak=0.1, total_steps=10, warmup_steps=2)
    mask = {
        "model": {"wi": True, "norm": False, "relpos": False, "embedding": True},
        "objective": {},
    }
    theirs = optax.adamw(schedule.build(), b1=0.8, b2=0.95, eps=1e-6, weight_decay=0.1, mask=mask)
    ours = AdamW(schedule=schedule, b1=0.8, b2=0.95, eps=1e-6, weight_decay=0.1).build(AXES)
    got, expected = run(ours, params, grads)[0], run(theirs, params, grads)[0]
    for path, leaf in trees.flatten(got).items():
        np.testing.assert_allclose(
            leaf, trees.flatten(expected)[path], rtol=1e-6, atol=1e-6, err_msg=path
        )


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("embed", "mlp"), True),
        (("layers", "embed", "mlp"), True),
        (("layers", "embed"), False),
        (("embed",), False),
        (("relpos_buckets", "heads"), False),
        (("layers", "relpos_buckets", "heads"), False),
        ((), False),
        (("layers",), False),
    ],
)
def test_decay_spares_scales_and_position_biases(names, expected):
    assert decays(names) is expected


def test_clip_norm_scales_all_gradients_together():
    params = {"a": jnp.zeros(1), "b": jnp.zeros(1)}
    axes = {"a": ("embed",), "b": ("embed",)}
    transformation = AdamW(
        schedule=Constant(value=1.0), b1=0.0, b2=0.0, eps=1.0, weight_decay=0.0, clip_norm=1.0
    ).build(axes)
    grads = {"a": jnp.asarray([30.0]), "b": jnp.asarray([40.0])}
    updates, _ = transformation.update(grads, transformation.init(params), params)
    # g = (0.6, 0.8) after clipping; the step is g / (|g| + 1).
    np.testing.assert_allclose(updates["a"], [-0.6 / 1.6], rtol=1e-6)
    np.testing.assert_allclose(updates["b"], [-0.8 / 1.8], rtol=1e-6)


def test_groups_are_clipped_apart():
    params = {"a": {"w": jnp.zeros(1), "v": jnp.zeros(1)}, "b": jnp.zeros(1), "objective": {}}
    axes = {"a": {"w": ("embed",), "v": ("embed",)}, "b": ("embed",), "objective": {}}
    options = {"b1": 0.0, "b2": 0.0, "eps": 1.0, "weight_decay": 0.0, "clip_norm": 1.0}

    def made(*groups):
        return AdamW(schedule=Constant(value=1.0), clip_groups=groups, **options).build(axes)

    grads = {
        "a": {"w": jnp.asarray([30.0]), "v": jnp.asarray([40.0])},
        "b": jnp.asarray([0.5]),
        "objective": {},
    }
    transformation = made("a/.*")
    updates, _ = transformation.update(grads, transformation.init(params), params)
    # g = (0.6, 0.8) and 0.5, whose norm is below 1; the step is g / (|g| + 1).
    np.testing.assert_allclose(updates["a"]["w"], [-0.6 / 1.6], rtol=1e-6)
    np.testing.assert_allclose(updates["a"]["v"], [-0.8 / 1.8], rtol=1e-6)
    np.testing.assert_allclose(updates["b"], [-0.5 / 1.5], rtol=1e-6)
    with pytest.raises(InputError, match=r"'c/\.\*' matches no parameter path"):
        made("a/.*", "c/.*")
    with pytest.raises(InputError, match=r"clip_groups: '\('"):
        made("(")


def test_adam_without_bias_correction():
    """Of the first step: m = 0.1 g, v = 0.001 g^2, so that the step is about 3.2 times larger."""
    optimizer = AdamW(
        schedule=Constant(value=1.0), eps=1e-6, weight_decay=0.0, bias_correction=False
    )
    params, axes = {"a": jnp.zeros(2)}, {"a": ("embed",)}
    transformation = optimizer.build(axes)
    grads = {"a": jnp.asarray([0.5, -2.0])}
    updates, state = transformation.update(grads, transformation.init(params), params)
    expected = 0.1 * 0.5 / (np.sqrt(0.001) * 0.5 + 1e-6), -0.2 / (np.sqrt(0.001) * 2.0 + 1e-6)
    np.testing.assert_allclose(updates["a"], -np.asarray(expected), rtol=1e-5)
    updates, _ = transformation.update(grads, state, params)
    m, v = 0.19 * 0.5, 0.001999 * 0.25
    np.testing.assert_allclose(updates["a"][0], -m / (np.sqrt(v) + 1e-6), rtol=1e-5)


def test_the_rate_of_electra_decays_during_its_warmup():
    rate = Warmup(steps=10, then=Linear(peak=5e-4, total_steps=100)).build()
    expected = [5e-4 * (1 - step / 100) * min(1.0, step / 10) for step in (0, 5, 10, 50, 100)]
    np.testing.assert_allclose([rate(step) for step in (0, 5, 10, 50, 100)], expected, rtol=1e-5)


def test_an_offset_shifts_the_schedule():
    paper = Adafactor(schedule=InverseSquareRoot())
    later = dataclasses.replace(paper, schedule_offset=1_000_000)
    np.testing.assert_allclose([paper.rate()(0), later.rate()(0)], [0.01, 0.001], rtol=1e-6)
    np.testing.assert_allclose(later.rate()(jnp.asarray(3_000_000)), 5e-4, rtol=1e-6)
    assert dataclasses.replace(paper, schedule_offset="auto").first_step == 0


@pytest.mark.parametrize("kind", [Adafactor, AdamW])
def test_an_offset_shifts_nothing_but_the_schedule(kind):
    """Statistics begin anew: the first steps are those of a constant rate."""
    later = kind(schedule=InverseSquareRoot(warmup_steps=1), schedule_offset=10**8)
    constant = kind(schedule=Constant(value=1e-4))
    params, grads = make_params(), [make_params(seed) for seed in range(1, 4)]
    found, expected = (run(one.build(AXES), params, grads)[0] for one in (later, constant))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, expected)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Adafactor(schedule=Constant(), schedule_offset=-1),
            "optimizer.schedule_offset must be at least 0: got -1",
        ),
        (
            lambda: Adafactor(schedule=Constant(), clip_norm=0.0),
            "optimizer.clip_norm must be above 0: got 0.0",
        ),
        (lambda: Adafactor(schedule=Constant(), momentum=1.0), r"momentum must be in \[0, 1\)"),
        (lambda: Adafactor(schedule=Constant(), step_offset=-1), "step_offset must be at least 0"),
        (lambda: AdamW(schedule=Constant(), b2=1.5), r"optimizer.b2 must be in \[0, 1\): got 1.5"),
        (lambda: AdamW(schedule=Constant(), weight_decay=-0.1), "got -0.1"),
    ],
)
def test_refuses_nonsense(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize("optimizer", [OPTIMIZERS[0], OPTIMIZERS[2]], ids=["adafactor", "adamw"])
def test_parameters_have_rates_of_their_own(optimizer):
    """LoRA+ and faster heads: the first expression that matches a path counts."""
    params, grads = make_params(), make_params(seed=1)
    scaled = dataclasses.replace(optimizer, rates=("model/w.=16", "model/(wi|norm)=0"))
    plain, _ = optimizer.build(AXES).update(grads, optimizer.build(AXES).init(params), params)
    found, state = scaled.build(AXES).update(grads, scaled.build(AXES).init(params), params)
    factors = {"model/wi": 16.0, "model/norm": 0.0}
    for path, update in trees.flatten(found).items():
        expected = trees.flatten(plain)[path] * factors.get(path, 1.0)
        np.testing.assert_allclose(update, expected, rtol=1e-6, err_msg=path)
    assert jax.tree.structure(state) == jax.tree.structure(optimizer.build(AXES).init(params))


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        (("heads/.*=2",), "pattern 'heads/.*' matches no parameter path"),
        (("model/.*=2", "model/wi=3"), "pattern 'model/wi' matches no parameter path"),
        (("model/wi",), "must be PATTERN=FACTOR with a factor of at least 0"),
        (("model/wi=fast",), "must be PATTERN=FACTOR"),
        (("model/wi=-1",), "must be PATTERN=FACTOR"),
        (("model/wi=nan",), "must be PATTERN=FACTOR"),
        (("model/(=2",), "optimizer.rates"),
    ],
)
def test_rates_that_are_wrong(rates, message):
    with pytest.raises(InputError, match=message):
        AdamW(schedule=Constant(value=0.1), rates=rates).build(AXES)
