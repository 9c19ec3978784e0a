import jax.numpy as jnp
import numpy as np

from t5x_lite.nn import masks


def picture(mask):
    """Rows of a mask [T, S] as text."""
    return [" ".join("01"[int(seen)] for seen in row) for row in np.asarray(mask)]


def test_padding_hides_token_0_from_every_query():
    mask = masks.padding(jnp.array([[7, 1, 0, 0], [7, 8, 9, 1]]))
    assert mask.shape == (2, 1, 1, 4)
    assert picture(mask[:, 0, 0]) == [
        "1 1 0 0",
        "1 1 1 1",
    ]


def test_causal():
    mask = masks.causal(4)
    assert mask.shape == (1, 1, 4, 4)
    assert picture(mask[0, 0]) == [
        "1 0 0 0",
        "1 1 0 0",
        "1 1 1 0",
        "1 1 1 1",
    ]


def test_segments_see_themselves_and_nothing_sees_segment_0():
    mask = masks.segments(jnp.array([[1, 1, 2, 0]]), jnp.array([[1, 2, 2, 0, 0]]))
    assert mask.shape == (1, 1, 4, 5)
    assert picture(mask[0, 0]) == [
        "1 0 0 0 0",
        "1 0 0 0 0",
        "0 1 1 0 0",
        "0 0 0 0 0",
    ]


def test_combine_is_the_conjunction():
    ids = jnp.array([[1, 1, 2, 2], [1, 2, 3, 0]])
    mask = masks.combine(masks.causal(4), None, masks.segments(ids, ids))
    assert mask is not None
    assert mask.shape == (2, 1, 4, 4)
    assert picture(mask[0, 0]) == [
        "1 0 0 0",
        "1 1 0 0",
        "0 0 1 0",
        "0 0 1 1",
    ]
    assert picture(mask[1, 0]) == [
        "1 0 0 0",
        "0 1 0 0",
        "0 0 1 0",
        "0 0 0 0",
    ]


def test_combine_of_nothing_is_none():
    assert masks.combine() is None
    assert masks.combine(None, None) is None


def test_masks_are_boolean():
    ids = jnp.array([[1, 0]])
    for mask in (masks.padding(ids), masks.causal(2), masks.segments(ids, ids)):
        assert mask.dtype == jnp.bool_
