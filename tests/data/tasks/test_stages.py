import functools
import itertools
import json

import numpy as np
import pytest


@pytest.fixture(scope="module")
def vocabulary(tiny_vocabulary):
    from t5x_lite.data.vocabularies.loading import load_vocabulary

    return load_vocabulary(tiny_vocabulary)


def texts(dataset):
    return [example["text"].decode() for example in dataset.as_numpy_iterator()]


def test_map_numpy_gives_what_the_function_gives_in_order(stages, tf):
    dataset = tf.data.Dataset.range(5).map(lambda n: {"n": n, "name": tf.strings.as_string(n)})
    signature = {
        "sum": tf.TensorSpec([], tf.int32),
        "row": tf.TensorSpec([None], tf.int64),
        "text": tf.TensorSpec([], tf.string),
    }

    def function(example):
        n = example["n"]
        return {"sum": n + 1, "row": np.arange(n), "text": example["name"] + b"!"}

    found = stages.map_numpy(dataset, function, signature)
    assert found.element_spec == signature
    assert [int(e["sum"]) for e in found.as_numpy_iterator()] == [1, 2, 3, 4, 5]
    last = list(found.as_numpy_iterator())[-1]
    assert last["row"].tolist() == [0, 1, 2, 3]
    assert last["text"] == b"4!"


def test_documents_are_concatenated_in_groups_and_split(stages, tf, vocabulary):
    documents = [f"document number {i} has these words" for i in range(300)]
    dataset = tf.data.Dataset.from_tensor_slices({"text": documents})
    features = stages.features(vocabulary)
    found = stages.chunk_documents(dataset, features, length=50)
    chunks = [e["tokens"].tolist() for e in found.as_numpy_iterator()]
    expected = []
    for start in range(0, 300, 128):
        group = vocabulary.encode_batch(documents[start : start + 128])
        tokens = list(itertools.chain.from_iterable(group))
        expected += [tokens[i : i + 50] for i in range(0, len(tokens), 50)]
    assert chunks == [chunk for chunk in expected if len(chunk) > 1]


def test_documents_may_be_split_each_on_its_own(stages, tf, vocabulary):
    documents = [f"document number {'seven ' * (i % 5)}" for i in range(150)]
    dataset = tf.data.Dataset.from_tensor_slices({"text": [*documents[:70], "", *documents[70:]]})
    found = stages.chunk_documents(dataset, stages.features(vocabulary), length=7, join=False)
    chunks = [e["tokens"].tolist() for e in found.as_numpy_iterator()]
    expected = []
    for tokens in vocabulary.encode_batch(documents):
        expected += [tokens[i : i + 7] for i in range(0, len(tokens), 7)]
    assert chunks == [chunk for chunk in expected if len(chunk) > 1]


def test_bytes_of_documents_are_joined_and_split(stages, tf):
    from t5x_lite.data.vocabularies.byte_level import Bytes

    dataset = tf.data.Dataset.from_tensor_slices({"text": ["hé", "", "abc"]})
    found = stages.chunk_documents(dataset, stages.features(Bytes()), length=4)
    chunks = [e["tokens"].tolist() for e in found.as_numpy_iterator()]
    assert chunks == [[107, 198, 172, 100], [101, 102]]


@pytest.mark.parametrize(("length", "sizes"), [(3, [3, 2]), (4, [4]), (5, [5]), (6, [5])])
def test_a_last_chunk_of_one_token_is_dropped(stages, tf, vocabulary, length, sizes):
    words = ("a", "the", "of", "to", "is")
    word = next(word for word in words if len(vocabulary.encode(word)) == 1)
    dataset = tf.data.Dataset.from_tensor_slices({"text": [word] * 5})
    found = stages.chunk_documents(dataset, stages.features(vocabulary), length=length)
    assert [len(e["tokens"]) for e in found.as_numpy_iterator()] == sizes


