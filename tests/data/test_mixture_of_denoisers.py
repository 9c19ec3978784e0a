import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t5x_lite.data.denoising import (
    DENOISERS,
    chunk_lengths,
    invert,
    mixture_of_denoisers,
    mixture_of_denoisers_lengths,
)

SENTINELS = 32099
OPTIONS = {
    "sentinel_start": SENTINELS,
    "inputs_length": 512,
    "r_mode": [3],
    "x_mode": [4],
    "s_mode": [5],
}


def example(tokens, index, **changes):
    found = mixture_of_denoisers(tokens, seed=0, epoch=0, index=index, **{**OPTIONS, **changes})
    assert all(side.dtype == np.int32 for side in found.values())
    return found


def test_what_fills_inputs_of_512():
    assert [chunk_lengths(denoiser, 512) for denoiser in DENOISERS] == [
        (568, 114),
        (588, 100),
        (766, 512),
        (908, 512),
        (600, 92),
        (1006, 512),
        (511, 256),
    ]


def test_a_short_text_by_each_kind_of_denoiser():
    # A change of these numbers changes the data of every run: it needs a line in the CHANGELOG.
    found = {}
    for index in range(60):
        made = example(np.arange(10, 22), index, sentinel_start=99)
        found.setdefault(int(made["inputs"][0]), []).append(
            (made["inputs"][1:].tolist(), made["targets"].tolist())
        )
    assert {kind: made[0] for kind, made in found.items()} == {
        3: ([*range(10, 20), 99], [99, 20, 21]),
        4: ([*range(10, 16), 99], [99, *range(16, 22)]),
        5: ([*range(10, 20)], [20, 21]),
    }


def kinds(count=7000, **changes):
    """How often each (mode, length of the text, noise tokens) occurs."""
    tokens = np.arange(1000, 2006, dtype=np.int32)
    seen = {}
    for index in range(count):
        made = example(tokens, index, **changes)
        mode, noise = int(made["inputs"][0]), int(np.sum(made["targets"] < 31000))
        length = noise + int(np.sum(made["inputs"] < 31000)) - 1
        key = (mode, length, noise if mode != 5 else 0)
        seen[key] = seen.get(key, 0) + 1
    return seen


@pytest.mark.exhaustive
@pytest.mark.slow
def test_denoisers_are_equally_likely_and_fill_their_inputs():
    seen = kinds()
    room = {d: chunk_lengths(d, 511)[0] for d in DENOISERS}
    modes = {"R": 3, "X": 4, "S": 5}
    expected = {
        (modes[d.kind], room[d], 0 if d.kind == "S" else round(room[d] * d.noise_density))
        for d in DENOISERS
    }
    assert set(seen) == expected
    assert all(870 < count < 1130 for count in seen.values())


@pytest.mark.slow
def test_the_share_of_the_sequential_denoiser_is_an_option():
    seen = kinds(2000, sequential_share=0.5)
    assert 900 < sum(count for (mode, _, _), count in seen.items() if mode == 5) < 1100
    assert set(kinds(50, sequential_share=1.0)) == {(5, 510, 0)}
    assert 5 not in {mode for mode, _, _ in kinds(50, sequential_share=0.0)}


@given(length=st.integers(0, 1200), index=st.integers(0, 2**40))
def test_the_text_is_a_part_of_the_chunk_in_order(length, index):
    tokens = np.arange(1000, 1000 + length, dtype=np.int32)
    made = example(tokens, index)
    inputs, targets = made["inputs"][1:], made["targets"]
    if made["inputs"][0] == 5:
        text = np.concatenate([inputs, targets])
        assert len(targets) >= (length > 1)
    else:
        text = invert(inputs, targets, SENTINELS)
    assert np.diff(text).tolist() == [1] * (len(text) - 1)
    assert set(text) <= set(tokens)
    assert len(made["inputs"]) + 1 <= 512
    assert len(targets) + 1 <= 512


def test_parts_begin_anywhere_and_suffixes_are_a_quarter_on_average():
    tokens = np.arange(1000, 2006, dtype=np.int32)
    starts, shares = [], []
    for index in range(2000):
        made = example(tokens, index, sequential_share=1.0)
        starts.append(int(made["inputs"][1]) - 1000)
        shares.append(len(made["targets"]) / 510)
    assert min(starts) < 10
    assert max(starts) > 1006 - 510 - 10
    assert np.mean(shares) == pytest.approx(0.25, abs=0.01)
    assert max(shares) < 0.5


def test_modes_of_several_tokens_take_their_room():
    lengths = mixture_of_denoisers_lengths(
        np.full(300, 2000),
        seed=0,
        epochs=np.zeros(300, np.int64),
        indices=np.arange(300),
        **{**OPTIONS, "r_mode": [3, 4, 5], "s_mode": []},
    )
    assert 509 <= lengths[:, 0].max() + 1 <= 512
