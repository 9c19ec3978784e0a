"""A cache in a bucket: the batches of the local one, by ranges of bytes."""

import logging
import shutil

import numpy as np
import pytest

from t5x_lite.core import object_store
from t5x_lite.core.errors import InputError
from t5x_lite.data import batches as data_batches
from t5x_lite.data.cache import files
from t5x_lite.data.cache.files import Cache
from t5x_lite.data.cache.recipe import Recipe
from t5x_lite.data.config import Bucketed, Data
from t5x_lite.layouts import Encoder
from tests import fake_store
from tests.batches import assert_equal_batches, take
from tests.fake_store import store  # noqa: F401 (a fixture)

EXAMPLES = 3000


@pytest.fixture(scope="module")
def directory(tmp_path_factory, small_cache, recipes, chunks):
    """Three shards of chunks, and 11 of validation."""
    splits = {"train": chunks(EXAMPLES), "validation": chunks(11, seed=1)}
    where = tmp_path_factory.mktemp("cached") / "spans"
    return small_cache(where, splits, recipes.spans, shard_bytes=60_000)


@pytest.fixture
def both(directory, store):  # noqa: F811
    """The configs of the local cache and of its copy in a bucket."""
    shutil.copytree(directory, store / "caches/spans")
    fake_store.counts.clear()
    return data(str(directory)), data("gs://bucket/caches/spans")


def data(*cache: str, **changes):
    options = {"batch_size": 8, "inputs_length": 32, "targets_length": 16, "vocabulary": "bytes"}
    return Data(cache=cache, **(options | changes))


@pytest.fixture
def train(byte_vocabulary):
    opened = []

    def make(config, **options):
        opened.append(data_batches.train_batches(config, byte_vocabulary, seed=3, **options))
        return opened[-1]

    yield make
    for batches in opened:
        batches.close()


@pytest.fixture
def quick(monkeypatch):
    """Requests that are sent again at once, and given up soon."""
    hurried = object_store.Patience(answer=0.3, first=0.001, longest=0.01, total=1.5)
    monkeypatch.setattr(object_store, "PATIENCE", hurried)


@pytest.fixture
def unheld(monkeypatch):
    monkeypatch.setattr(files, "HELD_BYTES", 0)


def read_bytes(suffix=""):
    counted = fake_store.counts.items()
    return sum(n for name, n in counted if name.startswith("read ") and name.endswith(suffix))


@pytest.mark.usefixtures("unheld")
def test_a_cache_in_a_bucket_gives_the_same_batches_by_ranges(both, train, directory):
    here, there = both
    expected = take(train(here), 20)
    batches = train(there)
    first = take(batches, 10)
    state = batches.state()
    batches.close()
    assert_equal_batches(first, expected[:10])
    again = train(there)  # another process would begin so
    again.restore(state)
    assert_equal_batches(take(again, 10), expected[10:])
    assert train(here).state() == train(there).state()


@pytest.mark.usefixtures("unheld")
def test_what_is_asked_for_is_bounded(both, train, directory, monkeypatch):
    """The index, its files' sizes, the ends and checksums; of shards only the examples' bytes."""
    _, there = both
    batches = train(there)
    batches.close()
    take(batches := train(there), 1)
    batches.close()
    shards = Cache(directory).index.splits["train"].shards
    assert len(shards) == 3
    assert fake_store.counts["list"] == 2  # one for each opening
    whole = sum(shard.size for shard in shards)
    assert 0 < read_bytes("tokens") < whole
    fake_store.counts.clear()
    split = Cache("gs://bucket/caches/spans").split("train")
    opening = dict(fake_store.counts)
    assert (opening["list"], opening["get"]) == (1, 3)  # the index, ends and checksums
    split.read(np.arange(40))
    assert fake_store.counts["get"] - opening["get"] == 1  # neighbours at once
    rng = np.random.default_rng(0)
    split.read(rng.permutation(EXAMPLES)[:200])
    fake_store.counts.clear()
    split.read(rng.permutation(EXAMPLES)[:50])
    assert fake_store.counts["get"] <= 50
    assert set(fake_store.counts) <= {
        "get",
        "range",
        *(n for n in fake_store.counts if "read" in n),
    }
    assert read_bytes() < 50 * 16_384


@pytest.mark.slow
def test_small_shards_are_held_and_read_once(both, train, directory):
    here, there = both
    assert_equal_batches(take(train(there), 400), take(train(here), 400))  # into the second epoch
    shards = Cache(directory).index.splits["train"].shards
    assert read_bytes("tokens") <= sum(shard.size for shard in shards)


