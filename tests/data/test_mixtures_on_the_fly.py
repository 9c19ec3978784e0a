"""Mixtures on the fly: their tasks are in a module made here, over examples in memory."""

import dataclasses
import importlib.util
import itertools
import json
import sys
import threading
from fractions import Fraction
from types import ModuleType

import numpy as np
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.config import Data
from t5x_lite.data.mixing import Mixing
from t5x_lite.data.mixtures import Member, Mixture

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("seqio") is None, reason="needs the extra data"
)

SIZES = {"many": 60, "few": 20}


@pytest.fixture
def named(monkeypatch):
    """A module with two tasks, one that finds no files, and mixtures of them."""
    import seqio

    from t5x_lite.data.postprocess import ClassIndex
    from t5x_lite.data.tasks import stages
    from t5x_lite.metrics.classification import accuracy

    def task(name, arguments, *, splits=("train", "validation")):
        def pairs(split):
            size = SIZES[name] if split == "train" else 6
            texts = [f"{name} {split} {i}" for i in range(size)]
            return stages.text_pairs(texts, [("no", "yes")[i % 2] for i in range(size)])

        return seqio.Task(
            f"named_{name}",
            source=stages.source(splits, pairs, one_to_one=True),
            preprocessors=stages.SUPERVISED_PREPROCESSORS,
            output_features=stages.features(arguments.vocabulary),
            postprocess_fn=ClassIndex(("no", "yes")),
            metric_fns=[accuracy],
        )

    def absent(arguments):
        raise InputError(f"no absent/train.tsv in data.directory {arguments.directory!r}")

    module = ModuleType("named")
    vars(module).update(
        many=lambda arguments: task("many", arguments),
        few=lambda arguments: task("few", arguments),
        held_out=lambda arguments: task("few", arguments, splits=("validation",)),
        absent=absent,
        both=Mixture(members=(Member(task="named:many"), Member(task="named:few"))),
        measured=Mixture(
            members=(
                Member(task="named:many"),
                Member(task="named:held_out", rate=0.0),
                Member(task="named:absent", rate=0.0),
            )
        ),
        broken=Mixture(members=(Member(task="named:many"), Member(task="named:absent"))),
        gone=Mixture(members=(Member(task="named:absent"),)),
        misspelt=Mixture(members=(Member(task="named:mnay"),)),
    )
    monkeypatch.setitem(sys.modules, "named", module)
    return module


def data(task="named:both", **settings):
    return Data(
        **{
            "task": task,
            "vocabulary": "",
            "batch_size": 8,
            "inputs_length": 16,
            "targets_length": 8,
            "pack": False,
            "shuffle_buffer": 16,
        }
        | settings
    )


def texts(batches, vocabulary, count):
    rows = itertools.chain.from_iterable(
        batch["encoder_input_tokens"] for batch in itertools.islice(batches, count)
    )
    return [vocabulary.decode([int(t) for t in row if t > 1]) for row in rows]


@pytest.mark.usefixtures("named")
@pytest.mark.slow
def test_tasks_are_drawn_at_their_rates(vocabulary):
    from t5x_lite.data import batches as data_batches

    def share(**mixing):
        mixed = data(mixing=Mixing(**mixing))
        batches = data_batches.train_batches(mixed, vocabulary, seed=3)
        found = texts(batches, vocabulary, 100)
        return sum(text.startswith("many") for text in found) / len(found)

    assert share() == 0.75
    assert share(by="equal") == 0.5
    assert share(leave_out=("named_few",)) == 1.0


