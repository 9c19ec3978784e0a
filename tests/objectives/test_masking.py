"""Masks: which tokens, how many, together with what, and what stands in their place."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.objectives import masked_lm

# [CLS] un ##aff ##able men [SEP] [PAD]; and two packed documents of one word and two.
WORD_IDS = jnp.array([[0, 1, 1, 1, 2, 0, 0], [0, 1, 0, 0, 2, 3, 0]])


def key(seed=0):
    return jax.random.key(seed)


def units(word_ids=WORD_IDS, **options):
    return masked_lm.units(word_ids, **{"whole_word": True, "key": key(), **options})


def test_units_are_words_or_tokens():
    assert units().tolist() == [[0, 1, 1, 1, 2, 0, 0], [0, 1, 0, 0, 2, 3, 0]]
    assert units(whole_word=False).tolist() == [[0, 1, 2, 3, 4, 0, 0], [0, 1, 0, 0, 2, 3, 0]]


def test_units_are_numbered_anew():
    assert units(jnp.array([[7, 7, 0, 90, 91]])).tolist() == [[1, 1, 0, 2, 3]]


def test_ngrams_have_lengths_of_probability_1_over_n():
    words = jnp.tile(jnp.arange(1, 2001)[None], (8, 1))
    runs = np.asarray(units(words, max_ngram=3))
    sizes = np.concatenate([np.bincount(row)[1:-1] for row in runs])
    expected = np.array([1, 1 / 2, 1 / 3]) / (1 + 1 / 2 + 1 / 3)
    np.testing.assert_allclose(np.bincount(sizes)[1:] / len(sizes), expected, atol=0.015)


@pytest.mark.parametrize("seed", range(4))
def test_ngrams_hold_whole_words_and_end_at_special_tokens(seed):
    word_ids = np.array([[0, 1, 1, 2, 3, 0, 4, 5, 5, 6, 0]])
    found = np.asarray(units(jnp.asarray(word_ids), max_ngram=3, key=key(seed)))[0]
    assert (found == 0).tolist() == (word_ids[0] == 0).tolist()
    assert found[1] == found[2] == 1
    assert found[7] == found[8]
    assert found[6] > found[4]
    assert set(np.diff(found[found > 0])) <= {0, 1}


def test_counts_are_rounded_and_at_least_one():
    real = jnp.arange(40)[None] < jnp.array([0, 1, 10, 30, 37])[:, None]
    # 0.15 * (0, 1, 10, 30, 37) = 0, 0.15, 1.5, 4.5, 5.55: halves go to the even number.
    assert masked_lm.counts(real, 0.15).tolist() == [0, 1, 2, 4, 6]
    assert masked_lm.most(40, 0.15) == 6
    assert masked_lm.most(2, 0.15) == 1


def chosen_of(what, counts, seed=0):
    return np.asarray(masked_lm.choose(jnp.asarray(what), jnp.asarray(counts), key=key(seed)))


@pytest.mark.slow
def test_tokens_are_chosen_in_the_exact_number_and_alike():
    what = np.tile(np.concatenate([[0], np.arange(1, 19), [0]]), (4000, 1))
    chosen = chosen_of(what, np.full(4000, 3))
    assert np.all(chosen.sum(axis=1) == 3)
    assert not chosen[:, [0, -1]].any()
    np.testing.assert_allclose(chosen[:, 1:-1].mean(axis=0), 3 / 18, atol=0.03)


def greedy(what, count, order):
    """The rule of the reference, one unit after the other."""
    taken = np.zeros(len(what), bool)
    for unit in order:
        size = np.sum(what == unit)
        if unit and size and taken.sum() + size <= count:
            taken |= what == unit
    return taken


@pytest.mark.parametrize("seed", range(3))
def test_the_choice_is_the_greedy_one_of_the_reference(seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 5, size=(50, 12))
    what = np.zeros((50, 40), np.int32)
    for row, row_sizes in zip(what, sizes, strict=True):
        ids = np.repeat(np.arange(1, 13), row_sizes)[:40]
        row[: len(ids)] = ids
    counts = rng.integers(0, 20, size=50)
    orders = np.argsort(np.asarray(jax.random.uniform(key(seed), (50, 41))), axis=1)
    expected = [greedy(*given) for given in zip(what, counts, orders, strict=True)]
    np.testing.assert_array_equal(chosen_of(what, counts, seed), expected)


@pytest.mark.slow
def test_rows_without_what_can_be_masked():
    assert not chosen_of([[0, 0, 0], [1, 1, 1]], [2, 2]).any()
    assert chosen_of([[0, 1, 0]], [5]).tolist() == [[False, True, False]]


@pytest.mark.slow
def test_several_masks_of_a_row():
    what = jnp.broadcast_to(units()[:, None], (2, 16, 7))
    chosen = np.asarray(masked_lm.choose(what, jnp.full((2, 16), 3), key=key()))
    # Of the first row either the long word or the short one; of the second all three.
    assert {tuple(row) for row in chosen[0].tolist()} == {
        (False, True, True, True, False, False, False),
        (False, False, False, False, True, False, False),
    }
    assert np.all(chosen[1] == (np.asarray(WORD_IDS[1]) > 0))


def test_fates_of_the_chosen():
    tokens = jnp.full((200, 100), 7)
    chosen = jnp.tile(jnp.arange(100) % 2 == 0, (200, 1))
    new = np.asarray(
        masked_lm.replaced(tokens, chosen, mask_id=3, vocab_size=1000, key=key(), mask=0.8)
    )
    assert np.all(new[:, 1::2] == 7)
    inside = new[:, ::2]
    np.testing.assert_allclose(np.mean(inside == 3), 0.8, atol=0.02)
    np.testing.assert_allclose(np.mean(inside == 7), 0.1, atol=0.02)
    others = inside[(inside != 3) & (inside != 7)]
    assert len(set(others.tolist())) > 400
    assert others.max() < 1000


@pytest.mark.parametrize(("mask", "random", "kinds"), [(1.0, 0.0, {3}), (0.85, 0.0, {3, 7})])
def test_other_fractions(mask, random, kinds):
    tokens = jnp.full((50, 50), 7)
    options = {"mask_id": 3, "vocab_size": 1000, "mask": mask, "random": random}
    new = masked_lm.replaced(tokens, jnp.ones((50, 50), bool), key=key(), **options)
    assert set(np.asarray(new).ravel().tolist()) == kinds
    np.testing.assert_allclose(np.mean(np.asarray(new) == 3), mask, atol=0.02)


def test_slots_are_the_chosen_positions_in_their_order():
    chosen = jnp.array([[True, False, True, True], [False, False, False, True], [False] * 4])
    found = masked_lm.slots(chosen, 3)
    assert found.positions.tolist() == [[0, 2, 3], [3, 0, 0], [0, 0, 0]]
    assert found.used.tolist() == [[1, 1, 1], [1, 0, 0], [0, 0, 0]]
    tokens = jnp.arange(12).reshape(3, 4)
    assert masked_lm.at_slots(tokens, found).tolist() == [[0, 2, 3], [7, 4, 4], [8, 8, 8]]
    vectors = jnp.stack([tokens, -tokens], axis=-1)
    assert masked_lm.at_slots(vectors, found)[1].tolist() == [[7, -7], [4, -4], [4, -4]]
    put = masked_lm.put_at_slots(tokens, found, jnp.full((3, 3), 99))
    assert put.tolist() == [[99, 1, 99, 99], [4, 5, 6, 99], [8, 9, 10, 11]]


def test_keys():
    noise, dropout = masked_lm.noise_and_dropout(None)
    assert dropout is None
    assert noise == key(0)
    noise, dropout = masked_lm.noise_and_dropout(key(0))
    assert len({str(jax.random.key_data(k)) for k in (noise, dropout, key(0))}) == 3
