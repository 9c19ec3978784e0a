import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t5x_lite.data.corruption import (
    CORRUPTIONS,
    LENGTHS,
    example_rng,
    invert,
    noise_counts,
    prefix_split,
    random_spans_lengths,
    random_spans_noise_mask,
    span_corruption,
)


def corrupt(tokens, **changes):
    options = {"seed": 0, "epoch": 0, "index": 0, "sentinel_start": 32099, **changes}
    return span_corruption(np.asarray(tokens, np.int32), **options)


def slow_span_corruption(tokens, mask, sentinel_start):
    """The definition, token by token."""
    inputs, targets, sentinel = [], [], sentinel_start
    for position, (token, cut) in enumerate(zip(tokens, mask, strict=True)):
        if not cut:
            inputs.append(token)
            continue
        if position == 0 or not mask[position - 1]:
            inputs.append(sentinel)
            targets.append(sentinel)
            sentinel -= 1
        targets.append(token)
    return inputs, targets


@pytest.mark.parametrize(
    ("inputs_length", "density", "mean", "lengths"),
    [
        (512, 0.15, 3.0, (568, 114)),  # T5's baseline, then the other spans of its table 7
        (512, 0.15, 2.0, (552, 126)),
        (512, 0.15, 5.0, (581, 105)),
        (512, 0.15, 10.0, (591, 99)),
        (1024, 0.15, 3.0, (1137, 229)),  # mT5
        (1024, 0.15, 20.0, (1193, 189)),  # ByT5
        (2048, 0.15, 3.0, (2274, 456)),
        (3, 0.15, 3.0, (2, 3)),
    ],
)
def test_lengths_are_those_of_t5(inputs_length, density, mean, lengths):
    assert random_spans_lengths(inputs_length, density, mean) == lengths


@given(
    inputs_length=st.integers(3, 600),
    density=st.sampled_from([0.05, 0.15, 0.3, 0.5, 0.8]),
    mean=st.sampled_from([1.0, 2.0, 3.0, 10.0]),
)
def test_a_chunk_of_the_raw_length_gives_just_these_lengths(inputs_length, density, mean):
    raw, targets_length = random_spans_lengths(inputs_length, density, mean)
    example = corrupt(np.arange(3, 3 + raw), noise_density=density, mean_noise_span_length=mean)
    assert len(example["inputs"]) + 1 <= inputs_length  # EOS is still to come
    assert len(example["targets"]) + 1 == targets_length


def test_lengths_refuse_inputs_that_hold_no_span():
    with pytest.raises(ValueError, match="at least 3, got 2"):
        random_spans_lengths(2, 0.15, 3.0)


@pytest.mark.parametrize(
    ("length", "counts"),
    [
        (0, (0, 0)),
        (1, (0, 0)),
        (2, (1, 1)),
        (3, (1, 1)),
        (10, (2, 1)),
        (20, (3, 1)),
        (568, (85, 28)),
    ],
)
def test_noise_counts(length, counts):
    assert noise_counts(length, 0.15, mean_span_length=3.0) == counts


def test_noise_counts_fit_whatever_the_density():
    assert noise_counts(10, 0.9, mean_span_length=1.0) == (9, 1)  # one kept token: one span


@pytest.mark.parametrize(("density", "mean"), [(0.0, 3.0), (1.0, 3.0), (0.15, 0.5)])
def test_noise_counts_refuse_what_has_no_meaning(density, mean):
    with pytest.raises(ValueError, match=r"must be .*, got"):
        noise_counts(10, density, mean_span_length=mean)


def test_mask_starts_kept_ends_cut_and_has_the_counts():
    for index in range(200):
        mask = random_spans_noise_mask(100, example_rng(0, 0, index))
        assert not mask[0]
        assert mask[-1]
        assert mask.sum() == 15
        assert np.sum(mask[1:] & ~mask[:-1]) == 5


def test_every_segmentation_is_equally_likely():
    # 5 tokens, 2 cut in 1 span, are always the last two; 6 tokens, 3 cut in 2 spans: 2 x 2 ways.
    seen = {}
    for index in range(4000):
        mask = random_spans_noise_mask(
            6, example_rng(0, 0, index), noise_density=0.5, mean_noise_span_length=1.5
        )
        seen[tuple(mask.astype(int))] = seen.get(tuple(mask.astype(int)), 0) + 1
    assert sorted(seen) == [
        (0, 0, 1, 0, 1, 1),
        (0, 0, 1, 1, 0, 1),
        (0, 1, 0, 0, 1, 1),
        (0, 1, 1, 0, 0, 1),
    ]
    assert all(850 < count < 1150 for count in seen.values())


def test_span_corruption_of_a_sentence():
    tokens = np.arange(10, 30)
    example = corrupt(tokens, sentinel_start=99, noise_density=0.3, mean_noise_span_length=2.0)
    # A change of these numbers changes the data of every run: it needs a line in the CHANGELOG.
    assert example["inputs"].tolist() == [
        10,
        11,
        12,
        13,
        14,
        15,
        16,
        17,
        18,
        19,
        20,
        21,
        99,
        25,
        98,
        27,
        97,
    ]
    assert example["targets"].tolist() == [99, 22, 23, 24, 98, 26, 97, 28, 29]
    assert example["inputs"].dtype == example["targets"].dtype == np.int32


