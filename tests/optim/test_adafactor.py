import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from t5x_lite.core import trees
from t5x_lite.optim import adafactor

STEPS = 5


def rate(step):
    return 0.1 / jnp.sqrt(1.0 + jnp.asarray(step, jnp.float32))


def make(learning_rate, axes, **options):
    settings = adafactor.Hyperparameters(**options)
    return adafactor.adafactor(learning_rate, axes, settings=settings)


def state_axes(axes, shapes, **options):
    return adafactor.state_axes(axes, shapes, settings=adafactor.Hyperparameters(**options))


def random_tree(shapes, *, seed, scale=1.0):
    rng = np.random.default_rng(seed)
    return {k: (scale * rng.standard_normal(s)).astype(np.float32) for k, s in shapes.items()}


def gradients(shapes):
    return [random_tree(shapes, seed=100 + i, scale=10.0 ** (i % 3 - 2)) for i in range(STEPS)]


def run(transformation, params, grads):
    @jax.jit
    def step(params, state, grad):
        updates, state = transformation.update(grad, state, params)
        return optax.apply_updates(params, updates), state

    params = jax.tree.map(jnp.asarray, params)
    state = transformation.init(params)
    for grad in grads:
        params, state = step(params, state, grad)
    return params, state


def reference(p, grads, *, momentum=None, decay=None, threshold=1.0, columns=None):
    """Adafactor of one parameter in float64; columns None is unfactored."""
    p, row, col, full, m = p.astype(np.float64), 0.0, 0.0, 0.0, 0.0
    for t, g in enumerate(grads):
        g = g.astype(np.float64)
        beta2 = 1 - (t + 1) ** -0.8
        square = g**2 + 1e-30
        if columns is None:
            full = beta2 * full + (1 - beta2) * square
            y = g / np.sqrt(full)
        else:
            rows = tuple(d for d in range(p.ndim) if d not in columns)
            row = beta2 * row + (1 - beta2) * square.mean(axis=columns, keepdims=True)
            col = beta2 * col + (1 - beta2) * square.mean(axis=rows, keepdims=True)
            y = g / np.sqrt(row * col / row.mean())
        if threshold is not None:
            y = y / max(1.0, np.sqrt((y**2).mean()) / threshold)
        s = 0.1 / np.sqrt(1 + t) * max(np.sqrt((p**2).mean()), 1e-3) * y
        if momentum is not None:
            m = momentum * m + (1 - momentum) * s
            s = m
        p = (1 - (decay or 0.0)) * p - s
    return p


SHAPES = {
    "scale": (64,),
    "small": (16, 256),
    "square": (128, 128),
    "wide": (128, 192),
    "tall": (192, 128),
    "joined": (3, 8, 5),
    "stacked_scale": (3, 64),
    "stacked_small": (3, 256, 16),
    "stacked_wide": (3, 128, 160),
    "stacked_tall": (3, 160, 128),
    "stacked_heads": (2, 12, 4, 6),
}
AXES = {
    "scale": ("embed",),
    "small": ("relpos_buckets", "heads"),
    "square": ("embed", "joined_kv"),
    "wide": ("embed", "mlp"),
    "tall": ("mlp", "embed"),
    "joined": ("embed", "heads", "kv"),
    "stacked_scale": ("layers", "embed"),
    "stacked_small": ("layers", "mlp", "heads"),
    "stacked_wide": ("layers", "embed", "mlp"),
    "stacked_tall": ("layers", "mlp", "embed"),
    "stacked_heads": ("layers", "embed", "heads", "kv"),
}
# The dims of one layer that the row means are over: the longer side, or what the names say.
COLUMNS = {
    "square": (1,),
    "wide": (1,),
    "tall": (0,),
    "joined": (1, 2),
    "stacked_wide": (1,),
    "stacked_tall": (0,),
    "stacked_heads": (1, 2),
}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.9, "weight_decay_rate": 0.01},
        {"factored": False, "clipping_threshold": None},
    ],
    ids=str,
)
def test_equals_a_numpy_reference(options):
    params, grads = random_tree(SHAPES, seed=0, scale=0.5), gradients(SHAPES)
    got, _ = run(make(rate, AXES, **options), params, grads)
    expected = {
        "momentum": options.get("momentum"),
        "decay": options.get("weight_decay_rate"),
        "threshold": options.get("clipping_threshold", 1.0),
    }
    for name, p in params.items():
        columns = COLUMNS.get(name) if options.get("factored", True) else None
        gs = [g[name] for g in grads]
        if name.startswith("stacked"):
            layers = [
                reference(p[i], [g[i] for g in gs], columns=columns, **expected)
                for i in range(len(p))
            ]
            wanted = np.stack(layers)
        else:
            wanted = reference(p, gs, columns=columns, **expected)
        np.testing.assert_allclose(got[name], wanted, rtol=1e-6, atol=1e-6, err_msg=name)


