import dataclasses
import itertools
import json
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from t5x_lite import layouts
from t5x_lite.core.errors import InputError
from t5x_lite.data import batches as data_batches
from t5x_lite.data import sources
from t5x_lite.data.config import Refresh, Scheduled
from t5x_lite.data.formats import documents as line_blocks
from t5x_lite.data.mixing import Mixing
from t5x_lite.data.preprocessors import Columns
from t5x_lite.data.tasks import text_source
from tests.batches import assert_equal_batches, take

PACKED = {"encoder_input_tokens", "encoder_segment_ids", "encoder_positions"} | {
    f"decoder_{name}"
    for name in ("input_tokens", "target_tokens", "loss_weights", "segment_ids", "positions")
}


@pytest.fixture(scope="module")
def loading():
    from t5x_lite.data import loading

    return loading


@pytest.fixture(scope="module")
def reading():
    from t5x_lite.data import reading

    return reading


@pytest.fixture(scope="module")
def data(tmp_path_factory, english_lines):
    """Span corruption of some text, every hundredth line of it held out."""
    from t5x_lite.data.config import Data

    directory = tmp_path_factory.mktemp("text")
    (directory / "prose.txt").write_text("\n".join(english_lines[:400]))
    return Data(
        task="tasks.text:span_corruption",
        vocabulary="",
        directory=str(directory),
        batch_size=4,
        inputs_length=64,
        targets_length=24,
        shuffle_buffer=20,
    )


def tokens(batches):
    return [batch["encoder_input_tokens"].tolist() for batch in batches]


def inverted(inputs, targets, vocabulary):
    """The tokens that an example of span corruption was made of."""
    from t5x_lite.data.denoising import invert

    assert inputs[-1] == targets[-1] == vocabulary.eos_id
    return invert(inputs[:-1], targets[:-1], vocabulary.sentinel(0)).tolist()


def documents(batches, vocabulary):
    """The same of all examples of packed batches, in order."""
    found = []
    for batch in batches:
        for row in range(len(batch["encoder_input_tokens"])):
            for segment in range(1, batch["encoder_segment_ids"][row].max() + 1):
                inputs = batch["encoder_segment_ids"][row] == segment
                targets = batch["decoder_segment_ids"][row] == segment
                example = (
                    batch["encoder_input_tokens"][row][inputs],
                    batch["decoder_target_tokens"][row][targets],
                )
                found.append(inverted(*example, vocabulary))
    return found


@pytest.mark.slow
def test_a_batch_has_seqios_features(data, vocabulary):
    batch = next(data_batches.train_batches(data, vocabulary, seed=0))
    assert set(batch) == PACKED
    for name, value in batch.items():
        assert value.shape == (4, 64 if name.startswith("encoder") else 24)
        assert value.dtype == np.int32


@pytest.mark.slow
def test_unpacked_batches_have_neither_segments_nor_positions(data, vocabulary):
    unpacked = dataclasses.replace(data, pack=False)
    batch = next(data_batches.train_batches(unpacked, vocabulary, seed=0))
    assert set(batch) == {
        name for name in PACKED if name.split("_")[1] in ("input", "target", "loss")
    }


def test_the_rows_of_an_epoch_give_back_the_text(data, vocabulary, tmp_path):
    text = Path(data.directory, "prose.txt").read_text()
    (tmp_path / "prose.txt").write_text(text)
    (tmp_path / "validation.txt").write_text("All of the prose is for training.")
    data = dataclasses.replace(data, directory=str(tmp_path))
    batches = list(data_batches.eval_batches(data, vocabulary, split="train"))
    lines = text.split("\n")
    expected: list[int] = []
    for start in range(0, len(lines), 128):
        expected += itertools.chain(*vocabulary.encode_batch(lines[start : start + 128]))
    found = list(itertools.chain(*documents(batches, vocabulary)))
    # A group's last chunk may be one token, which is dropped.
    assert len(expected) - 4 <= len(found) <= len(expected)
    assert found[:5000] == expected[:5000]


@pytest.mark.slow
def test_equal_seeds_give_equal_batches_and_others_do_not(data, vocabulary):
    one = take(data_batches.train_batches(data, vocabulary, seed=1), 3)
    assert_equal_batches(take(data_batches.train_batches(data, vocabulary, seed=1), 3), one)
    assert tokens(take(data_batches.train_batches(data, vocabulary, seed=2), 3)) != tokens(one)


