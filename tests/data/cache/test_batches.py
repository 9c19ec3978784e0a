import dataclasses
import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from t5x_lite import layouts
from t5x_lite.core.errors import InputError
from t5x_lite.data import batches as data_batches
from t5x_lite.data.config import Data
from t5x_lite.data.vocabularies.byte_level import Bytes
from tests.batches import assert_equal_batches, take

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def directory(tmp_path_factory, small_cache, recipes, chunks):
    """A cache for span corruption of 300 chunks, and 11 of validation."""
    splits = {"train": chunks(300), "validation": chunks(11, seed=1)}
    return small_cache(tmp_path_factory.mktemp("cached") / "spans", splits, recipes.spans)


@pytest.fixture(scope="module")
def data(directory):
    return Data(
        vocabulary="bytes", cache=str(directory), batch_size=8, inputs_length=32, targets_length=16
    )


@pytest.fixture
def train(data, byte_vocabulary):
    opened = []

    def make(*, seed=3, index=0, count=1, **changes):
        changed = dataclasses.replace(data, **changes)
        opened.append(
            data_batches.train_batches(
                changed, byte_vocabulary, seed=seed, process_index=index, process_count=count
            )
        )
        return opened[-1]

    yield make
    for batches in opened:
        batches.close()


def test_a_batch_has_the_features_of_the_pipelines(train):
    batch = next(train())
    assert {name: value.shape for name, value in batch.items()} == {
        "encoder_input_tokens": (8, 32),
        "encoder_segment_ids": (8, 32),
        "encoder_positions": (8, 32),
        "decoder_input_tokens": (8, 16),
        "decoder_target_tokens": (8, 16),
        "decoder_loss_weights": (8, 16),
        "decoder_segment_ids": (8, 16),
        "decoder_positions": (8, 16),
    }
    assert all(value.dtype == np.int32 for value in batch.values())


def test_equal_seeds_give_equal_batches_and_others_others(train):
    assert_equal_batches(take(train(), 5), take(train(), 5))
    assert next(train(seed=4))["encoder_input_tokens"].tolist() != (
        next(train())["encoder_input_tokens"].tolist()
    )


@pytest.mark.parametrize("after", [0, 1, 7, 33, 130])
def test_a_position_goes_on_with_the_next_batch(train, after):
    """In windows of 1024 examples, at their ends and behind the first epochs."""
    batches = train()
    take(batches, after)
    state, epoch = batches.state(), batches.epoch
    expected = take(batches, 4)
    again = train()
    next(again)
    again.restore(state)
    assert (again.state(), again.epoch) == (state, epoch)
    assert_equal_batches(take(again, 4), expected)
    again.restore(state)
    assert_equal_batches(take(again, 1), expected[:1])
    assert len(state) < 1000


@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.slow
def test_any_number_of_processes_gives_the_same_global_batches(train, pack, count):
    expected = take(train(pack=pack), 40)
    shares = [train(pack=pack, index=i, count=count) for i in range(count)]
    parts = [take(share, 20) for share in shares]
    assert len({share.state() for share in shares}) == 1
    other = train(pack=pack)
    other.restore(shares[-1].state())
    assert_equal_batches(take(other, 3), expected[20:23])
    alone = train(pack=pack)
    take(alone, 20)
    shares[1].restore(alone.state())
    parts[1] += take(shares[1], 20)
    for i in (0, *range(2, count)):
        parts[i] += take(shares[i], 20)
    whole = [
        {name: np.concatenate([part[name] for part in step]) for name in step[0]}
        for step in zip(*parts, strict=True)
    ]
    assert_equal_batches(whole, expected)


def test_a_batch_that_cannot_be_divided_is_refused(train):
    with pytest.raises(InputError, match="batch_size 8 cannot be divided among 3 processes"):
        train(count=3)