@pytest.mark.usefixtures("named")
@pytest.mark.slow
def test_a_saved_position_goes_on(vocabulary):
    from t5x_lite.data import batches as data_batches

    batches = data_batches.train_batches(data(pack=True), vocabulary, seed=7)
    for _ in range(3):
        next(batches)
    state = batches.state()
    expected = [next(batches) for _ in range(3)]
    again = data_batches.train_batches(data(pack=True), vocabulary, seed=7)
    again.restore(state)
    for batch in expected:
        following = next(again)
        for name, value in following.items():
            np.testing.assert_array_equal(value, batch[name])
    other = data(pack=True, mixing=Mixing(by="equal"))
    with pytest.raises(InputError, match="members"):
        data_batches.train_batches(other, vocabulary, seed=7).restore(state)


@pytest.mark.usefixtures("named")
@pytest.mark.slow
def test_processes_read_different_examples(vocabulary):
    from t5x_lite.data import batches as data_batches

    def seen(index):
        batches = data_batches.train_batches(
            data(), vocabulary, seed=1, process_index=index, process_count=2
        )
        return set(texts(batches, vocabulary, 6))  # fewer than a pass

    assert not seen(0) & seen(1)
    with pytest.raises(InputError, match="cannot be divided among 3"):
        data_batches.train_batches(data(), vocabulary, seed=1, process_count=3)


@pytest.mark.usefixtures("named")
@pytest.mark.slow
def test_eval_batches_are_equal_in_every_run(vocabulary):
    from t5x_lite.data import batches as data_batches

    runs = [list(data_batches.eval_batches(data(), vocabulary)) for _ in range(2)]
    assert len(runs[0]) >= 1
    for one, other in zip(*runs, strict=True):
        np.testing.assert_array_equal(one["encoder_input_tokens"], other["encoder_input_tokens"])
        assert one["encoder_input_tokens"].shape == (8, 16)
    found = texts(runs[0], vocabulary, 9)
    assert any(text.startswith("many validation 0") for text in found)
    assert len(list(data_batches.eval_batches(data(), vocabulary, max_batches=1))) == 1
    with pytest.raises(InputError, match="has a split 'test'"):
        data_batches.eval_batches(data(), vocabulary, split="test")


