import itertools

import pytest

from t5x_lite.data.tasks import shuffling


@pytest.fixture(scope="module")
def tf():
    from t5x_lite.data.elements import tf

    return tf


def numbers(dataset, count):
    return [int(n) for n in itertools.islice(dataset.as_numpy_iterator(), count)]


def passes(tf, size, seed):
    """Passes over the numbers below a size."""
    dataset = tf.data.Dataset.range(size)
    return shuffling.Passes(
        lambda epoch: shuffling.permuted(dataset, size, shuffling.Shuffle(seed, epoch)), size=size
    )


def test_each_pass_is_a_permutation_of_its_own(tf):
    one = passes(tf, 50, seed=3)
    found = [numbers(one.of_epoch(epoch), 50) for epoch in range(3)]
    assert [sorted(each) for each in found] == [list(range(50))] * 3
    assert len({tuple(each) for each in [*found, range(50)]}) == 4
    assert numbers(passes(tf, 50, seed=3).of_epoch(2), 50) == found[2]
    assert numbers(passes(tf, 50, seed=4).of_epoch(2), 50) != found[2]


def reads_ahead(dataset):
    return dataset.map(lambda number: {"targets": number[None]}, num_parallel_calls=4)


@pytest.mark.parametrize("before", [0, 7, 15, 30, 37])  # a pass has 15 for each of two processes
def test_a_saved_iterator_goes_on(tf, tmp_path, before):
    import seqio

    feature = seqio.Feature(seqio.PassThroughVocabulary(100), add_eos=False, dtype=tf.int64)

    def iterator():
        task = seqio.Task(
            "numbers",
            source=seqio.FunctionDataSource(lambda split, shuffle_files: None, splits=["train"]),
            preprocessors=[reads_ahead, seqio.CacheDatasetPlaceholder()],
            output_features={"targets": feature},
        )
        shard = seqio.ShardInfo(1, 2)
        made = shuffling.in_passes(task, passes(tf, 30, seed=1), shard_info=shard)
        found = iter(made.get_dataset(None, "train", shuffle=False, num_epochs=None))
        return found, tf.train.Checkpoint(iterator=found)

    def values(found, count):
        return [int(next(found)["targets"][0]) for _ in range(count)]

    one, saved = iterator()
    values(one, before)
    path = saved.write(str(tmp_path / "position"))
    expected = values(one, 40)
    other, restored = iterator()
    values(other, 1)
    restored.read(path).assert_consumed()
    assert values(other, 40) == expected


def test_what_can_be_permuted(tf):
    tensors = tf.data.Dataset.from_tensor_slices({"text": ["a", "b"]})
    assert shuffling.can_be_permuted(tensors.map(lambda example: example["text"]))
    assert not shuffling.can_be_permuted(tensors.filter(lambda example: True))
    assert not shuffling.can_be_permuted(tensors.take(0))
    counted = tensors.filter(lambda example: True).apply(tf.data.experimental.assert_cardinality(2))
    assert not shuffling.can_be_permuted(counted)


def test_rows_that_were_read_are_permuted(tf):
    read = tf.data.Dataset.from_tensor_slices(
        {"text": [f"é{n}" for n in range(1500)], "n": range(1500)}
    ).filter(lambda example: example["n"] > 0)
    columns = shuffling.columns_of(read)
    shuffle = shuffling.Shuffle(3, tf.constant(1, tf.int64))
    found = shuffling.permuted_rows(columns, 1499, shuffle)
    assert found.element_spec == read.element_spec
    rows = [(row["text"].decode(), int(row["n"])) for row in found.as_numpy_iterator()]
    assert sorted(rows, key=lambda row: row[1]) == [(f"é{n}", n) for n in range(1, 1500)]
    of = [n - 1 for _, n in rows]
    assert of == numbers(shuffling.permuted_range(1499, shuffle), 1499)
    assert shuffling.columns_of(read.take(0))["n"].shape == (0,)


def test_what_fits_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(shuffling, "IN_MEMORY_BYTES", 10)
    small, large, packed = tmp_path / "a.txt", tmp_path / "b.txt", tmp_path / "c.txt.gz"
    small.write_bytes(b"x" * 10)
    large.write_bytes(b"x" * 11)
    packed.write_bytes(b"xx")
    assert shuffling.fit_in_memory([small])
    assert not shuffling.fit_in_memory([large])
    assert not shuffling.fit_in_memory([small, small])
    assert not shuffling.fit_in_memory([packed])  # eight times as much
    assert not shuffling.fit_in_memory(["train[0shard]"])
    assert shuffling.sizes_of([small, large]) == "21 bytes (368cd477)"
    assert shuffling.sizes_of([large, small]) != shuffling.sizes_of([small, large])
    assert shuffling.sizes_of(["gs://bucket/file"]) is None


def test_rows_are_scalars_by_name(tf):
    slices = tf.data.Dataset.from_tensor_slices
    assert shuffling.are_rows(slices({"text": ["a"], "n": [1]}))
    assert not shuffling.are_rows(slices({"tokens": [[1, 2]]}))
    assert not shuffling.are_rows(slices(["a"]))
    assert not shuffling.are_rows(slices({"of": {"text": ["a"]}}))
