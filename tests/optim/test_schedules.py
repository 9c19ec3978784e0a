import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.optim.config import (
    Constant,
    Cosine,
    InverseSquareRoot,
    Linear,
    LinearDecayTail,
    Triangular,
    Warmup,
)


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        (Constant(value=0.001), {0: 0.001, 10**6: 0.001}),
        (
            InverseSquareRoot(),
            {0: 0.01, 9_999: 0.01, 10_000: 0.01, 40_000: 0.005, 1_000_000: 0.001},
        ),
        (InverseSquareRoot(value=2.0, warmup_steps=4), {0: 1.0, 4: 1.0, 16: 0.5}),
        (
            Linear(peak=1.0, total_steps=20, warmup_steps=10),
            {0: 0.0, 5: 0.5, 10: 1.0, 15: 0.5, 20: 0.0, 30: 0.0},
        ),
        (Linear(peak=1.0, total_steps=10, end=0.5), {0: 1.0, 5: 0.75, 10: 0.5, 11: 0.5}),
        (
            Triangular(peak=3.2, total_steps=100),
            {0: 0.1, 5: 1.65, 10: 3.2, 55: 1.65, 100: 0.1, 200: 0.1},
        ),
        (
            Cosine(peak=1.0, total_steps=20, warmup_steps=10),
            {0: 0.0, 5: 0.5, 10: 1.0, 15: 0.5, 20: 0.0, 30: 0.0},
        ),
        (Cosine(peak=2.0, total_steps=9, end=1.0), {0: 2.0, 3: 1.75, 6: 1.25, 9: 1.0}),
        (
            Warmup(steps=4, then=InverseSquareRoot(value=1.0, warmup_steps=1)),
            {0: 0.0, 1: 0.25, 4: 0.5, 16: 0.25},
        ),
        (
            LinearDecayTail(body=Constant(value=1.0), total_steps=100),
            {0: 1.0, 90: 1.0, 95: 0.5, 100: 0.0, 110: 0.0},
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values(schedule, values):
    rate = schedule.build()
    for step, expected in values.items():
        np.testing.assert_allclose(rate(step), expected, rtol=1e-6, atol=1e-7, err_msg=str(step))
        np.testing.assert_allclose(rate(jnp.int32(step)), expected, rtol=1e-6, atol=1e-7)
    traced = jax.jit(rate)(jnp.int32(0))
    assert traced.dtype == jnp.float32
    assert traced.shape == ()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Constant(value=-1.0), "Constant: value must be at least 0: got -1.0"),
        (lambda: Constant(value=float("nan")), "value must be at least 0: got nan"),
        (lambda: InverseSquareRoot(warmup_steps=0), "warmup_steps must be at least 1"),
        (
            lambda: Linear(total_steps=10, warmup_steps=11),
            "Linear: total_steps 10 must be more than warmup_steps 11",
        ),
        (lambda: Linear(total_steps=0), "total_steps must be at least 1"),
        (lambda: Linear(total_steps=5, warmup_steps=-1), "warmup_steps must be at least 0"),
        (lambda: Triangular(total_steps=9), "at least 1 step; got 9"),
        (
            lambda: Triangular(total_steps=9, cut_fraction=1.0),
            r"cut_fraction must be in \(0, 1\): got 1.0",
        ),
        (lambda: Triangular(total_steps=99, ratio=0.5), "ratio must be at least 1: got 0.5"),
        (lambda: Cosine(total_steps=10, warmup_steps=10), "Cosine: total_steps 10 must be more"),
        (lambda: Warmup(steps=0, then=Constant()), "Warmup: steps must be at least 1"),
        (
            lambda: LinearDecayTail(body=Constant(), total_steps=10, fraction=2.0),
            r"fraction must be in \(0, 1\]: got 2.0",
        ),
    ],
)
def test_refuses_nonsense(make, message):
    with pytest.raises(InputError, match=message):
        make()
