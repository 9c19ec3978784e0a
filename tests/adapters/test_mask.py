"""Masks as parts: bits, their order, and the remedy where they are no sum."""

import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.adapters.delta import Delta
from t5x_lite.adapters.delta_parts import Dense, Mask, Scale
from t5x_lite.core.errors import InputError

KEPT = np.array([[True, False, True], [False, True, True], [True, True, False]])
BASE = {"model": {"w": jnp.arange(1.0, 10.0).reshape(3, 3)}}


def delta(part):
    return Delta({"model/w": part})


def test_a_bit_for_each_entry():
    mask = Mask.of(KEPT)
    assert mask.arrays()["bits"].tolist() == [0b10101111, 0b00000000]
    np.testing.assert_array_equal(mask.kept(), KEPT)
    read = delta(mask).apply(BASE)["model"]["w"]
    np.testing.assert_array_equal(read, [[1, 0, 3], [0, 5, 6], [7, 8, 0]])


def test_it_comes_last_and_two_keep_what_both_keep():
    moved = Dense(np.ones((3, 3), np.float32)).then(Mask.of(KEPT))
    np.testing.assert_array_equal(
        delta(moved).apply(BASE)["model"]["w"], [[2, 0, 4], [0, 6, 7], [8, 9, 0]]
    )
    both = Mask.of(KEPT).then(Mask.of(~np.eye(3, dtype=bool)))
    np.testing.assert_array_equal(both.kept(), KEPT & ~np.eye(3, dtype=bool))
    scaled = Scale(np.full(3, 2.0, np.float32)).then(Mask.of(KEPT))
    np.testing.assert_array_equal(delta(scaled).apply(BASE)["model"]["w"][0], [2, 0, 6])
    with pytest.raises(InputError, match="a Scale change cannot follow a delta with a Mask"):
        Mask.of(KEPT).then(Scale(np.ones(3, np.float32)))
    with pytest.raises(InputError, match=r"shapes, \(3, 3\) and \(2,\)"):
        Mask.of(KEPT).then(Mask.of(np.ones(2, bool)))


def test_it_is_added_and_negated_after_it_was_made_a_sum():
    mask = delta(Mask.of(KEPT))
    with pytest.raises(InputError, match=r"by a Mask instead.*materialise"):
        _ = -mask
    with pytest.raises(InputError, match="a delta with a Mask change cannot be added"):
        _ = mask + mask
    sums = mask.materialise(BASE)
    back = (sums - 0.5 * sums).apply(BASE)["model"]["w"]
    np.testing.assert_array_equal(back, np.where(KEPT, 1.0, 0.5) * np.asarray(BASE["model"]["w"]))
