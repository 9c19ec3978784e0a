"""The first documents or tokens of a task on the fly, and that its cache has the same."""

import dataclasses
import itertools
import json

import numpy as np
import pytest

from t5x_lite import layouts
from t5x_lite.core.errors import InputError
from t5x_lite.data.config import Data
from t5x_lite.data.preprocessors import Columns
from t5x_lite.data.tasks import text_source

pytest.importorskip("seqio")


@pytest.fixture(scope="module")
def directory(tmp_path_factory, english_lines):
    """400 documents to train on in two files, and one that is held out."""
    directory = tmp_path_factory.mktemp("documents")
    for part in range(2):
        lines = english_lines[200 * part : 200 * (part + 1)]
        (directory / f"{part}.txt").write_text("\n".join(lines))
    (directory / "validation.txt").write_text("this is held out")
    return str(directory)


@pytest.fixture
def data(directory):
    return Data(
        task="tasks.text:span_corruption",
        vocabulary="",
        directory=directory,
        batch_size=4,
        inputs_length=64,
        targets_length=24,
        shuffle_buffer=20,
        pack=False,
    )


@pytest.fixture(params=["held", "stream"])
def where(request, monkeypatch):
    """Data that are read into memory, and data that are too large for it."""
    if request.param == "stream":
        monkeypatch.setattr(text_source, "IN_MEMORY_BYTES", 0)
    return request.param


def train(data, vocabulary, *, index=0, count=1, seed=3):
    from t5x_lite.data import batches as data_batches

    return data_batches.train_batches(
        data, vocabulary, seed=seed, process_index=index, process_count=count
    )


def rows(batches, vocabulary, count):
    """The text of the next examples, of which each is a row: as tokens, uncorrupted."""
    from t5x_lite.data.denoising import invert

    found = []
    while len(found) < count:
        batch = next(batches)
        for inputs, targets in zip(
            batch["encoder_input_tokens"], batch["decoder_target_tokens"], strict=True
        ):
            inputs, targets = inputs[inputs > 0][:-1], targets[targets > 0][:-1]
            found.append(tuple(invert(inputs, targets, vocabulary.sentinel(0)).tolist()))
    return found[:count]


def first_chunks(data, vocabulary, number):
    """The first chunks of text, read in order, that have so many tokens at most."""
    from t5x_lite.data import loading

    task = loading.load_task(data, vocabulary)
    dataset = task.preprocess_precache(task.source.get_dataset("train", shuffle=False), seed=0)
    found = [tuple(example["tokens"].tolist()) for example in dataset.as_numpy_iterator()]
    totals = np.cumsum([len(chunk) for chunk in found])
    return found[: int((totals <= number).sum())]


