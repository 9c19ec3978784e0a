"""The bookkeeping of decoding; that it decodes right is tested in tests/models."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.nn import cache as caching


def empty(*, valid, room, apart=False):
    """A cache of two layers with one head of size 1, whose prefix keys are 1, 2, ..."""
    valid = jnp.asarray(valid, bool)
    batch_size, prefix = valid.shape
    keys = jnp.broadcast_to(jnp.arange(1.0, prefix + 1), (2, batch_size, 1, 1, prefix))
    own = (keys, keys.swapaxes(-1, -2) + 100)
    own = caching.unstack(own, 2) if apart else own
    return caching.start(own, None, cross_mask=None, valid=valid, max_length=room + 1)


def write(cache, *tokens):
    """Writes each row's token as key, and 100 more as value, in both layers, as a step does."""
    slot, _, _ = caching.view(cache)
    keys = jnp.asarray(tokens, jnp.float32).reshape(cache.valid.shape[0], 1, 1, cache.num_rows)
    own = cache.own
    for layer in range(2):
        own = caching.put(own, (keys, keys.swapaxes(-1, -2) + 100), slot, jnp.int32(layer))
    return caching.advance(cache, own)


def seen(cache):
    """The keys that each row's next token sees, its own (still empty) slot left out."""
    _, mask, (_, positions) = caching.view(cache)
    keys, values = cache.own
    np.testing.assert_array_equal(keys[1], keys[0])
    written = np.asarray(keys[0, 0, 0, 0]) > 0
    np.testing.assert_array_equal(values[:, 0, 0, written, 0], keys[:, 0, 0, 0, written] + 100)
    keys = np.asarray(keys)[0, :, 0, 0]
    past = np.asarray(positions) < int(cache.index) + cache.valid.shape[1]
    return [
        keys[row][np.asarray(mask)[row, 0, beam] & past].tolist()
        for row in range(cache.valid.shape[0])
        for beam in range(cache.num_rows)
    ]


def picture(mask):
    return [" ".join("01"[int(seen)] for seen in row) for row in np.asarray(mask)]


def test_start_makes_room_behind_the_prefix():
    cache = empty(valid=[[0, 1, 1]], room=2)
    assert cache.own[0][1, 0, 0, 0].tolist() == [1, 2, 3, 0, 0]
    assert cache.own[1][1, 0, 0, :, 0].tolist() == [101, 102, 103, 0, 0]
    assert (cache.num_rows, int(cache.index)) == (1, 0)
    split = empty(valid=[[0, 1, 1]], room=2, apart=True)
    shapes = [[array.shape for array in pair] for pair in split.own]
    assert shapes == [[(1, 1, 1, 5), (1, 1, 5, 1)]] * 2


def test_no_room():
    with pytest.raises(
        ValueError, match="max_length of a decoding cache must be at least 1: got 0"
    ):
        empty(valid=[[1]], room=-1)


def test_view_of_one_row_is_the_past_and_itself():
    cache = write(empty(valid=[[0, 1], [1, 1]], room=3), 7, 8)
    slot, mask, (query, keys) = caching.view(cache)
    assert int(slot) == 3
    assert picture(mask[:, 0, 0]) == ["0 1 1 1 0", "1 1 1 1 0"]
    assert query.tolist() == [3]
    assert keys.tolist() == [0, 1, 2, 3, 4]


def test_view_of_several_rows():
    cache = write(caching.repeat(empty(valid=[[0, 1]], room=3), 2), 7, 8)
    slot, mask, (query, keys) = caching.view(cache)
    assert int(slot) == 4
    assert picture(mask[0, 0]) == ["0 1 1 0 1 0 0 0", "0 1 0 1 0 1 0 0"]
    assert query.tolist() == [3]
    assert keys.tolist() == [0, 1, 2, 2, 3, 3, 4, 4]
    assert cache.own[0][0, 0, 0, 0].tolist() == [1, 2, 7, 8, 0, 0, 0, 0]


