import jax.numpy as jnp
import numpy as np
import pytest

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


SEGMENTS = jnp.array([[1, 1, 2, 2, 0]])


def test_an_encoder_sees_all_but_padding_or_its_own_segment():
    tokens = jnp.array([[7, 8, 9, 0]])
    assert picture(masks.of_encoder(tokens).dense(4)[0, 0]) == ["1 1 1 0"]
    packed = masks.of_encoder(tokens, jnp.array([[1, 2, 2, 0]]))
    assert picture(packed.dense(4)[0, 0]) == [
        "1 0 0 0",
        "0 1 1 0",
        "0 1 1 0",
        "0 0 0 0",
    ]


def test_a_decoder_is_causal_within_segments():
    assert picture(masks.of_decoder().dense(3)[0, 0]) == ["1 0 0", "1 1 0", "1 1 1"]
    assert picture(masks.of_decoder(SEGMENTS).dense(5)[0, 0]) == [
        "1 0 0 0 0",
        "1 1 0 0 0",
        "0 0 1 0 0",
        "0 0 1 1 0",
        "0 0 0 0 0",
    ]


def test_a_prefix_is_seen_both_ways_within_its_segment():
    prefix = jnp.array([[1, 1, 1, 0, 0]])
    assert picture(masks.of_decoder(prefix=prefix).dense(5)[0, 0]) == [
        "1 1 1 0 0",
        "1 1 1 0 0",
        "1 1 1 0 0",
        "1 1 1 1 0",
        "1 1 1 1 1",
    ]
    assert picture(masks.of_decoder(SEGMENTS, prefix=prefix).dense(5)[0, 0]) == [
        "1 1 0 0 0",
        "1 1 0 0 0",
        "0 0 1 0 0",
        "0 0 1 1 0",
        "0 0 0 0 0",
    ]


def test_targets_see_the_inputs_that_are_theirs():
    tokens = jnp.array([[7, 8, 0]])
    assert picture(masks.across(tokens).dense(5)[0, 0]) == ["1 1 0"]
    assert picture(masks.across(tokens, jnp.array([[2, 1, 0]]), SEGMENTS).dense(5)[0, 0]) == [
        "0 1 0",
        "0 1 0",
        "1 0 0",
        "1 0 0",
        "0 0 0",
    ]


def test_segment_ids_of_one_side():
    with pytest.raises(ValueError, match="for both encoder and decoder, or for neither"):
        masks.across(jnp.array([[7]]), jnp.array([[1]]))


def test_where_all_is_seen_there_is_no_mask():
    assert masks.Visibility().dense(3) is None
    assert masks.Visibility().block(3, 0, 2) is None


@pytest.mark.parametrize(
    "visible",
    [
        masks.of_encoder(SEGMENTS),
        masks.of_encoder(SEGMENTS, SEGMENTS),
        masks.of_decoder(),
        masks.of_decoder(SEGMENTS, prefix=jnp.array([[1, 0, 1, 1, 0]])),
        masks.across(SEGMENTS, SEGMENTS, SEGMENTS[:, 1:]),
    ],
    ids=["padding", "segments", "causal", "prefix", "across"],
)
def test_blocks_are_parts_of_the_whole(visible):
    num_queries = 5 if visible.queries is None else visible.queries.shape[1]
    blocks = [visible.block(num_queries, start, 2) for start in (0, 2, 4)]
    together = np.concatenate(blocks, axis=-1)[..., :5]  # the last block has one key
    np.testing.assert_array_equal(together, visible.dense(num_queries))


def test_a_query_s_own_mask_and_its_own_position():
    # [CLS] a b [SEP] [PAD]; two masks, {a} and {b}; who takes which.
    visible = masks.Visibility(
        keys=jnp.array([[1, 1, 1, 1, 0]]),
        hidden=jnp.array([[[0, 1, 0, 0, 0], [0, 0, 1, 0, 0]]], bool),
        picked=jnp.array([[0, 0, 0, 1, 0]]),
        itself=False,
    )
    dense = visible.dense(5)
    assert dense is not None
    assert picture(dense[0, 0]) == [
        "0 0 1 1 0",
        "1 0 1 1 0",
        "1 0 0 1 0",
        "1 1 0 0 0",
        "1 0 1 1 0",
    ]
    blocks = [visible.block(5, start, 2) for start in (0, 2, 4)]
    np.testing.assert_array_equal(np.concatenate(blocks, axis=-1)[..., :5], dense)


def test_what_is_only_causal():
    assert masks.of_decoder().is_only_causal
    assert not masks.of_decoder(jnp.ones((1, 2), jnp.int32)).is_only_causal
    assert not masks.of_encoder(jnp.ones((1, 2), jnp.int32)).is_only_causal
