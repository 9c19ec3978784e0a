import itertools

import pytest

from t5x_lite.data.tasks import text_source


def numbers(dataset, count):
    return [int(n) for n in itertools.islice(dataset.as_numpy_iterator(), count)]


def passes(size, seed):
    """Passes over the numbers below a size."""
    return text_source.Passes(
        lambda epoch: text_source.permuted_range(size, text_source.Shuffle(seed, epoch)),
        size="numbers",
    )


def test_each_pass_is_a_permutation_of_its_own(tf):
    one = passes(50, seed=3)
    found = [numbers(one.of_epoch(tf.constant(epoch, tf.int64)), 50) for epoch in range(3)]
    assert [sorted(each) for each in found] == [list(range(50))] * 3
    assert len({tuple(each) for each in [*found, range(50)]}) == 4
    assert numbers(passes(50, seed=3).of_epoch(tf.constant(2, tf.int64)), 50) == found[2]
    assert numbers(passes(50, seed=4).of_epoch(tf.constant(2, tf.int64)), 50) != found[2]


@pytest.mark.parametrize("before", [0, 7, 30, 37])  # a pass has 30
def test_a_saved_iterator_goes_on(tf, tmp_path, before):
    def preprocess(dataset, seed):
        return dataset.map(lambda number: {"number": number + seed}, num_parallel_calls=4)

    def iterator():
        examples = text_source.endless(passes(30, seed=1), preprocess, seed=100, epoch="epoch")
        found = iter(examples)
        return found, tf.train.Checkpoint(iterator=found)

    def values(found, count):
        taken = [next(found) for _ in range(count)]
        return [(int(example["number"]), int(example["epoch"])) for example in taken]

    one, saved = iterator()
    values(one, before)
    path = saved.write(str(tmp_path / "position"))
    expected = values(one, 40)
    other, restored = iterator()
    values(other, 1)
    restored.read(path).assert_consumed()
    assert values(other, 40) == expected
    whole, _ = iterator()
    assert sorted(values(whole, 60)) == [(100 + n, epoch) for n in range(30) for epoch in (0, 1)]


def test_what_can_be_permuted(tf):
    tensors = tf.data.Dataset.from_tensor_slices({"text": ["a", "b"]})
    assert text_source.can_be_permuted(tensors.map(lambda example: example["text"]))
    assert not text_source.can_be_permuted(tensors.filter(lambda example: True))
    assert not text_source.can_be_permuted(tensors.take(0))
    counted = tensors.filter(lambda example: True).apply(tf.data.experimental.assert_cardinality(2))
    assert not text_source.can_be_permuted(counted)


def test_what_fits_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(text_source, "IN_MEMORY_BYTES", 10)
    small, large, packed = tmp_path / "a.txt", tmp_path / "b.txt", tmp_path / "c.txt.gz"
    small.write_bytes(b"x" * 10)
    large.write_bytes(b"x" * 11)
    packed.write_bytes(b"xx")
    assert text_source.fit_in_memory([small])
    assert not text_source.fit_in_memory([large])
    assert not text_source.fit_in_memory([small, small])
    assert not text_source.fit_in_memory([packed])  # eight times as much
    assert not text_source.fit_in_memory(["train[0shard]"])
    assert text_source.sizes_of([small, large]) == "21 bytes (368cd477)"
    assert text_source.sizes_of([large, small]) != text_source.sizes_of([small, large])
    assert text_source.sizes_of(["gs://bucket/file"]) is None