@pytest.mark.slow
def test_selected_rows_see_their_ancestors():
    cache = caching.repeat(empty(valid=[[1], [1]], room=4), 2)
    cache = write(cache, 10, 11, 20, 21)
    assert seen(cache) == [[1, 10], [1, 11], [1, 20], [1, 21]]
    cache = caching.select(cache, jnp.array([1, 1, 3, 2]))
    assert seen(cache) == [[1, 11], [1, 11], [1, 21], [1, 20]]
    cache = write(cache, 12, 13, 22, 23)
    assert seen(cache) == [[1, 11, 12], [1, 11, 13], [1, 21, 22], [1, 20, 23]]
    cache = write(caching.select(cache, jnp.array([1, 0, 2, 2])), 14, 15, 24, 25)
    assert seen(cache) == [[1, 11, 13, 14], [1, 11, 12, 15], [1, 21, 22, 24], [1, 21, 22, 25]]


@pytest.mark.slow
def test_select_moves_no_key():
    cache = write(caching.repeat(empty(valid=[[1]], room=2), 3), 7, 8, 9)
    moved = caching.select(cache, jnp.array([2, 0, 0]))
    assert moved.own is cache.own
    assert moved.ancestors[:, 0].tolist() == [2, 0, 0]
    # What is yet to be written is a row's own.
    assert moved.ancestors[:, 1].tolist() == [0, 1, 2]


def test_repeat_is_row_major_and_copies_nothing_of_the_inputs():
    valid, across = jnp.ones((2, 1), bool), (jnp.ones((2, 2, 1, 3, 5)), jnp.ones((2, 2, 1, 5, 3)))
    own = (jnp.ones((2, 2, 1, 3, 1)), jnp.ones((2, 2, 1, 1, 3)))
    cross_mask = jnp.ones((2, 1, 1, 5), bool)
    cache = caching.start(own, across, cross_mask=cross_mask, valid=valid, max_length=4)
    wide = caching.repeat(cache, 4)
    assert wide.across is cache.across
    assert wide.cross_mask is cache.cross_mask
    assert wide.own[0].shape == (2, 2, 1, 3, 4 + 3 * 4)  # the prefix is rounded up to 4 slots
    assert wide.own[1].shape == (2, 2, 1, 4 + 3 * 4, 3)
    assert wide.valid.tolist() == [[False] * 3 + [True]] * 2
    assert wide.ancestors.shape == (8, 3)
    assert wide.num_rows == 4
    assert caching.repeat(cache, 1) is cache


@pytest.mark.slow
def test_repeat_after_some_tokens():
    cache = write(empty(valid=[[1], [1]], room=3), 10, 20)
    cache = write(caching.repeat(cache, 2), 11, 12, 21, 22)
    assert seen(cache) == [[1, 10, 11], [1, 10, 12], [1, 20, 21], [1, 20, 22]]
    cache = write(caching.repeat(cache, 2), *range(30, 38))
    assert seen(cache) == [
        [1, 10, 11, 30], [1, 10, 11, 31], [1, 10, 12, 32], [1, 10, 12, 33],
        [1, 20, 21, 34], [1, 20, 21, 35], [1, 20, 22, 36], [1, 20, 22, 37],
    ]  # fmt: skip


def test_repeat_zero_times():
    with pytest.raises(
        ValueError, match="rows of a decoding cache must be repeated at least once, but num is 0"
    ):
        caching.repeat(empty(valid=[[1]], room=1), 0)


def test_put_into_a_stack_is_put_into_its_layer():
    old = jnp.zeros((3, 1, 1, 1, 4)), jnp.zeros((3, 1, 1, 4, 1))
    new = jnp.array([5.0, 6.0]).reshape(1, 1, 1, 2), jnp.array([7.0, 8.0]).reshape(1, 1, 2, 1)
    keys, values = caching.put(old, new, jnp.int32(1), jnp.int32(2))
    assert keys[:, 0, 0, 0].tolist() == [[0] * 4, [0] * 4, [0, 5, 6, 0]]
    assert values[:, 0, 0, :, 0].tolist() == [[0] * 4, [0] * 4, [0, 7, 8, 0]]
    alone = caching.put((old[0][2], old[1][2]), new, jnp.int32(1))
    np.testing.assert_array_equal(alone[0], keys[2])
    np.testing.assert_array_equal(alone[1], values[2])