DOCUMENTS = 10_000


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    """A directory with so many documents that nobody reads them all."""
    directory = tmp_path_factory.mktemp("documents")
    for part in range(2):
        lines = [json.dumps({"text": f"{part} {i} yes"}) for i in range(DOCUMENTS // 2)]
        (directory / f"train-{part}.jsonl").write_text("\n".join(lines))
    return str(directory)


@pytest.fixture
def read_documents(monkeypatch):
    """A function that gives how many documents were read since it was last called."""
    from t5x_lite.data.tasks import text_source

    monkeypatch.setattr(text_source, "IN_MEMORY_BYTES", 0)  # as of files that do not fit

    lock, number, parse = threading.Lock(), [0], text_source._jsonl_text

    def counting(line, where, **options):
        with lock:
            number[0] += 1
        return parse(line, where, **options)

    def since():
        with lock:
            found, number[0] = number[0], 0
        return found

    monkeypatch.setattr(text_source, "_jsonl_text", counting)
    return since


def text_member(**settings):
    return Member(task="tasks.text:span_corruption", **settings)


@pytest.fixture
def mixed(named):
    """A function that gives a mixture of tasks of documents, in the place of a task."""

    def name(*members):
        vars(named).update(mixed=Mixture(members=members))
        return "named:mixed"

    return name


@pytest.mark.exhaustive
def test_a_mixture_reads_no_more_than_its_task_alone(vocabulary, mixed, documents, read_documents):
    from t5x_lite.data import batches as data_batches

    next(
        data_batches.train_batches(
            data("tasks.text:span_corruption", directory=documents), vocabulary, seed=0
        )
    )
    alone = read_documents()
    assert 0 < alone < DOCUMENTS / 2
    for settings, mixing in (
        ({"rate": 1.0}, Mixing()),
        ({"examples": 365_000_000}, Mixing(maximum=2**19)),
        ({}, Mixing(by="equal")),
    ):
        settings = data(mixed(text_member(**settings)), directory=documents, mixing=mixing)
        next(data_batches.train_batches(settings, vocabulary, seed=0))
        assert read_documents() < alone + DOCUMENTS / 10  # tf.data reads ahead by its own judgement


@pytest.mark.exhaustive
def test_documents_are_counted_once_and_up_to_the_limit(
    vocabulary, mixed, documents, read_documents, caplog
):
    from t5x_lite.data import batches as data_batches

    caplog.set_level("INFO", logger="t5x_lite")
    limited = data(
        mixed(text_member(), Member(task="named:few", examples=20)),
        directory=documents,
        mixing=Mixing(maximum=60),
    )
    batches = data_batches.train_batches(limited, vocabulary, seed=0)
    assert batches._identity["members"] == [
        ["tasks.text:span_corruption", "3/4"],
        ["named:few", "1/4"],
    ]
    assert read_documents() < DOCUMENTS / 2
    whole = dataclasses.replace(limited, mixing=Mixing())
    batches = data_batches.train_batches(whole, vocabulary, seed=0)
    share = Fraction(batches._identity["members"][0][1])
    assert share > Fraction(9, 10) * DOCUMENTS / (DOCUMENTS + 20)  # some are held out
    assert read_documents() >= DOCUMENTS
    next(data_batches.eval_batches(whole, vocabulary))
    assert read_documents() < DOCUMENTS
    counting = (
        "counting the examples of task text_span_corruption, because the mixture does not define"
    )
    assert sum(counting in message for message in caplog.messages) == 2


@pytest.mark.exhaustive
@pytest.mark.usefixtures("named")
def test_a_constant_rate_that_stays_is_told(vocabulary, mixed, documents, caplog):
    from t5x_lite.data import batches as data_batches

    caplog.set_level("INFO", logger="t5x_lite")
    members = (Member(task="named:few"), text_member(rate=1e6, unlabelled=True))
    settings = data(mixed(*members), directory=documents)
    data_batches.train_batches(settings, vocabulary, seed=0)
    assert caplog.messages == []
    settings = dataclasses.replace(settings, mixing=Mixing(temperature=2.0))
    data_batches.train_batches(settings, vocabulary, seed=0)
    assert caplog.messages == [
        "data.mixing.maximum and data.mixing.temperature do not change the constant rate of "
        "task text_span_corruption, which is 1,000,000"
    ]


@pytest.mark.usefixtures("named")
def test_members(vocabulary):
    from t5x_lite.data import batches as data_batches
    from t5x_lite.data import loading

    found = loading.members(data("named:measured", directory="files"), vocabulary)
    assert [one.member.name for one in found.present] == ["named_many", "named_held_out"]
    assert found.absent == {"named_absent": "no absent/train.tsv in data.directory 'files'"}
    assert found.present[0].data == dataclasses.replace(
        data("named:many"), directory="files", mixing=Mixing()
    )
    batch = next(data_batches.train_batches(data("named:measured"), vocabulary, seed=0))
    assert batch["encoder_input_tokens"].shape == (8, 16)


@pytest.mark.usefixtures("named")
def test_what_cannot_be_trained_on_is_refused(vocabulary):
    from t5x_lite.data import batches as data_batches
    from t5x_lite.data import loading

    with pytest.raises(InputError, match=r"no absent/.*; --data\.mixing\.leave-out named_absent"):
        data_batches.train_batches(data("named:broken"), vocabulary, seed=0)
    # For a held-out loss those that are there will do.
    assert len(list(data_batches.eval_batches(data("named:broken"), vocabulary))) == 1
    with pytest.raises(InputError, match="no task of the mixture named:gone has data"):
        loading.members(data("named:gone"), vocabulary)
    with pytest.raises(InputError, match="no task 'mnay'"):
        loading.members(data("named:misspelt"), vocabulary)
    with pytest.raises(InputError, match="is a single task, but must be a mixture"):
        loading.members(data("named:many"), vocabulary)