def test_stacked_parameters_step_as_separate_ones():
    stacked = {k: s for k, s in SHAPES.items() if k.startswith("stacked")}
    params, grads = random_tree(stacked, seed=1), gradients(stacked)
    for name in params:
        # Layers of different size: a mean over layers would show.
        for i in range(len(params[name])):
            params[name][i] *= 10.0**-i

    def separate(tree):
        return {f"{k}_{i}": v[i] for k, v in tree.items() for i in range(len(v))}

    axes = {k: AXES[k] for k in stacked}
    flat_axes = {f"{k}_{i}": a[1:] for k, a in axes.items() for i in range(stacked[k][0])}
    together, _ = run(make(rate, axes), params, grads)
    apart, _ = run(make(rate, flat_axes), separate(params), map(separate, grads))
    for name, p in separate(together).items():
        np.testing.assert_allclose(p, apart[name], rtol=1e-6, atol=1e-6, err_msg=name)


def test_equals_optax_on_matrices_and_vectors():
    names = ["scale", "small", "square", "wide", "tall"]
    shapes = {k: SHAPES[k] for k in names}
    params, grads = random_tree(shapes, seed=2), gradients(shapes)
    ours, _ = run(make(rate, {k: AXES[k] for k in names}), params, grads)
    theirs, _ = run(optax.adafactor(rate, min_dim_size_to_factor=128), params, grads)
    for name in names:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-6, atol=1e-6, err_msg=name)


def test_the_state_holds_only_what_is_used():
    axes = {"encoder": {"wi": ("layers", "embed", "mlp"), "norm": ("layers", "embed")}}
    params = {"encoder": {"wi": jnp.ones((2, 256, 128), jnp.bfloat16), "norm": jnp.ones((2, 8))}}
    state = make(rate, axes).init(params)
    assert {k: (v.shape, str(v.dtype)) for k, v in trees.flatten(state).items()} == {
        "count": ((), "int32"),
        "statistics/encoder/wi/row": ((2, 128), "float32"),
        "statistics/encoder/wi/column": ((2, 256), "float32"),
        "statistics/encoder/norm/full": ((2, 8), "float32"),
    }


@pytest.mark.parametrize("momentum", [None, 0.9])
def test_state_axes_have_the_structure_and_ranks_of_the_state(momentum):
    params = random_tree(SHAPES, seed=0)
    state = make(rate, AXES, momentum=momentum).init(params)
    axes = state_axes(AXES, params, momentum=momentum)
    ranks = {path: len(names) for path, names in trees.flatten(axes).items()}
    assert ranks == {path: leaf.ndim for path, leaf in trees.flatten(state).items()}


def test_state_axes_name_what_is_left():
    axes = state_axes(AXES, random_tree(SHAPES, seed=0))["statistics"]
    assert axes["wide"] == {"row": ("embed",), "column": ("mlp",)}
    assert axes["stacked_tall"] == {"row": ("layers", "embed"), "column": ("layers", "mlp")}
    assert axes["stacked_heads"] == {
        "row": ("layers", "embed"),
        "column": ("layers", "heads", "kv"),
    }
    assert axes["stacked_scale"] == {"full": ("layers", "embed")}