def test_no_more_is_held_than_is_said(both, monkeypatch):
    cache = Cache(both[1].cache[0])
    size = sum(shard.size for shard in cache.index.splits["train"].shards)
    monkeypatch.setattr(files, "HELD_BYTES", 2 * size - 1)
    monkeypatch.setattr(files, "_held", [0])
    first, second = (cache.split("train")._examples._shards for _ in range(2))
    assert first._blocks == {}
    assert second._blocks is None
    del first
    assert files._held == [0]


def test_mixtures_and_grouped_batches(tmp_path, store, train, small_cache, recipes, pairs):  # noqa: F811
    for name, count in (("a", 30), ("b", 50)):
        small_cache(tmp_path / name, {"train": pairs(count, seed=count)}, recipes.supervised)
        shutil.copytree(tmp_path / name, store / name)
    places = [
        (f"{tmp_path}/a=0.75", f"{tmp_path}/b=0.25"),
        ("gs://bucket/a=0.75", "gs://bucket/b=0.25"),
    ]
    here, there = (data(*place) for place in places)
    batches = train(there)
    assert_equal_batches(take(batches, 30), take(train(here), 30))
    restored = train(here)
    restored.restore(batches.state())  # a position does not say where the caches lie
    assert_equal_batches(take(restored, 2), take(batches, 2))
    shapes = {"batches": Bucketed({8: 16, 16: 8}), "inputs_length": 16, "pack": False}
    inputs = Recipe(stored=("inputs",), outputs={"inputs": True}, eos="after_trim", eos_id=1)
    single = small_cache(tmp_path / "c", {"train": [pair[1:] for pair in pairs(90)]}, inputs)
    shutil.copytree(single, store / "c")
    grouped = (data(place, layout=Encoder(), **shapes) for place in (str(single), "gs://bucket/c"))
    assert_equal_batches(*(take(train(one), 12) for one in grouped))


@pytest.mark.usefixtures("quick")
def test_a_bucket_that_fails_for_a_while_is_asked_again(both, train, caplog):
    here, there = both
    expected = take(train(here), 3)
    fake_store.trouble.errors = [OSError("502"), 0.5, ConnectionResetError("reset"), OSError("x")]
    with caplog.at_level(logging.WARNING):
        object_store._noted[0] = float("-inf")
        assert_equal_batches(take(train(there), 3), expected)
    assert fake_store.counts["failed"] == 3
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith(
        "gs://bucket/caches/spans/cache.json: the request failed (OSError: 502); retrying"
    )


@pytest.mark.usefixtures("quick", "unheld")
@pytest.mark.slow
def test_a_bucket_that_stays_away_ends_the_run_by_one_line(both, train):
    batches = train(both[1])
    next(batches)
    fake_store.trouble.always = OSError("503\nService Unavailable")
    with pytest.raises(object_store.BucketError) as raised:
        take(batches, 100)
    assert str(raised.value).startswith("gs://bucket/caches/spans/train-0000")
    assert "(OSError: 503 Service Unavailable); check the network" in str(raised.value)
    assert "\n" not in str(raised.value)
    object_store._given_up.clear()
    with pytest.raises(
        object_store.BucketError, match=r"gs://bucket/caches/spans/cache\.json cannot be"
    ):
        train(both[1])
    object_store._given_up.clear()
    fake_store.trouble.always = PermissionError("who are you?")
    with pytest.raises(InputError, match=r"cache\.json cannot be accessed \(PermissionError: who"):
        train(both[1])


@pytest.mark.usefixtures("unheld")
def test_what_is_wrong_with_a_cache_in_a_bucket(both, store, directory):  # noqa: F811
    where = "gs://bucket/caches/spans"
    there = store / "caches/spans"
    Cache(where).verify()
    with pytest.raises(
        InputError, match=r"gs://bucket/none is not a cache, because it has no cache\.json"
    ):
        Cache("gs://bucket/none")
    shard = Cache(where).index.splits["train"].shards[0].name
    content = (there / shard).read_bytes()
    for place in (0, 300):
        damaged = bytearray(content)
        damaged[place] ^= 1
        (there / shard).write_bytes(damaged)
        with pytest.raises(
            InputError, match=r"bucket/caches/spans is damaged \(example \d+ in shard train-00000"
        ):
            Cache(where).split("train").read(np.arange(20))
    with pytest.raises(InputError, match=f"{shard} does not fit its checksum"):
        Cache(where).verify()
    (there / shard).write_bytes(content[:-1])
    with pytest.raises(InputError, match=rf"{shard} has {len(content) - 1} bytes, but should have"):
        Cache(where)
    (there / shard).unlink()
    with pytest.raises(InputError, match=rf"{shard} cannot be read \(No such file"):
        Cache(where)
    shutil.copy(directory / shard, there / shard)
    ends = bytearray((there / "train.ends").read_bytes())
    ends[0] ^= 1
    (there / "train.ends").write_bytes(ends)
    with pytest.raises(InputError, match=r"train\.ends does not fit its checksum"):
        Cache(where).split("train")