def test_epochs_end_where_the_index_does_not_rise(stages, tf):
    dataset = stages.number(tf.data.Dataset.from_tensor_slices({"x": [7, 8, 9]})).repeat(3)
    found = [
        (int(e["epoch"]), int(e["index"]), int(e["x"]))
        for e in stages.count_epochs(dataset).as_numpy_iterator()
    ]
    assert found == [(e, i, 7 + i) for e in range(3) for i in range(3)]


def test_epochs_of_a_shard_that_does_not_begin_at_0(stages, tf):
    dataset = stages.number(tf.data.Dataset.from_tensor_slices({"x": [7, 8, 9, 10]}))
    shard = dataset.shard(2, 1).repeat(2)
    found = [
        (int(e["epoch"]), int(e["index"])) for e in stages.count_epochs(shard).as_numpy_iterator()
    ]
    assert found == [(0, 1), (0, 3), (1, 1), (1, 3)]


def test_epochs_of_passes_that_drop_examples(stages, tf):
    dataset = tf.data.Dataset.from_tensor_slices({"index": tf.constant([2, 5, 1, 2, 2], tf.int64)})
    found = [int(e["epoch"]) for e in stages.count_epochs(dataset).as_numpy_iterator()]
    assert found == [0, 0, 1, 1, 2]


def test_corruption_gets_seed_epoch_and_index(stages, tf):
    from t5x_lite.data.denoising import span_corruption

    tokens = np.arange(3, 53, dtype=np.int32)
    dataset = tf.data.Dataset.from_tensor_slices({"tokens": np.stack([tokens, tokens])})
    dataset = stages.count_epochs(stages.number(dataset).repeat(2))
    options = {"sentinel_start": 99, "noise_density": 0.15, "mean_noise_span_length": 3.0}
    function = functools.partial(span_corruption, **options)
    found = list(stages.corrupt(dataset, function, seed=5).as_numpy_iterator())
    keys = [(0, 0), (0, 1), (1, 0), (1, 1)]
    for (epoch, index), example in zip(keys, found, strict=True):
        expected = span_corruption(tokens, seed=5, epoch=epoch, index=index, **options)
        assert example["inputs"].tolist() == expected["inputs"].tolist()
        assert example["targets"].tolist() == expected["targets"].tolist()
    assert len({json.dumps(example["inputs"].tolist()) for example in found}) == 4


def arguments_of(vocabulary, inputs_length, targets_length):
    from t5x_lite.data.config import TaskArguments

    return TaskArguments(
        vocabulary=vocabulary,
        directory="",
        inputs_length=inputs_length,
        targets_length=targets_length,
        seed=5,
    )


def objective_examples(stages, vocabulary, objective, texts, *, epochs=1, lengths=(24, 24)):
    arguments = arguments_of(vocabulary, *lengths)
    source = stages.source(["train"], lambda split: stages.text_documents(texts))
    task = stages.unsupervised_task("task", objective(arguments), arguments, source=source)
    named = dict(zip(("inputs", "targets"), lengths, strict=True))
    dataset = task.get_dataset(named, "train", shuffle=False, num_epochs=epochs)
    return list(dataset.as_numpy_iterator())


def test_an_objective_makes_a_task(stages, vocabulary, english_lines):
    from t5x_lite.data.denoising import mass_style
    from t5x_lite.data.tasks import unsupervised

    texts, masked = english_lines[:20], vocabulary.sentinel_start
    found = objective_examples(stages, vocabulary, unsupervised.mass_style, texts, epochs=2)
    tokens = list(itertools.chain(*(vocabulary.encode(text) for text in texts)))
    chunks = [tokens[start : start + 23] for start in range(0, len(tokens), 23)]
    for number, example in enumerate(found[: 2 * len(chunks)]):
        epoch, index = divmod(number, len(chunks))
        expected = mass_style(
            np.array(chunks[index]), seed=5, epoch=epoch, index=index, sentinel_start=masked
        )
        assert example["inputs"].tolist() == [*expected["inputs"], 1]
        assert example["targets"].tolist() == [*chunks[index], 1]
    assert number == 2 * len(chunks) - 1