@pytest.mark.slow
def test_without_shuffling_the_seed_still_decides_what_is_cut(data, vocabulary):
    ordered = dataclasses.replace(data, shuffle=False)
    one = next(data_batches.train_batches(ordered, vocabulary, seed=1))
    two = next(data_batches.train_batches(ordered, vocabulary, seed=2))
    assert tokens([one]) != tokens([two])
    assert documents([one], vocabulary)[:3] == documents([two], vocabulary)[:3]


@pytest.mark.slow
def test_every_epoch_cuts_the_same_text_otherwise(data, vocabulary, tmp_path):
    (tmp_path / "train.txt").write_text(
        "this is all there is, and each epoch cuts it elsewhere\n" * 2
    )
    (tmp_path / "validation.txt").write_text("and this\n")
    tiny = dataclasses.replace(data, directory=str(tmp_path), shuffle=False, batch_size=1)
    batches = take(data_batches.train_batches(tiny, vocabulary, seed=0), 4)
    texts = documents(batches, vocabulary)
    assert texts == [texts[0]] * len(texts)
    assert len({str(row) for row in tokens(batches)}) == 4


@pytest.mark.slow
def test_a_restored_position_goes_on_with_the_next_batch(data, vocabulary):
    batches = data_batches.train_batches(data, vocabulary, seed=3)
    take(batches, 5)
    state = batches.state()
    expected = take(batches, 12)
    other = data_batches.train_batches(data, vocabulary, seed=3)
    take(other, 2)
    other.restore(state)
    assert_equal_batches(take(other, 12), expected)
    other.restore(state)
    assert_equal_batches(take(other, 1), expected[:1])


@pytest.mark.slow
def test_the_position_of_other_data_is_refused(data, vocabulary):
    state = data_batches.train_batches(data, vocabulary, seed=0).state()
    task = "tasks.text:span_5_15_u_u"
    other = dataclasses.replace(data, task=task, batch_size=8)
    with pytest.raises(InputError) as caught:
        data_batches.train_batches(other, vocabulary, seed=0).restore(state)
    for message in (
        "task 'tasks.text:span_corruption' (now",
        "batch_size 4 (now 8)",
    ):
        assert message in str(caught.value)
    same = dataclasses.replace(data, targets_length=30)
    with pytest.raises(
        InputError, match=r"other settings: seed 0 \(now 1\), targets_length 24 \(now 30\)"
    ):
        data_batches.train_batches(same, vocabulary, seed=1).restore(state)


@pytest.fixture
def stream(monkeypatch, data, tmp_path):
    """Lines 0 to 999 in a file that does not fit into memory, by parts of some five lines."""
    monkeypatch.setattr(text_source, "IN_MEMORY_BYTES", 0)
    monkeypatch.setattr(line_blocks, "PART_BYTES", 64)
    (tmp_path / "train.txt").write_text("".join(f"line {i:04}\n" for i in range(1000)))
    (tmp_path / "validation.txt").write_text("and this\n")
    task = "tasks.encoder:lines"
    return dataclasses.replace(
        data,
        task=task,
        layout=layouts.Encoder(),
        directory=str(tmp_path),
        pack=False,
        inputs_length=24,
    )


def line_numbers(batches, vocabulary):
    rows = itertools.chain(*(batch["encoder_input_tokens"] for batch in batches))
    texts = [vocabulary.decode([int(t) for t in row if t > 1]) for row in rows]
    return [int("".join(filter(str.isdigit, text))[-4:]) for text in texts]  # not the 0 of [CLS]