def test_zero_gradients_change_nothing():
    params = random_tree(SHAPES, seed=3)
    zeros = jax.tree.map(np.zeros_like, params)
    got, _ = run(make(rate, AXES), params, [zeros] * 3)
    for name in params:
        np.testing.assert_array_equal(got[name], params[name])


def test_zero_parameters_move_by_epsilon2_times_the_rate():
    axes, zeros = {"wi": ("layers", "embed")}, {"wi": jnp.zeros((2, 4))}
    transformation = make(lambda step: 0.5, axes)
    grads = {"wi": jnp.asarray([[1.0, -2.0, 3.0, -4.0], [0.0, 0.0, 0.0, 7.0]])}
    updates, _ = transformation.update(grads, transformation.init(zeros), zeros)
    expected = [[-5e-4, 5e-4, -5e-4, 5e-4], [0.0, 0.0, 0.0, -5e-4]]
    np.testing.assert_allclose(updates["wi"], expected, rtol=1e-6)


def test_step_offset_starts_the_statistics_anew():
    axes, params = {"w": ("embed",)}, {"w": jnp.ones(2)}
    transformation = make(lambda step: 0.1, axes, step_offset=10)
    state = {"count": jnp.int32(10), "statistics": {"w": {"full": jnp.full(2, 1e6)}}}
    _, new = transformation.update({"w": jnp.asarray([2.0, 3.0])}, state, params)
    np.testing.assert_allclose(new["statistics"]["w"]["full"], [4.0, 9.0])
    early, _ = transformation.update({"w": jnp.ones(2)}, transformation.init(params), params)
    assert np.isfinite(early["w"]).all()


def test_updates_are_f32_for_bf16_parameters_and_empty_dicts_stay():
    axes = {"model": {"w": ("embed",)}, "objective": {}}
    params = {"model": {"w": jnp.ones(3, jnp.bfloat16)}, "objective": {}}
    transformation = make(rate, axes)
    updates, _ = transformation.update(params, transformation.init(params), params)
    assert updates["model"]["w"].dtype == jnp.float32
    assert optax.apply_updates(params, updates)["objective"] == {}


def test_refuses_parameters_that_do_not_fit_their_axes():
    transformation = make(rate, {"wi": ("embed", "mlp")})
    with pytest.raises(ValueError, match="missing: wi; unexpected: wo"):
        transformation.init({"wo": jnp.ones((2, 2))})
    with pytest.raises(ValueError, match="wi must have a tuple of logical axes"):
        transformation.init({"wi": jnp.ones(2)})
    with pytest.raises(ValueError, match="pass params to update"):
        transformation.update({}, {}, None)


def test_refuses_a_half_named_parameter_of_higher_rank():
    transformation = make(rate, {"w": ("embed", "mlp", "bottleneck")})
    with pytest.raises(ValueError, match="rank 3 must be a row axis"):
        transformation.init({"w": jnp.ones((2, 2, 2))})


def test_a_module_is_not_scaled_by_its_own_size():
    """One that begins at 0 moves at the rate itself; the same array of a model barely does."""
    axes = {"adapters": {"a": {"b": ("embed", None)}}, "model": {"b": ("embed", None)}}
    params = jax.tree.map(lambda _: jnp.zeros((2, 3)), axes, is_leaf=lambda n: isinstance(n, tuple))
    settings = adafactor.Hyperparameters()
    made = adafactor.adafactor(lambda _: 0.1, axes, settings=settings)
    grads = jax.tree.map(lambda leaf: leaf + 0.5, params)
    steps, _ = made.update(grads, made.init(params), params)
    np.testing.assert_allclose(steps["adapters"]["a"]["b"], -0.1, rtol=1e-5)
    np.testing.assert_allclose(steps["model"]["b"], -0.1e-3, rtol=1e-5)