@pytest.mark.parametrize("tokens", [[], [7]])
def test_nothing_is_cut_of_fewer_than_two_tokens(tokens):
    example = corrupt(tokens)
    assert example["inputs"].tolist() == tokens
    assert example["targets"].tolist() == []
    assert invert(example["inputs"], example["targets"], 32099).tolist() == tokens


def test_two_tokens_keep_the_first_and_cut_the_second():
    example = corrupt([7, 8])
    assert example["inputs"].tolist() == [7, 32099]
    assert example["targets"].tolist() == [32099, 8]


def test_10_000_random_examples_equal_the_slow_reference_and_invert():
    draw = np.random.default_rng(0)
    for index in range(10_000):
        tokens = draw.integers(3, 32000, size=draw.integers(0, 300))
        density, mean = draw.choice([0.1, 0.15, 0.25, 0.5]), draw.choice([1.0, 2.0, 3.0, 10.0])
        options = {"noise_density": float(density), "mean_noise_span_length": float(mean)}
        example = corrupt(tokens, index=index, **options)
        assert invert(example["inputs"], example["targets"], 32099).tolist() == tokens.tolist()
        mask = random_spans_noise_mask(len(tokens), example_rng(0, 0, index), **options)
        slow_inputs, slow_targets = slow_span_corruption(tokens, mask, 32099)
        assert example["inputs"].tolist() == slow_inputs
        assert example["targets"].tolist() == slow_targets


def test_inversion_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match="sentinel 99 must be at position 0"):
        invert(np.array([10, 99]), np.array([12, 99]), 99)
    with pytest.raises(ValueError, match="sentinel 98 must be at position 2"):
        invert(np.array([10, 99]), np.array([99, 12, 98, 13]), 99)


@pytest.mark.parametrize("change", [{"seed": 1}, {"epoch": 1}, {"index": 1}])
def test_seed_epoch_and_index_each_change_the_example(change):
    tokens = np.arange(3, 571)
    assert corrupt(tokens)["inputs"].tolist() == corrupt(tokens)["inputs"].tolist()
    assert corrupt(tokens, **change)["inputs"].tolist() != corrupt(tokens)["inputs"].tolist()


def test_generators_of_neighbours_are_independent_and_seeds_may_be_any_integer():
    draws = [example_rng(s, e, i).random(4) for s in (0, 1) for e in (0, 1) for i in (0, 1)]
    assert len({tuple(draw) for draw in draws}) == 8
    assert np.isfinite(example_rng(-1, 0, 0).random())
    assert np.isfinite(example_rng(2**70, 2**40, 2**40).random())


def split(tokens, *, index=0, seed=0, epoch=0):
    return prefix_split(np.asarray(tokens, np.int32), seed=seed, epoch=epoch, index=index)


def test_prefix_split_of_a_sentence():
    # A change of these numbers changes the data of every run: it needs a line in the CHANGELOG.
    example = split(range(10, 18))
    assert example["inputs"].tolist() == [10, 11, 12, 13, 14, 15]
    assert example["targets"].tolist() == [16, 17]
    assert example["inputs"].dtype == example["targets"].dtype == np.int32


@given(length=st.integers(0, 50), index=st.integers(0, 2**40))
def test_a_split_loses_nothing_and_both_sides_have_a_token(length, index):
    example = split(range(3, 3 + length), index=index)
    assert [*example["inputs"], *example["targets"]] == list(range(3, 3 + length))
    if length > 1:
        assert min(len(example["inputs"]), len(example["targets"])) >= 1
    else:
        assert len(example["inputs"]) == 0


def test_every_split_is_equally_likely():
    lengths = [len(split(range(5), index=index)["inputs"]) for index in range(4000)]
    counts = np.bincount(lengths, minlength=6)
    assert counts[0] == counts[5] == 0
    assert all(900 < count < 1100 for count in counts[1:5])


@pytest.mark.parametrize("change", [{"seed": 1}, {"epoch": 1}, {"index": 1}])
def test_seed_epoch_and_index_each_change_the_split(change):
    tokens = range(10_000)
    assert len(split(tokens)["inputs"]) == len(split(tokens)["inputs"])
    assert len(split(tokens, **change)["inputs"]) != len(split(tokens)["inputs"])


def test_a_split_uses_other_numbers_than_span_corruption():
    assert example_rng(0, 0, 0).random() != example_rng(0, 0, 0, stream=2).random()


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_lengths_are_known_without_the_tokens(name):
    options = {"sentinel_start": 999} if name == "span_corruption" else {}
    counts = np.array([0, 1, 2, 3, 17, 17, 568, 90])
    indices, epochs = np.arange(8) * 5, np.arange(8) % 3
    found = LENGTHS[name](counts, seed=4, epochs=epochs, indices=indices, **options)
    keys = zip(counts.tolist(), epochs.tolist(), indices.tolist(), strict=True)
    for lengths, (count, epoch, index) in zip(found.tolist(), keys, strict=True):
        tokens = np.arange(count, dtype=np.int32) + 3
        example = CORRUPTIONS[name](tokens, seed=4, epoch=epoch, index=index, **options)
        assert lengths == [len(example["inputs"]), len(example["targets"])]


def test_every_corruption_of_a_cache_has_lengths():
    assert set(LENGTHS) == set(CORRUPTIONS)
