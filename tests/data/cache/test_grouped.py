"""Batches of a stream's examples, by arithmetic."""

from fractions import Fraction

import numpy as np
import pytest

from t5x_lite import layouts
from t5x_lite.data.cache.files import Cache
from t5x_lite.data.cache.recipe import Recipe
from t5x_lite.data.config import Bucketed, Data, Fixed
from t5x_lite.data.scheduled import Grouped, OneShape
from t5x_lite.data.stream import WINDOW, Position, Source, Stream

RECIPE = Recipe(stored=("inputs",), outputs={"inputs": True}, eos="after_trim", eos_id=1)


@pytest.fixture
def grouped(tmp_path, small_cache):
    """A function: lengths of the examples of each cache, EOS included -> Grouped."""

    def make(*caches, shapes, rates=(1,), shuffle=False, repeat=True, one_shape=False):
        sources = []
        for number, (lengths, rate) in enumerate(zip(caches, rates, strict=True)):
            directory = tmp_path / str(number)
            if not directory.exists():
                examples = [[np.full(size - 1, 3 + i)] for i, size in enumerate(lengths)]
                small_cache(directory, {"train": examples}, RECIPE)
            cache = Cache(directory)
            source = Source.of_cache(cache, "train", rate=Fraction(rate))
            sources.append(source)
        longest = max(shapes)
        data = Data(
            cache="c",
            vocabulary="",
            layout=layouts.Encoder(),
            batches=Fixed() if one_shape else Bucketed(shapes),
            batch_size=shapes[longest],
            inputs_length=longest,
            pack=False,
        )
        stream = Stream(data, sources, seed=0, shuffle=shuffle, repeat=repeat)
        return OneShape(stream, batch_size=1) if one_shape else Grouped(stream, data)

    return make


def take(batches, count, position=None):
    """Batches and the positions behind them."""
    position, found = position or Position(), []
    for _ in range(count):
        made = batches.make(position, part=0, parts=1)
        if made is None:
            break
        position = made.position
        found.append(made)
    return found


def firsts(found):
    """The examples of batches by their first tokens, which are 3, 4 and so on."""
    return [made.batch["encoder_input_tokens"][:, 0].tolist() for made in found]


def test_positions_say_which_examples_wait(grouped):
    batches = grouped([3, 7, 4, 2, 8, 1 + 1], shapes={4: 2, 8: 1})
    found = take(batches, 6)
    assert firsts(found) == [[4], [3, 5], [7], [6, 8], [4], [3, 5]]
    assert [made.position for made in found[:4]] == [
        Position(0, 2, ((0,), ())),
        Position(0, 3, ((), ())),
        Position(0, 5, ((3,), ())),
        Position(0, 6, ((), ())),
    ]
    assert [sorted(made.repeated) for made in found] == [[], [], [], [], [0], [0]]
    assert firsts(take(batches, 3, found[2].position)) == firsts(found[3:])


def test_waiting_examples_are_sorted_again_when_lengths_change(grouped):
    """Three short examples that wait in wrong buckets: none is lost, and their order stays."""
    batches = grouped([3, 3, 3, 7, 3, 7], shapes={4: 2, 8: 3})
    position = batches.regrouped(Position(0, 3, ((1,), (0, 2))))
    assert position == Position(0, 3, ((0, 1, 2), ()))
    assert batches.regrouped(position) == position
    found = take(batches, 4, position)
    assert firsts(found) == [[3, 4], [5, 7], [3, 4], [6, 8, 6]]
    assert found[0].position == Position(0, 3, ((2,), ()))
    assert batches.regrouped(Position(0, 3)) == Position(0, 3)


def test_a_row_longer_than_all_is_cut(grouped):
    (made,) = take(grouped([20], shapes={4: 2, 8: 1}), 1)
    assert made.batch["encoder_input_tokens"].tolist() == [[3] * 7 + [1]]


def test_examples_wait_over_windows(grouped):
    """The one long example of 100 fills a batch of 30 behind window 2."""
    batches = grouped([9, *[2] * 99], shapes={4: 11, 9: 30})
    found = take(batches, 300)
    long = [made for made in found if len(made.batch["encoder_input_tokens"]) == 30]
    assert long[0].position.window == 2
    assert long[0].position.row == 29 * 100 - 2 * WINDOW + 1
    assert (long[0].batch["encoder_input_tokens"] == [3] * 8 + [1]).all()
    again = take(batches, 5, found[280].position)
    assert firsts(again) == firsts(found[281:286])


def test_one_pass_ends_with_what_is_left_in_each_bucket(grouped):
    batches = grouped([3, 7, 4, 2, 6], shapes={4: 2, 8: 3}, repeat=False)
    found = take(batches, 10)
    assert [made.batch["encoder_segment_ids"].any(1).tolist() for made in found] == [
        [True, True],
        [True, False],
        [True, True, False],
    ]
    assert firsts(found) == [[3, 5], [6, 0], [4, 7, 0]]


def test_in_a_shuffled_epoch_each_example_comes_once(grouped):
    batches = grouped([2, 3, 4, 5, 6, 7] * 4, shapes={4: 3, 8: 2}, shuffle=True)
    found = firsts(take(batches, 20))
    # 12 examples of each bucket an epoch: 4 batches of 3 and 6 of 2.
    short = [token for batch in found if len(batch) == 3 for token in batch]
    assert (
        sorted(short[:12]) == sorted(short[12:24]) == sorted(3 + i for i in range(24) if i % 6 < 3)
    )
    assert short[:12] != short[12:24]


def test_a_mixture_keeps_its_rates(grouped):
    shapes = {4: 2, 8: 1}
    batches = grouped([2, 8, 3], [6, 4], shapes=shapes, rates=(Fraction(2, 3), Fraction(1, 3)))
    one = grouped(
        [2, 8, 3], [6, 4], shapes=shapes, rates=(Fraction(2, 3), Fraction(1, 3)), one_shape=True
    )
    lengths = [(made.batch["encoder_segment_ids"] > 0).sum() for made in take(one, 60)]
    seen = [(made.batch["encoder_segment_ids"] > 0).sum(1).tolist() for made in take(batches, 40)]
    flat = sorted(size for sizes in seen for size in sizes)
    assert abs(len(flat) - 60) < 12
    shares = [np.mean(np.array(found) == 8) for found in (lengths, flat)]
    assert shares[0] == pytest.approx(shares[1], abs=0.03)


def test_each_part_has_its_own_rows(grouped):
    batches = grouped([2, 3, 4, 5], shapes={8: 4})
    whole, *halves = (
        batches.make(Position(), part=part, parts=parts) for part, parts in ((0, 1), (0, 2), (1, 2))
    )
    assert [made.batch["encoder_input_tokens"][:, 0].tolist() for made in halves] == [
        [3, 4],
        [5, 6],
    ]
    assert {made.position for made in halves} == {whole.position}