def test_every_epoch_is_corrupted_anew(train):
    plain = {"pack": False, "shuffle": False, "batch_size": 300}
    one, two = take(train(**plain), 2)
    same = (one["encoder_input_tokens"] == two["encoder_input_tokens"]).all(1).mean()
    assert same < 0.3  # a chunk with one span is cut at its end
    shuffled = take(train(pack=False, batch_size=300), 2)
    assert shuffled[0]["encoder_input_tokens"].tolist() != one["encoder_input_tokens"].tolist()


def test_the_epoch_is_counted_and_told_once(train, caplog):
    caplog.set_level(logging.INFO, logger="t5x_lite")
    batches = train(pack=False, batch_size=100)
    epochs = []
    for _ in range(7):
        next(batches)
        epochs.append(batches.epoch)
    assert epochs == pytest.approx([1 / 3, 2 / 3, 1, 4 / 3, 5 / 3, 2, 7 / 3])
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        f"epoch 2 of {batches._stream.sources[0].cache.directory} begins: the training examples "
        "are repeated"
    ]
    state = batches.state()
    other = train(pack=False, batch_size=100, index=0)
    other.restore(state)
    take(other, 5)
    one = train(pack=False, batch_size=100, index=1, count=2)
    take(one, 5)
    assert len(caplog.records) == 1


def test_a_position_at_the_end_of_an_epoch_tells_that_the_next_begins(train, caplog):
    batches = train(pack=False, batch_size=100)
    take(batches, 3)
    other = train(pack=False, batch_size=100)
    other.restore(batches.state())
    assert (other.epoch, caplog.messages) == (1, [])
    next(other)
    assert len(caplog.messages) == 1


def test_the_position_of_other_data_is_refused(train, tmp_path, small_cache, recipes, chunks):
    state = train().state()
    with pytest.raises(InputError) as error:
        train(seed=4, pack=False).restore(state)
    assert "data with other settings: pack True (now False), seed 3 (now 4)" in str(error.value)
    other = small_cache(tmp_path / "other", {"train": chunks(300, seed=9)}, recipes.spans)
    with pytest.raises(InputError, match="data with other settings: cache "):
        train(cache=str(other)).restore(state)
    moved = small_cache(
        tmp_path / "moved",
        {"train": chunks(300), "validation": chunks(11, seed=1)},
        recipes.spans,
    )
    train(cache=str(moved)).restore(state)


def test_a_damaged_position_is_refused(train):
    batches = train()
    state = bytearray(batches.state())
    state[-3] ^= 1
    with pytest.raises(InputError, match="the saved data position is damaged"):
        batches.restore(bytes(state))
    next(batches)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"inputs_length": 64},
            "was written for data.inputs_length 32, but data.inputs_length is 64; set",
        ),
        (
            {"layout": layouts.LM()},
            "layout lm needs the features targets, but the task has inputs and",
        ),
        (
            {"task": "tasks.text:prefix_lm"},
            "'tasks.text:prefix_lm', but the caches in data.cache are of",
        ),
        ({"cache": "nowhere"}, "nowhere is not a cache"),
    ],
)
def test_a_cache_that_does_not_fit_is_refused(train, changes, message):
    with pytest.raises(InputError) as error:
        train(**changes)
    assert message in str(error.value)


def test_a_final_sentinel_is_that_of_the_cache(train, tmp_path, small_cache, recipes, chunks):
    with pytest.raises(InputError, match=r"sentinel False, but data\.final_sentinel is True; set"):
        train(final_sentinel=True)
    options = {**recipes.spans.options, "final_sentinel": True}
    spans = dataclasses.replace(recipes.spans, options=options)
    ended = str(small_cache(tmp_path / "ended", {"train": chunks(300)}, spans))
    with pytest.raises(InputError, match=r"sentinel True, but data\.final_sentinel is False; set"):
        train(cache=ended)
    plain = next(train(pack=False))["decoder_target_tokens"]
    batches = train(pack=False, cache=ended, final_sentinel=True)
    state = batches.state()
    targets = next(batches)["decoder_target_tokens"]
    for row, without in zip(targets, plain, strict=True):
        size = int((without != 0).sum())
        assert row[: size - 1].tolist() == without[: size - 1].tolist()
        sentinels = int((without > 250).sum())
        assert row[size - 1 : size + 1].tolist() == [258 - sentinels, 1]
    with pytest.raises(InputError, match=r"final_sentinel True \(now None\)"):
        train().restore(state)
    split = dataclasses.replace(recipes.spans, corruption="prefix_split", options={})
    prefix = small_cache(tmp_path / "prefix", {"train": chunks(30)}, split)
    with pytest.raises(
        InputError, match="was written with prefix_split, which has no final sentinel; unset"
    ):
        train(cache=str(prefix), final_sentinel=True)


