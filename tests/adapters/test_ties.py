import numpy as np
import pytest

from t5x_lite.adapters.delta import Delta
from t5x_lite.adapters.delta_merging import Ties, merge
from t5x_lite.adapters.delta_parts import Dense, LowRank
from t5x_lite.core.errors import InputError

RNG = np.random.default_rng(1)


def reference(states, weights, density, scale):
    """The steps of the paper on flat vectors."""
    paths = sorted({path for state in states for path in state})
    shapes = {path: x.shape for state in states for path, x in state.items()}
    rows = []
    for state, weight in zip(states, weights, strict=True):
        flat = np.concatenate([state.get(p, np.zeros(shapes[p])).ravel() for p in paths])
        order = np.argsort(-np.abs(flat), kind="stable")
        kept = np.zeros_like(flat)
        most = round(density * sum(x.size for x in state.values()))
        kept[order[:most]] = flat[order[:most]]
        rows.append(weight * kept)
    stacked = np.stack(rows)
    sign = np.sign(stacked.sum(0))
    sign[sign == 0] = np.sign(sign.sum())
    agrees = (np.sign(stacked) == sign) & (stacked != 0)
    mean = np.where(agrees, stacked, 0).sum(0) / np.maximum(agrees.sum(0), 1)
    ends = np.cumsum([int(np.prod(shapes[p])) for p in paths])[:-1]
    parts = np.split(scale * mean, ends)
    return {p: x.reshape(shapes[p]) for p, x in zip(paths, parts, strict=True)}


@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0), (1.0, 0.5, 2.0)])
@pytest.mark.parametrize("density", [0.2, 0.5, 1.0])
def test_three_state_dicts(weights, density):
    shapes = {"model/a/kernel": (2, 4, 3), "model/b/bias": (5,)}
    states = [
        {path: RNG.standard_normal(s).astype(np.float32) for path, s in shapes.items()}
        for _ in range(3)
    ]
    del states[2]["model/b/bias"]
    deltas = [Delta({path: Dense(x) for path, x in state.items()}) for state in states]
    found = merge(deltas, Ties(density=density, scale=0.7), weights=weights)
    for path, expected in reference(states, weights, density, 0.7).items():
        np.testing.assert_allclose(found.parts[path].dense(), expected, rtol=1e-5, atol=1e-6)


def test_a_sum_of_zero_takes_the_sign_of_the_majority():
    one, two = (
        Delta({"a": Dense(np.array(x, np.float32))})
        for x in ([1.0, 2.0, -3.0, 0.0], [-1.0, 2.0, -3.0, 5.0])
    )
    # Signs of the sums: 0, 1, -1, 1; their sum is 1, so that the first counts as positive.
    found = merge([one, two], Ties(density=1.0)).parts["a"].dense()
    np.testing.assert_array_equal(found, [1.0, 2.0, -3.0, 5.0])


def test_it_is_of_products_and_not_of_factors():
    parts = [
        LowRank(*(RNG.standard_normal(s).astype(np.float32) for s in ((4, 2), (2, 3))), 0.5)
        for _ in range(2)
    ]
    found = merge([Delta({"a/kernel": part}) for part in parts], Ties(density=0.5))
    expected = reference([{"a/kernel": part.dense()} for part in parts], (1, 1), 0.5, 1.0)
    np.testing.assert_allclose(found.parts["a/kernel"].dense(), expected["a/kernel"], rtol=1e-5)


def test_what_is_refused():
    delta = Delta({"a": Dense(np.ones(3, np.float32))})
    with pytest.raises(
        InputError, match=r"must not be negative, got \(1, -1\); subtract the delta"
    ):
        merge([delta, delta], Ties(), weights=(1, -1))
    with pytest.raises(InputError, match=r"density must be in \(0, 1\]: got 0"):
        Ties(density=0.0)