def test_an_objective_without_corruption_has_targets_only(stages, vocabulary):
    from t5x_lite.data.tasks import unsupervised

    texts = ["one two three four five six", "seven eight", "nine"]
    tokens = [vocabulary.encode(text) for text in texts]
    plain = objective_examples(stages, vocabulary, unsupervised.language_model, texts)
    joined = list(itertools.chain(*tokens))
    assert [example["targets"].tolist() for example in plain] == [
        [*joined[start : start + 23], 1] for start in range(0, len(joined), 23)
    ]
    full = objective_examples(stages, vocabulary, unsupervised.full_language_model, texts)
    ended = list(itertools.chain(*([*document, 1] for document in tokens)))
    assert [example["targets"].tolist() for example in full] == [
        ended[start : start + 24] for start in range(0, len(ended), 24)
    ]
    assert set(full[0]) == {"targets"}


def test_text_pairs_and_documents_may_be_empty(stages):
    assert list(stages.text_pairs([], [])) == []
    assert list(stages.text_documents([])) == []
    assert texts(stages.text_documents(["a", "é"])) == ["a", "é"]


def test_a_source_of_files_gives_all_or_those_of_a_shard(stages):
    import seqio

    files = {"train": ["a", "b", "c"], "test": ["d"]}
    source = stages.FileSource(
        list(files), files.__getitem__, lambda split, of: stages.text_documents([*of, split])
    )
    assert source.files("train") == ("a", "b", "c")
    assert texts(source.get_dataset("train", shuffle=False)) == ["a", "b", "c", "train"]
    alone = source.get_dataset("test", shuffle=False, shard_info=seqio.ShardInfo(0, 1))
    assert texts(alone) == ["d", "test"]
    assert texts(source.get_dataset("train", shard_info=seqio.ShardInfo(1, 2))) == ["b", "train"]
    with pytest.raises(ValueError, match="split test cannot be divided into 2 shards"):
        source.get_dataset("test", shard_info=seqio.ShardInfo(1, 2))
    assert source.list_shards("train") == ["train"]


def test_passes_over_files(stages, tf, tmp_path, monkeypatch):
    """Files that fit into memory are held; of others the source says an order of each pass."""
    file = tmp_path / "a.txt"
    file.write_text("abc")

    def dataset_of(split, files, shuffle=None):
        shown = tf.constant(0 if shuffle is None else 1 + shuffle.epoch, tf.int64)
        return tf.data.Dataset.range(3).map(lambda value: {"value": value, "epoch": shown})

    source = stages.FileSource(["train"], lambda split: [file], dataset_of, shuffled=dataset_of)
    assert source.fits_in_memory("train")
    monkeypatch.setattr("t5x_lite.data.tasks.text_source.IN_MEMORY_BYTES", 2)
    assert not source.fits_in_memory("train")
    passes = source.passes("train", seed=0)
    assert [int(e["epoch"]) for e in passes.of_epoch(6).as_numpy_iterator()] == [7, 7, 7]
    assert passes.size == "3 bytes (567eb72d)"


def test_examples_in_blocks(stages, tf):
    from t5x_lite.data.cache.recipe import examples_of_block

    parts = [[5, 6], [], [7]]
    dataset = tf.data.Dataset.from_tensor_slices(
        {"a": tf.ragged.constant(parts, tf.int32), "score": [[0.5], [1.0], [-2.0]]}
    ).enumerate()
    dataset = dataset.map(lambda number, example: {**example, "number": number})
    blocks = [*stages.in_blocks(dataset, ("a", "score"), 2, scalars=("number",))]
    assert [block["number"].numpy().tolist() for block in blocks] == [[0, 1], [2]]
    values = [{name: value.numpy() for name, value in block.items()} for block in blocks]
    found = [one for block in values for one in examples_of_block(block, ("a", "score"))]
    assert [one[0].tolist() for one in found] == parts
    assert [one[1].tolist() for one in found] == [[0, 16128], [0, 16256], [0, 49152]]


def test_what_is_read_from_the_front_alone_has_no_passes(stages):
    counted = stages.source(
        ["train"], lambda split: stages.text_documents("abc").filter(lambda example: True)
    )
    assert counted.passes("train", seed=0) is None