def test_another_vocabulary_is_refused(data, directory):
    with pytest.raises(InputError) as error:
        data_batches.train_batches(data, Bytes(extra_ids=50), seed=0)
    assert "written with another vocabulary than bytes" in str(error.value)
    assert f"--data.vocabulary {directory}/vocabulary --data.extra-ids 100" in str(error.value)


def test_a_shard_that_is_damaged_while_it_is_read_is_named(
    train, tmp_path, small_cache, recipes, chunks
):
    directory = small_cache(tmp_path / "c", {"train": chunks(50)}, recipes.spans)
    shard = directory / "train-00000.tokens"
    content = bytearray(shard.read_bytes())
    content[150:600] = bytes(450)
    shard.write_bytes(content)
    with pytest.raises(InputError, match=r"cache .*c is damaged"):
        take(train(cache=str(directory)), 10)


# Mixtures.


@pytest.fixture(scope="module")
def mixture(tmp_path_factory, small_cache, recipes):
    """Two caches whose examples show where they come from."""
    root = tmp_path_factory.mktemp("mixture")
    for name, token, count in (("a", 10, 50), ("b", 20, 70)):
        example = [np.array([token]), np.array([token])]
        splits = {"train": [example] * count, "validation": [example] * (count // 10)}
        small_cache(root / name, splits, recipes.supervised, task=f"tasks.{name}:task")
    return {"cache": (f"{root / 'a'}=0.7", f"{root / 'b'}=0.3")}


def first_tokens(batches):
    return np.concatenate([batch["encoder_input_tokens"][:, 0] for batch in batches])


def test_a_mixture_has_its_rates_at_every_place(train, mixture):
    tokens = first_tokens(take(train(**mixture, pack=False), 50))
    for end in range(1, len(tokens) + 1):
        assert abs((tokens[:end] == 10).sum() - 0.7 * end) < 1
    assert set(tokens) == {10, 20}


def test_a_mixture_tells_which_cache_repeats(train, mixture, caplog):
    batches = train(**mixture, pack=False)
    take(batches, 9)  # 72 examples, 50 of a
    assert caplog.messages == []
    take(batches, 30)
    assert [message.split("/")[-1][:7] for message in caplog.messages] == ["a begin", "b begin"]
    assert batches.epoch == pytest.approx(39 * 8 * 0.7 / 50, abs=0.05)


def test_processes_share_a_mixture_too(train, mixture):
    expected = take(train(**mixture), 5)
    shares = [take(train(**mixture, index=i, count=2), 5) for i in range(2)]
    whole = [
        {name: np.concatenate([one[name], two[name]]) for name in one}
        for one, two in zip(*shares, strict=True)
    ]
    assert_equal_batches(whole, expected)


def test_a_mixture_of_two_kinds_of_examples_is_refused(
    train, mixture, tmp_path, small_cache, recipes
):
    lm = small_cache(tmp_path / "lm", {"train": [[np.array([5])]]}, recipes.targets)
    with pytest.raises(
        InputError, match="needs the features inputs and targets, but the task has targets"
    ):
        train(cache=(mixture["cache"][0], f"{lm}=1"))


# Evaluation.


def test_eval_batches_are_one_pass_in_order_and_filled_up(data, byte_vocabulary):
    plain = dataclasses.replace(data, pack=False)
    batches = list(data_batches.eval_batches(plain, byte_vocabulary))
    assert [batch["decoder_loss_weights"].any(1).sum() for batch in batches] == [8, 3]
    assert all(value.shape[0] == 8 for batch in batches for value in batch.values())
    assert_equal_batches(list(data_batches.eval_batches(plain, byte_vocabulary)), batches)
    assert_equal_batches(
        list(data_batches.eval_batches(plain, byte_vocabulary, max_batches=1)), batches[:1]
    )
    packed = list(data_batches.eval_batches(data, byte_vocabulary))
    totals = [sum(b["decoder_loss_weights"].sum() for b in one) for one in (batches, packed)]
    assert totals[0] == totals[1]
    with pytest.raises(InputError, match="has no split 'test'; its splits are train"):
        data_batches.eval_batches(data, byte_vocabulary, split="test")


def test_the_held_out_part_of_a_mixture(data, byte_vocabulary, mixture):
    plain = dataclasses.replace(data, pack=False, **mixture)
    tokens = first_tokens(data_batches.eval_batches(plain, byte_vocabulary))
    assert tokens.tolist()[:7].count(10) == 5
    assert not tokens[7:].any()


def test_whether_the_task_has_metrics_stands_in_the_cache(data, mixture):
    assert not data_batches.has_task_metrics(data)
    assert not data_batches.has_task_metrics(
        dataclasses.replace(data, task="tasks.a:task", **mixture)
    )


# Where TensorFlow is missing.

PROGRAM = """
import sys
blocked = ("apache_beam", "seqio", "tasks", "tensorflow", "tensorflow_datasets", "tensorflow_text")
sys.modules.update(dict.fromkeys(blocked))
from t5x_lite.data import batches as data_batches
from t5x_lite.data.config import Data
from t5x_lite.data.vocabularies.loading import load_vocabulary
data = Data(vocabulary=sys.argv[1] + "/vocabulary", cache=sys.argv[1], batch_size=4,
            inputs_length=32, targets_length=16)
vocabulary = load_vocabulary(data.vocabulary, extra_ids=100)
batches = data_batches.train_batches(data, vocabulary, seed=3)
batches.restore(batches.state())
print(next(batches)["encoder_input_tokens"].sum())
print(len(list(data_batches.eval_batches(data, vocabulary))))
"""


@pytest.mark.slow
def test_reading_needs_neither_tensorflow_nor_seqio_nor_the_task(directory, train):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(directory)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    total = next(train(batch_size=4))["encoder_input_tokens"].sum()
    assert done.stdout.split() == [str(total), "3"]


@pytest.mark.parametrize("changes", [{}, {"pack": False}, {"batch_size": 24}])
def test_an_epoch_has_the_batches_that_are_read_in_it(train, data, byte_vocabulary, changes):
    epoch = data_batches.epoch_of(dataclasses.replace(data, **changes), byte_vocabulary, seed=3)
    assert epoch.examples == 300
    batches = train(**changes)
    take(batches, int(epoch.batches))
    assert batches.epoch <= 1
    take(batches, 1)
    # The windows of packed rows hold 1,024 examples, more than the cache has.
    assert batches.epoch >= 1 - 0.02


def test_an_epoch_of_a_mixture_has_the_examples_of_all_caches(data, byte_vocabulary, mixture):
    changed = dataclasses.replace(data, **mixture, pack=False)
    epoch = data_batches.epoch_of(changed, byte_vocabulary, seed=3)
    assert epoch == data_batches.Epoch(120, 120 / data.batch_size)


def test_a_long_epoch_is_estimated_from_some_windows(
    monkeypatch, tmp_path, data, byte_vocabulary, small_cache, recipes, chunks
):
    directory = small_cache(tmp_path / "long", {"train": chunks(5000)}, recipes.spans)
    changed = dataclasses.replace(data, cache=str(directory))
    exact = data_batches.epoch_of(changed, byte_vocabulary, seed=3)
    monkeypatch.setattr(data_batches, "_WINDOWS", 2)
    found = data_batches.epoch_of(changed, byte_vocabulary, seed=3)
    assert found.examples == exact.examples == 5000
    assert found.batches == pytest.approx(exact.batches, rel=0.05)
