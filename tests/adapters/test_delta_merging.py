import numpy as np
import pytest

from t5x_lite.adapters.delta import Delta, Identity
from t5x_lite.adapters.delta_merging import (
    AverageFactors,
    Dare,
    Fisher,
    Linear,
    PeftLinear,
    Svd,
    Ties,
    Zhang,
    dare_mask,
    merge,
)
from t5x_lite.adapters.delta_parts import Dense, LowRank, Scale
from t5x_lite.core.errors import InputError

RNG = np.random.default_rng(0)
Q, V, BIAS = "model/q/kernel", "model/v/kernel", "model/q/bias"


def array(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def lora(scale=0.5, paths=(Q, V)):
    return Delta({path: LowRank(array(2, 6, 3), array(2, 3, 5), scale) for path in paths})


def dense(paths=(Q, BIAS)):
    return Delta({path: Dense(array(6, 5)) for path in paths})


def value(delta, path):
    return delta.parts[path].dense() if path in delta.parts else 0.0


def test_linear_is_of_products():
    one, two = lora(0.5), lora(2.0, paths=(Q,))
    total = merge([one, two], weights=[2, -1])
    assert total.parts[Q].rank == 6
    for path in (Q, V):
        expected = 2 * value(one, path) - value(two, path)
        np.testing.assert_allclose(value(total, path), expected, atol=1e-5)
    # Two equal ones at a half are one.
    np.testing.assert_allclose(
        value(merge([one, one], weights=[0.5, 0.5]), Q), value(one, Q), atol=1e-6
    )


def test_svd_makes_no_product():
    one, two = lora(0.5), lora(2.0)
    exact = value(merge([one, two]), Q)
    u, s, v = np.linalg.svd(exact, full_matrices=False)
    found = merge([one, two], Svd(rank=2)).parts[Q]
    best = (u[..., :2] * s[..., None, :2]) @ v[..., :2, :]
    np.testing.assert_allclose(found.dense(), best, atol=1e-5)
    np.testing.assert_allclose(value(merge([one, two], Svd(rank=6)), Q), exact, atol=1e-5)


def test_factors_have_cross_terms():
    one, two = lora(2.0, paths=(Q,)), lora(2.0, paths=(Q,))
    a, b = ([part.parts[Q].a for part in (one, two)], [part.parts[Q].b for part in (one, two)])
    average = merge([one, two], AverageFactors(), weights=[0.5, 0.25])
    expected = 2 * (a[0] / 2 + a[1] / 4) @ (b[0] / 2 + b[1] / 4)
    np.testing.assert_allclose(value(average, Q), expected, atol=1e-5)
    # -1 turns both factors round, and so changes nothing; Zhang's rule negates.
    same = merge([one], AverageFactors(), weights=[-1])
    np.testing.assert_allclose(value(same, Q), value(one, Q), atol=1e-6)
    np.testing.assert_allclose(
        value(merge([one], Zhang(), weights=[-1]), Q), -value(one, Q), atol=1e-6
    )
    zhang = merge([one, two], Zhang(), weights=[0.5, -0.25])
    expected = 2 * (a[0] / 2 + a[1] / 4) @ (b[0] / 2 - b[1] / 4)
    np.testing.assert_allclose(value(zhang, Q), expected, atol=1e-5)
    root = np.sqrt
    peft = merge([one, two], PeftLinear(), weights=[0.5, 0.25])
    expected = (root(1.0) * a[0] + root(0.5) * a[1]) @ (root(1.0) * b[0] + root(0.5) * b[1])
    np.testing.assert_allclose(value(peft, Q), expected, atol=1e-5)
    # The fault that this mode keeps: three equal ones at a third are three times one.
    thrice = merge([one] * 3, PeftLinear(), weights=[1 / 3] * 3)
    np.testing.assert_allclose(value(thrice, Q), 3 * value(one, Q), rtol=1e-4, atol=1e-5)
    for how in (AverageFactors(), Zhang(), PeftLinear()):
        with pytest.raises(InputError, match="requires LoRAs of the same rank at the same sites"):
            merge([one, dense()], how)
    with pytest.raises(InputError, match="zhang requires LoRAs of the same scale"):
        merge([one, lora(1.0, paths=(Q,))], Zhang())


def test_dare_with_its_masks():
    one, two = dense(), dense(paths=(Q,))
    found = merge([one, two], Dare(p=0.4, seed=3), weights=[1, 2])
    expected = 0
    for i, (delta, weight) in enumerate(((one, 1), (two, 2))):
        kept = dare_mask(Q, (6, 5), p=0.4, seed=3, number=i)
        assert 0 < kept.sum() < kept.size
        expected = expected + weight * np.where(kept, value(delta, Q) / 0.6, 0)
    np.testing.assert_allclose(value(found, Q), expected, rtol=1e-5)
    again = merge([one, two], Dare(p=0.4, seed=3), weights=[1, 2])
    np.testing.assert_array_equal(value(found, Q), value(again, Q))
    assert not np.array_equal(
        dare_mask(Q, (6, 5), p=0.4, seed=3), dare_mask(V, (6, 5), p=0.4, seed=3)
    )
    nothing = merge([one], Dare(p=0.0))
    np.testing.assert_array_equal(value(nothing, BIAS), value(one, BIAS))
    with_ties = merge([one, two], Dare(p=0.4, seed=3, then=Ties(density=1.0)))
    assert np.count_nonzero(value(with_ties, Q)) <= np.count_nonzero(expected)
    with pytest.raises(InputError, match=r"p must be in \[0, 1\): got 1.0"):
        Dare(p=1.0)


def test_fisher_is_a_weighted_mean_of_entries():
    one, two = dense(), dense(paths=(Q,))
    first = {Q: np.square(array(6, 5)), BIAS: np.square(array(6, 5))}
    second = {Q: np.square(array(6, 5))}
    second[Q][0, 0] = first[Q][0, 1] = 0.0
    found = merge([one, two], Fisher([first, second], normalize=False), weights=[1, 3])
    f, g = (np.maximum(x[Q], 1e-6) for x in (first, second))
    expected = (f * value(one, Q) + 3 * g * value(two, Q)) / (f + 3 * g)
    np.testing.assert_allclose(value(found, Q), expected, rtol=1e-5)
    # An array that a diagonal lacks counts the floor.
    f, g = first[BIAS], np.float32(3e-6)
    np.testing.assert_allclose(value(found, BIAS), f * value(one, BIAS) / (f + g), rtol=1e-5)
    norms = [np.sqrt(sum(np.sum(x**2) for x in d.values())) for d in (first, second)]
    found = merge([one, two], Fisher([first, second]))
    f, g = (np.maximum(d[Q], 1e-6) / n for d, n in zip((first, second), norms, strict=True))
    expected = (f * value(one, Q) + g * value(two, Q)) / (f + g)
    np.testing.assert_allclose(value(found, Q), expected, rtol=1e-5)
    for weights, diagonals, reason in (
        ([1, -1], [first, second], "weights of merge method fisher must be above 0"),
        ([1, 1], [first], "Fisher diagonals, 1, must be the number of deltas, 2"),
        ([1, 1], [first, {Q: np.ones(3)}], r"of model/q/kernel has shape \(3,\)"),
    ):
        with pytest.raises(InputError, match=reason):
            merge([one, two], Fisher(diagonals), weights=weights)


def test_what_every_way_refuses():
    for deltas, weights, reason in (
        ([], (), "merge needs at least one delta"),
        ([dense()], (1, 2), "weights, 2, must be the number of deltas, 1"),
        ([dense(), Delta({Q: Scale(array(5))})], (), "Scale instead of a difference"),
    ):
        with pytest.raises(InputError, match=reason):
            merge(deltas, Linear(), weights=weights)
    one, two = (Delta(dense().parts, base=Identity("x", {Q: digest})) for digest in ("aa", "bb"))
    for how in (Linear(), Ties(), Svd(rank=1), Dare(p=0.1), Fisher([{}, {}])):
        with pytest.raises(InputError, match="different base models"):
            merge([one, two], how)
    with pytest.raises(InputError, match="with different shapes"):
        merge([dense(), lora()], Ties())


def test_factors_of_no_parts_have_the_heads_of_all():
    head = Delta(extra={"heads/mlm/bias": array(3)})
    assert set(merge([Delta(), head], AverageFactors()).extra) == {"heads/mlm/bias"}


def test_a_diagonal_of_another_model():
    one = dense((Q,))
    with pytest.raises(InputError, match=f"a Fisher diagonal lacks {Q}, which its delta changes"):
        merge([one, one], Fisher([{Q: np.ones((6, 5))}, {V: np.ones((6, 5))}]))


def test_seeds_and_keys():
    for seed in (-1, 2**31):
        with pytest.raises(
            InputError, match=r"seed of merge method dare must be at least 0 and below 2\^31, got"
        ):
            Dare(p=0.1, seed=seed)
    second = dare_mask(Q, (6, 5), p=0.4, seed=3, number=1)
    assert not np.array_equal(second, dare_mask(Q, (6, 5), p=0.4, seed=4))