@pytest.mark.slow
def test_a_stream_comes_from_all_of_a_file(stream, vocabulary):
    one = line_numbers(
        take(data_batches.train_batches(stream, vocabulary, seed=0), 240), vocabulary
    )
    assert len({number // 250 for number in one[:32]}) == 4
    assert len({*one}) > 0.9 * len(one)  # none comes twice before the file ends
    other = line_numbers(
        take(data_batches.train_batches(stream, vocabulary, seed=1), 8), vocabulary
    )
    assert one[:32] != other
    ordered = dataclasses.replace(stream, shuffle=False)
    found = line_numbers(
        take(data_batches.train_batches(ordered, vocabulary, seed=0), 2), vocabulary
    )
    assert found == list(range(8))


@pytest.mark.parametrize("before", [1, 260])
@pytest.mark.gate("260")
@pytest.mark.slow
def test_a_stream_goes_on_where_it_was(stream, vocabulary, before):
    batches = data_batches.train_batches(stream, vocabulary, seed=3)
    take(batches, before)
    state = batches.state()
    expected = take(batches, 30)
    again = data_batches.train_batches(stream, vocabulary, seed=3)
    again.restore(state)
    assert_equal_batches(take(again, 30), expected)


def test_the_position_in_files_that_changed_is_refused(stream, vocabulary):
    state = data_batches.train_batches(stream, vocabulary, seed=0).state()
    with Path(stream.directory, "train.txt").open("a") as file:
        file.write("line 1000\n")
    with pytest.raises(
        InputError, match=r"other settings: size '10000 bytes \(\w+\)' \(now '10010 b"
    ):
        data_batches.train_batches(stream, vocabulary, seed=0).restore(state)


@pytest.mark.parametrize("kind", sources.FORMER)
def test_a_position_of_an_earlier_order_begins_anew_and_says_so(data, vocabulary, caplog, kind):
    batches = data_batches.train_batches(data, vocabulary, seed=3)
    expected = take(batches, 2)
    saved = {"identity": {"layout": "seq2seq", "seed": 3, "size": 400, "process_count": 1}}
    header = json.dumps({**saved, "epoch": 0, "files": {}}).encode() + b"\n"
    earlier = sources.seal(kind, zlib.compress(header))
    again = data_batches.train_batches(data, vocabulary, seed=3)
    again.restore(earlier)
    assert_equal_batches(take(again, 2), expected)
    [said] = [r.getMessage() for r in caplog.records if r.name.startswith("t5x_lite")]
    assert said == (
        "the saved data position is from an earlier version of t5x-lite, which ordered the data "
        "differently; the data start from the beginning, in the new order"
    )
    other = data_batches.train_batches(data, vocabulary, seed=4)
    with pytest.raises(InputError, match="other settings: seed 3"):
        other.restore(earlier)


def sorted_by_label(directory, data, count):
    """A task over a file with all examples of one label before those of the other."""
    lines = [
        f'{{"text": "{i}", "label": "{"neg" if i < count // 2 else "pos"}"}}' for i in range(count)
    ]
    directory.joinpath("train.jsonl").write_text("\n".join(lines))
    columns = Columns(inputs="{text}", targets="{label}", labels=("neg", "pos"))
    return dataclasses.replace(
        data,
        task="tasks.files:classify",
        directory=str(directory),
        columns=columns,
        pack=False,
        batch_size=20,
        shuffle_buffer=10,
    )


@pytest.mark.slow
def test_a_file_sorted_by_label_trains_on_both_labels(data, vocabulary, tmp_path):
    task = sorted_by_label(tmp_path, data, 2000)
    batches = data_batches.train_batches(task, vocabulary, seed=0)
    epochs = [take(batches, 100), take(batches, 100)]
    for epoch in epochs:
        # Each example once, and in each batch of twenty some of both: 2 * 0.5 ** 20 otherwise.
        assert sorted(line_numbers(epoch, vocabulary)) == list(range(2000))
        for batch in epoch:
            shares = np.array(line_numbers([batch], vocabulary)) < 1000
            assert 0 < shares.mean() < 1
    assert tokens(epochs[0]) != tokens(epochs[1])


@pytest.mark.gate("1")
@pytest.mark.parametrize("before", [0, 1, 2, 4, 5])  # 2.5 batches are a pass
@pytest.mark.slow
def test_data_in_memory_go_on_where_they_were(data, vocabulary, tmp_path, before):
    task = sorted_by_label(tmp_path, data, 50)
    batches = data_batches.train_batches(task, vocabulary, seed=1)
    take(batches, before)
    state = batches.state()
    expected = take(batches, 9)
    again = data_batches.train_batches(task, vocabulary, seed=1)
    again.restore(state)
    assert_equal_batches(take(again, 9), expected)
    other = data_batches.train_batches(sorted_by_label(tmp_path, data, 60), vocabulary, seed=1)
    with pytest.raises(InputError, match=r"other settings: size '50 examples \(\w+\)' \(now '60 e"):
        other.restore(state)


@pytest.mark.parametrize("in_memory", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_batches_and_positions_are_the_same_on_1_2_and_4_processes(
    stream, vocabulary, monkeypatch, in_memory
):
    if in_memory:
        monkeypatch.setattr(text_source, "IN_MEMORY_BYTES", 1 << 20)

    def of(count):
        return [
            data_batches.train_batches(
                stream, vocabulary, seed=0, process_index=index, process_count=count
            )
            for index in range(count)
        ]

    def whole(processes, steps):
        found = []
        for _ in range(steps):
            parts = [next(process) for process in processes]
            found.append({name: np.concatenate([p[name] for p in parts]) for name in parts[0]})
        return found

    [one] = of(1)
    expected = take(one, 300)
    epoch = line_numbers(expected[:240], vocabulary)
    assert len({*epoch}) > 0.95 * len(epoch)
    for count in (2, 4):
        processes = of(count)
        assert_equal_batches(whole(processes, 100), expected[:100])
        state = processes[-1].state()
        for process in (again := of(4 // count * 2)):
            process.restore(state)
        assert_equal_batches(whole(again, 200), expected[100:])
    with pytest.raises(InputError, match="batch_size 4 cannot be divided among 3 processes"):
        data_batches.train_batches(stream, vocabulary, seed=0, process_count=3)


def test_a_task_in_memory_gives_the_batches_of_its_cache(data, vocabulary, tmp_path):
    from t5x_lite.data.cache.making import write_cache

    write_cache(data, vocabulary, tmp_path / "cache")
    cached = dataclasses.replace(data, cache=str(tmp_path / "cache"))
    both = [data_batches.train_batches(one, vocabulary, seed=5) for one in (data, cached)]
    assert_equal_batches(*(take(batches, 40) for batches in both))
    assert both[0].epoch == both[1].epoch > 0.2
    assert_equal_batches(
        *(list(data_batches.eval_batches(one, vocabulary)) for one in (data, cached))
    )
    epochs = [data_batches.epoch_of(one, vocabulary, seed=5) for one in (data, cached)]
    assert epochs[0] == epochs[1]


@pytest.mark.slow
def test_eval_batches_are_one_pass_always_the_same_and_filled_up(data, vocabulary):
    one, two = (list(data_batches.eval_batches(data, vocabulary)) for _ in range(2))
    assert_equal_batches(one, two)
    assert all(value.shape[0] == 4 for batch in one for value in batch.values())
    count = sum((batch["decoder_loss_weights"].sum(1) > 0).sum() for batch in one)
    assert count < 4 * len(one)
    assert not one[-1]["decoder_loss_weights"][-1].any()
    limited = list(data_batches.eval_batches(data, vocabulary, max_batches=1))
    assert_equal_batches(limited, one[:1])


def test_eval_examples_have_text_tokens_and_raw_fields(reading, data, vocabulary):
    examples = reading.eval_examples(data, vocabulary, max_examples=2)
    assert len(examples) == 2
    first = examples[0]
    assert first.inputs[-1] == vocabulary.eos_id
    assert first.inputs_text == vocabulary.decode(first.inputs.tolist())
    assert "<extra_id_0>" in first.inputs_text
    assert first.targets_text.startswith("<extra_id_0>")
    assert first.target == first.targets_text
    assert set(first.raw) == {"inputs", "targets"}


def test_a_split_that_is_not_there_is_refused(reading, data, vocabulary):
    for function in (data_batches.eval_batches, reading.eval_examples):
        with pytest.raises(InputError, match="has no split 'tset'; its splits are train"):
            function(data, vocabulary, split="tset")


@pytest.mark.parametrize("content", ["", "\n\n  \n", "a"])
def test_data_without_an_example_are_refused_and_not_repeated(data, vocabulary, tmp_path, content):
    for split in ("train", "validation"):
        (tmp_path / f"{split}.txt").write_text(content)
    assert len(vocabulary.encode("a")) == 1  # too short to corrupt
    empty = dataclasses.replace(data, directory=str(tmp_path))
    with pytest.raises(InputError, match=f"no example for split 'train' in {tmp_path}"):
        data_batches.train_batches(empty, vocabulary, seed=0)
    with pytest.raises(InputError, match="no example for split 'validation'"):
        data_batches.eval_batches(empty, vocabulary)


@pytest.mark.slow
def test_a_bad_line_that_training_comes_to_is_named(data, vocabulary, tmp_path, monkeypatch):
    lines = [b"this is a line of text that is long enough to be of use"] * 2000 + [b"caf\xe9"]
    (tmp_path / "train.txt").write_bytes(b"\n".join(lines))
    (tmp_path / "validation.txt").write_bytes(b"caf\xe9")
    bad = dataclasses.replace(data, directory=str(tmp_path))
    with pytest.raises(InputError, match=r"train\.txt:2001: not UTF-8"):
        take(data_batches.train_batches(bad, vocabulary, seed=0), 10_000)
    monkeypatch.setattr(text_source, "IN_MEMORY_BYTES", 0)
    with pytest.raises(InputError, match=r"train\.txt:2001: not UTF-8"):
        take(data_batches.train_batches(bad, vocabulary, seed=0), 10_000)
    with pytest.raises(InputError, match=r"validation\.txt:1: not UTF-8"):
        list(data_batches.eval_batches(bad, vocabulary))


MY_TASKS = """
import seqio
from t5x_lite.data.tasks import stages


def stars(arguments):
    return stages

def starts_with(text):
    return text.startswith("a")


def targets_only(arguments):
    features = {"targets": stages.features(arguments.vocabulary)["targets"]}
    return seqio.Task(
        "targets_only",
        source=stages.source(["train", "validation"], lambda split: _texts(split)),
        preprocessors=[seqio.preprocessors.tokenize, seqio.preprocessors.append_eos_after_trim],
        output_features=features,
    )


def _texts(split):
    pairs = stages.text_pairs(["" for _ in "abc"], ["one", "two words", "three"])
    return pairs.map(lambda example: {"targets": example["targets"]})
"""


@pytest.fixture
def my_tasks(tmp_path, monkeypatch):
    (tmp_path / "my_tasks_of_pipeline.py").write_text(MY_TASKS)
    monkeypatch.syspath_prepend(tmp_path)
    yield "my_tasks_of_pipeline"
    sys.modules.pop("my_tasks_of_pipeline", None)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("stars", "must return a seqio.Task, but returned module; did you mean starts_with?"),
        (
            "starts_with",
            "failed (AttributeError: 'TaskArguments' object has no attribute 'startswith'); a task "
            "function takes TaskArguments and returns a seqio.Task; did you mean stars?",
        ),
    ],
)
def test_a_function_that_gives_no_task_is_refused(
    loading, data, vocabulary, my_tasks, name, message
):
    wrong = dataclasses.replace(data, task=f"{my_tasks}:{name}")
    with pytest.raises(InputError) as caught:
        loading.load_task(wrong, vocabulary)
    assert str(caught.value) == f"data.task '{my_tasks}:{name}' {message}"


def test_a_language_models_task_has_targets_only(reading, data, vocabulary, my_tasks):
    data = dataclasses.replace(
        data, task=f"{my_tasks}:targets_only", layout=layouts.LM(), pack=False
    )
    for batch in (
        next(data_batches.train_batches(data, vocabulary, seed=0)),
        next(data_batches.eval_batches(data, vocabulary)),
    ):
        assert {name: value.shape for name, value in batch.items()} == {
            "decoder_input_tokens": (4, 24),
            "decoder_target_tokens": (4, 24),
            "decoder_loss_weights": (4, 24),
        }
    assert batch["decoder_loss_weights"].sum(1).tolist()[3] == 0
    example = reading.eval_examples(data, vocabulary)[1]
    assert (example.inputs_text, example.targets_text) == ("", "two words")
    assert (example.inputs.dtype, example.inputs.shape) == (np.int32, (0,))
    assert example.raw["targets"].tolist() == [*vocabulary.encode("two words"), 1]


def test_a_bad_line_of_examples_is_named(reading, data, vocabulary, tmp_path):
    (tmp_path / "train.txt").write_text("good")
    (tmp_path / "validation.jsonl").write_text('{"text": "good"}\n{"text"\n')
    bad = dataclasses.replace(data, directory=str(tmp_path))
    with pytest.raises(InputError, match=r"validation\.jsonl:2: not JSON \(Expecting ':'"):
        reading.eval_examples(bad, vocabulary)


def test_what_is_read_of_caches_alone_is_refused(stream, vocabulary):
    scheduled = dataclasses.replace(stream, batches=Scheduled({24: 4}))
    with pytest.raises(InputError, match="Scheduled needs the lengths of all examples"):
        data_batches.train_batches(scheduled, vocabulary, seed=0)
    refreshed = dataclasses.replace(
        stream, layout=layouts.Groups(), refresh=Refresh(period=2, directory="d")
    )
    with pytest.raises(InputError, match=r"data\.refresh needs a cache"):
        data_batches.train_batches(refreshed, vocabulary, seed=0)


def test_a_mixing_needs_a_mixture(data, vocabulary):
    mixed = dataclasses.replace(data, mixing=Mixing(by="equal"))
    with pytest.raises(InputError, match="is a single task, not a mixture"):
        data_batches.train_batches(mixed, vocabulary, seed=0)
    misspelt = dataclasses.replace(data, task="tasks.mixtures:gleu")
    with pytest.raises(InputError, match="no task 'gleu'"):
        data_batches.train_batches(misspelt, vocabulary, seed=0)