@pytest.mark.gate("stream")
@pytest.mark.slow
def test_every_pass_has_the_first_tokens_and_cuts_them_anew(data, vocabulary, where):
    chunks = first_chunks(data, vocabulary, 1000)
    assert len(chunks) == 1000 // len(chunks[0]) > 8
    first = dataclasses.replace(data, first_tokens=1000, shuffle=where == "held")
    whole = rows(train(first, vocabulary), vocabulary, 3 * len(chunks))
    orders = [whole[k * len(chunks) : (k + 1) * len(chunks)] for k in range(3)]
    for order in orders:
        assert sorted(order) == sorted(chunks)
    assert (orders[0] == orders[1]) == (where == "stream")
    inputs = [
        row.tobytes()
        for batch in itertools.islice(train(first, vocabulary), 3 * len(chunks) // 4)
        for row in batch["encoder_input_tokens"]
    ]
    assert len({*inputs}) == len(inputs)  # corrupted anew in each pass


@pytest.mark.slow
def test_a_stream_is_shuffled_by_the_buffer(data, vocabulary, monkeypatch):
    monkeypatch.setattr(text_source, "IN_MEMORY_BYTES", 0)
    chunks = first_chunks(data, vocabulary, 1000)
    found = rows(train(dataclasses.replace(data, first_tokens=1000), vocabulary), vocabulary, 40)
    assert {*found} <= {*chunks}
    assert found[: len(chunks)] != chunks


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_position_goes_on(data, vocabulary, where):
    first = dataclasses.replace(data, first_tokens=1000, pack=True)
    batches = train(first, vocabulary)
    for _ in range(7):
        next(batches)
    state = batches.state()
    expected = [next(batches) for _ in range(9)]
    again = train(first, vocabulary)
    again.restore(state)
    for batch in expected:
        following = next(again)
        for name, value in batch.items():
            np.testing.assert_array_equal(following[name], value)
    assert again.epoch == batches.epoch > 0
    with pytest.raises(InputError, match=r"first_tokens 1000 \(now 1001\)"):
        train(dataclasses.replace(first, first_tokens=1001), vocabulary).restore(state)
    if where == "held":
        every = train(dataclasses.replace(first, first_tokens=None), vocabulary)
        assert not {"first_tokens", "first_documents"} & every._identity.keys()
        with pytest.raises(InputError, match=r"first_tokens 1000 \(now None\), size"):
            every.restore(state)


@pytest.mark.usefixtures("where")
def test_processes_divide_the_first_tokens(data, vocabulary):
    chunks = first_chunks(data, vocabulary, 1000)
    first = dataclasses.replace(data, first_tokens=1000, shuffle=False)
    parts = [train(first, vocabulary, index=i, count=2) for i in range(2)]
    found = [row for _ in range(4) for part in parts for row in rows(part, vocabulary, 2)]
    assert found == [chunks[k % len(chunks)] for k in range(len(found))]


@pytest.mark.usefixtures("where")
def test_the_first_documents_are_repeated(data, vocabulary, english_lines):
    first = dataclasses.replace(
        data, task="tasks.text:language_model", first_documents=3, shuffle=False
    )
    first = dataclasses.replace(first, layout=layouts.LM(), targets_length=512)
    # The files are read in turn, 128 lines of each.
    tokens = list(itertools.chain(*vocabulary.encode_batch(english_lines[:3])))
    batches = train(first, vocabulary)
    taken = [next(batches)["decoder_target_tokens"] for _ in range(3)]
    found = list(itertools.chain.from_iterable(taken))
    length = -(-len(tokens) // 511)
    whole = [[t for t in row.tolist() if t > 1] for row in found]
    for start in range(0, len(whole) - length + 1, length):
        assert list(itertools.chain(*whole[start : start + length])) == tokens
    assert batches.epoch > 0


def test_the_first_pairs_are_permuted(tmp_path, vocabulary):
    lines = [json.dumps({"inputs": f"number {i}", "targets": "yes"}) for i in range(30)]
    (tmp_path / "train.jsonl").write_text("\n".join(lines))
    pairs = Data(
        task="tasks.files:text_to_text",
        columns=Columns(inputs="{inputs}", targets="{targets}"),
        vocabulary="",
        directory=str(tmp_path),
        batch_size=5,
        inputs_length=16,
        targets_length=4,
        pack=False,
        first_documents=10,
    )
    batches = train(pairs, vocabulary)
    epochs = [
        [
            int(vocabulary.decode([int(t) for t in row if t > 1]).split()[-1])
            for batch in (next(batches), next(batches))
            for row in batch["encoder_input_tokens"]
        ]
        for _ in range(3)
    ]
    assert all(sorted(epoch) == [*range(10)] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


@pytest.mark.slow
def test_a_cache_has_the_same_examples(data, vocabulary, tmp_path):
    from t5x_lite.data import batches as data_batches
    from t5x_lite.data.cache.making import write_cache

    chunks = first_chunks(data, vocabulary, 1000)
    first = dataclasses.replace(data, first_tokens=1000)
    write_cache(data, vocabulary, tmp_path / "all")
    index = write_cache(first, vocabulary, tmp_path / "first")
    assert index.splits["train"].examples == len(chunks)
    assert index.splits["validation"].examples == 1
    for name in ("all", "first"):
        cache = dataclasses.replace(first, cache=str(tmp_path / name))
        batches = data_batches.train_batches(cache, vocabulary, seed=0)
        for _ in range(2):
            # 17 chunks of 71 tokens, and a shorter one of the same text where the group ends.
            found = rows(batches, vocabulary, len(chunks) - len(chunks) % 4)
            assert {*found} <= {*chunks}
    documents = dataclasses.replace(data, first_documents=5)
    assert write_cache(documents, vocabulary, tmp_path / "five").documents == 5
    cache = dataclasses.replace(documents, cache=str(tmp_path / "five"))
    assert next(data_batches.train_batches(cache, vocabulary, seed=0))


@pytest.mark.slow
def test_what_cannot_be_truncated_is_refused(data, vocabulary, caplog):
    with pytest.raises(
        InputError,
        match="first_tokens 3 is less than the number of tokens of the first training example",
    ):
        train(dataclasses.replace(data, first_tokens=3), vocabulary)
    with pytest.raises(InputError, match=r"is a mixture; set data.task to one task, or unset"):
        train(dataclasses.replace(data, task="tasks.mixtures:glue", first_tokens=3), vocabulary)
    train(dataclasses.replace(data, first_documents=401), vocabulary)
    assert "data.first_documents is 401, but the task has only 400 documents" in caplog.messages


def test_tokens_need_a_place_where_they_are_counted(data, vocabulary):
    from t5x_lite.data import loading

    task = loading.load_task(data, vocabulary)
    without = task.replace(preprocessors=[])
    with pytest.raises(
        InputError, match="requires a seqio CacheDatasetPlaceholder after the tokenization, but"
    ):
        loading.truncated(dataclasses.replace(data, first_tokens=9), without, seed=0)
    assert loading.truncated(data, task, seed=0) is task
