import threading

import numpy as np
import pytest

from t5x_lite.data.denoising import (
    iid_noise_mask,
    iid_spans,
    iid_targets_length,
    noise_counts,
    random_spans_lengths,
    random_spans_noise_mask,
)
from t5x_lite.layouts.base import example_rng


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
        (512, 0.5, 3.0, (766, 512)),
        (3, 0.15, 3.0, (2, 3)),
    ],
)
def test_lengths_are_those_of_t5(inputs_length, density, mean, lengths):
    assert random_spans_lengths(inputs_length, density, mean) == lengths
    ended = random_spans_lengths(inputs_length, density, mean, final_sentinel=True)
    assert ended == (lengths[0], lengths[1] + 1)


def test_lengths_refuse_inputs_that_hold_no_span():
    with pytest.raises(ValueError, match="at least 3, but inputs_length is 2"):
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


@pytest.mark.parametrize(
    ("length", "noise"),
    # What float32 makes of 28.5, 52.5, 58.5 and 100.5, as TensorFlow does in T5; then a half that
    # it knows as such, and is rounded to even.
    [(190, 29), (350, 53), (390, 59), (670, 101), (30, 4)],
)
def test_noise_counts_are_rounded_in_float32(length, noise):
    assert noise_counts(length, 0.15, mean_span_length=3.0)[0] == noise


def test_noise_counts_fit_whatever_the_density():
    assert noise_counts(10, 0.9, mean_span_length=1.0) == (9, 1)  # one kept token: one span


@pytest.mark.parametrize(("density", "mean"), [(0.0, 3.0), (1.0, 3.0), (0.15, 0.5)])
def test_noise_counts_refuse_what_has_no_meaning(density, mean):
    with pytest.raises(ValueError, match=r"must be .*, but is"):
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


def test_iid_noise_is_of_every_token_on_its_own():
    masks = np.stack([iid_noise_mask(40, example_rng(0, 0, i)) for i in range(4000)])
    assert np.abs(masks.mean(0) - 0.15).max() < 0.03
    assert abs(np.mean(masks[:, 1:] & masks[:, :-1]) - 0.15**2) < 0.002
    assert iid_noise_mask(0, example_rng(0, 0, 0)).tolist() == []


@pytest.mark.parametrize("density", [0.1, 0.15, 0.5])
@pytest.mark.parametrize("length", [1, 2, 60])
def test_how_long_targets_of_iid_noise_get_and_how_many_spans_there_are(length, density):
    lengths, ended, spans = [], [], []
    for index in range(4000):
        mask = iid_noise_mask(length, example_rng(1, 0, index), noise_density=density)
        begins = mask & ~np.pad(mask, (1, 0))[:-1]
        kept_begins = ~mask & np.pad(mask, (1, 0), constant_values=True)[:-1]
        lengths.append(mask.sum() + kept_begins.sum())
        ended.append(lengths[-1] + mask[-1])
        spans.append(begins.sum())
    for found, expected in (
        (lengths, iid_targets_length(length, density)),
        (ended, iid_targets_length(length, density, final_sentinel=True)),
        (spans, iid_spans(length, density)),
    ):
        assert abs(np.mean(found) - expected[0]) <= 5 * expected[1] / 4000**0.5
        assert np.std(found) == pytest.approx(expected[1], rel=0.08)


def test_the_papers_lengths_of_iid_noise():
    mean, deviation = iid_targets_length(511, 0.15)
    assert (round(mean, 1), round(deviation, 1)) == (142.5, 14.0)  # T5 takes 192
    assert round(iid_spans(511, 0.15)[0], 1) == 65.2


def test_generators_of_neighbours_are_independent_and_seeds_may_be_any_integer():
    draws = [example_rng(s, e, i).random(4) for s in (0, 1) for e in (0, 1) for i in (0, 1)]
    assert len({tuple(draw) for draw in draws}) == 8
    assert np.isfinite(example_rng(-1, 0, 0).random())
    assert np.isfinite(example_rng(2**70, 2**40, 2**40).random())


def test_a_generator_is_philox_from_its_key_and_counter_whatever_was_drawn_before():
    example_rng(3, 1, 4).random(7)
    example_rng(3, 1, 4).integers(0, 5, dtype=np.uint32)  # leaves half a word behind
    found = example_rng(5, 1, 4, stream=2).random(9)
    fresh = np.random.Philox(key=[5, 2], counter=[0, 0, 4, 1])
    assert found.tolist() == np.random.Generator(fresh).random(9).tolist()


def test_streams_have_other_numbers():
    assert len({example_rng(0, 0, 0, stream=stream).random() for stream in range(1, 6)}) == 5


def test_threads_do_not_share_a_generator():
    expected = [example_rng(0, 0, index).random(50).tolist() for index in range(200)]
    found = {}

    def draw(first):
        for index in range(first, 200, 4):
            rng = example_rng(0, 0, index)
            found[index] = [rng.random() for _ in range(50)]

    threads = [threading.Thread(target=draw, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[index] for index in range(200)] == expected
