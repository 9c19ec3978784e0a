"""The epoch of each example goes through shuffling, every layout and a saved position."""

import pytest

from t5x_lite import layouts
from t5x_lite.data import mixtures
from t5x_lite.data.config import Data


def pairs(arguments):
    """A task of ten pairs of text, without a placeholder: example i has i + 1 words."""
    import seqio

    from t5x_lite.data.tasks import stages

    texts = [" ".join(["word"] * (i % 3 + 1)) for i in range(10)]
    return seqio.Task(
        "pairs",
        source=stages.source(("train",), lambda split: stages.text_pairs(texts, texts)),
        preprocessors=[seqio.preprocessors.tokenize, seqio.preprocessors.append_eos_after_trim],
        output_features=stages.features(arguments.vocabulary),
    )


def forgetful(arguments):
    """The same, with a preprocessor that drops what it does not know."""
    from t5x_lite.data.tasks import stages

    task = pairs(arguments)

    def only(dataset):
        return dataset.map(lambda x: {"inputs": x["inputs"], "targets": x["targets"]})

    return task.replace(
        source=stages.source(("train",), lambda split: task.source.get_dataset(split, False)),
        preprocessors=[*task.preprocessors[:1], only, *task.preprocessors[1:]],
    )


@pytest.fixture
def train(byte_vocabulary, monkeypatch):
    from t5x_lite.data import batches as data_batches
    from t5x_lite.data import loading

    def make(task=pairs, *, layout=None, index=0, count=1, **changes):
        for module in (loading, mixtures):
            monkeypatch.setattr(module, "find_task", lambda name: task)
        data = Data(
            task="my:pairs",
            vocabulary="bytes",
            layout=layout or layouts.Seq2Seq(),
            **{"batch_size": 5, "inputs_length": 24, "targets_length": 24, "pack": False} | changes,
        )
        return data_batches.train_batches(
            data, byte_vocabulary, seed=1, process_index=index, process_count=count
        )

    return make


def said(caplog):
    """What the package said; seqio says much itself."""
    return [record.getMessage() for record in caplog.records if record.name.startswith("t5x")]


def told(batches, count):
    found = []
    for _ in range(count):
        next(batches)
        found.append(batches.epoch)
    return found


def test_whole_epochs_are_counted_and_the_first_repetition_is_told(train, caplog):
    assert told(train(shuffle=False), 6) == [0, 0, 1, 1, 2, 2]
    assert said(caplog) == ["epoch 2 of my:pairs begins: the training examples are repeated"]


@pytest.mark.slow
def test_a_restored_position_knows_its_epoch(train, caplog):
    batches = train()
    told(batches, 2)
    before, epoch = batches.state(), batches.epoch
    expected = told(batches, 5)
    state = batches.state()
    assert len(said(caplog)) == 1
    again = train()
    again.restore(state)
    assert again.epoch == expected[-1] >= 1
    told(again, 3)
    assert len(said(caplog)) == 1  # it was told before
    again.restore(before)
    assert again.epoch == epoch
    assert told(again, 5) == expected


def test_the_first_process_tells_it(train, caplog):
    for index in range(2):
        assert told(train(index=index, count=2, batch_size=4, shuffle=False), 4)[-1] == 1
    assert len(said(caplog)) == 1


def test_a_task_that_forgets_the_epoch_has_none(train, caplog):
    batches = train(forgetful, shuffle=False)
    assert told(batches, 4) == [None] * 4
    assert said(caplog) == []


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_task_whose_raw_examples_have_no_names(train, shuffle):
    from t5x_lite.data.elements import tf
    from t5x_lite.data.tasks import stages

    def nameless(arguments):
        task = pairs(arguments)
        texts = ["word", "word word"]

        def named(dataset):
            return dataset.map(lambda text: {"inputs": text, "targets": text})

        return task.replace(
            source=stages.source(("train",), lambda _: tf.data.Dataset.from_tensor_slices(texts)),
            preprocessors=[named, *task.preprocessors],
        )

    assert told(train(nameless, shuffle=shuffle), 2) == [None] * 2