def test_a_cache_goes_through_jit():
    cache = empty(valid=[[1]], room=2)
    again = jax.jit(lambda cache: cache)(cache)
    assert isinstance(again, caching.Cache)
    assert jax.tree.structure(again) == jax.tree.structure(cache)
    jax.eval_shape(lambda cache: caching.repeat(cache, 2), cache)


def test_align():
    prefix = caching.align(
        jnp.array([[5, 6, 0], [7, 8, 9]]), jnp.array([[3, 0], [4, 2]]), batch_size=2
    )
    assert prefix.tokens.tolist() == [[0, 0, 0, 5, 6, 3], [0, 7, 8, 9, 4, 2]]
    assert prefix.valid.astype(int).tolist() == [[0, 0, 1, 1, 1, 1], [1] * 6]
    assert prefix.part.tolist() == [[0, 0, 0, 1, 1, 2], [0, 1, 1, 1, 2, 2]]


def test_align_without_parts_and_with_empty_rows():
    alone = caching.align(batch_size=2)
    assert alone.tokens.tolist() == [[0], [0]]
    assert alone.valid.tolist() == [[True], [True]]
    empty_row = caching.align(jnp.array([[0, 0], [4, 0]]), batch_size=2)
    assert empty_row.tokens.tolist() == [[0, 0, 0], [0, 0, 4]]
    assert empty_row.valid.astype(int).tolist() == [[0, 0, 1], [0, 1, 1]]


def test_prefix_mask():
    valid = jnp.array([[False, True, True, True]])
    assert picture(caching.prefix_mask(valid)[0, 0]) == [
        "0 0 0 0",
        "0 1 0 0",
        "0 1 1 0",
        "0 1 1 1",
    ]
    both_ways = jnp.array([[False, True, True, False]])
    assert picture(caching.prefix_mask(valid, both_ways)[0, 0]) == [
        "0 0 0 0",
        "0 1 1 0",
        "0 1 1 0",
        "0 1 1 1",
    ]


@pytest.mark.parametrize(
    ("num_slots", "num_rows", "shape"),
    [
        (63, 1, (2, 3, 5, 63)),
        (64, 1, (2, 6, 5, 32)),
        (65, 1, (2, 9, 5, 32)),
        (66, 3, (2, 9, 5, 30)),
        (80, 40, (2, 6, 5, 40)),
    ],
)
def test_blocks_of_keys_and_back(num_slots, num_rows, shape):
    keys = np.random.default_rng(0).normal(size=(2, 3, 5, num_slots)).astype(np.float32)
    blocks = caching.to_blocks(jnp.asarray(keys), num_rows=num_rows)
    assert blocks.shape == shape
    back = caching.from_blocks(blocks, num_heads=3, num_slots=num_slots)
    np.testing.assert_array_equal(back, keys)


@pytest.mark.parametrize("num_rows", [1, 3, 4])
@pytest.mark.slow
def test_steps_write_into_blocks_and_the_last_slots_when_there_is_no_room(num_rows):
    num_slots = 25 * num_rows if num_rows > 1 else 70
    rng = np.random.default_rng(0)
    keys, values = np.zeros((1, 2, 3, num_slots)), np.zeros((1, 2, num_slots, 3))
    pair = caching.to_blocks(jnp.asarray(keys), num_rows=num_rows), jnp.asarray(values)
    for slot in (0, 9 * num_rows, num_slots - num_rows, num_slots):
        new = rng.normal(size=(1, 2, 3, num_rows)).astype(np.float32)
        pair = caching.put(
            pair, (jnp.asarray(new), jnp.asarray(new).swapaxes(2, 3)), jnp.int32(slot)
        )
        first = min(slot, num_slots - num_rows)
        keys[..., first : first + num_rows] = new
        values[:, :, first : first + num_rows] = new.swapaxes(2, 3)
    got = caching.from_blocks(pair[0], num_heads=2, num_slots=num_slots)
    np.testing.assert_allclose(got, keys, rtol=1e-6)
    np.testing.assert_allclose(pair[1], values, rtol=1e-6)
