"""Texts and pairs with labels: rows, truncation, and GLUE's tasks in this form."""

import dataclasses

import numpy as np
import pytest

from t5x_lite import layouts
from t5x_lite.core.errors import InputError
from t5x_lite.data.config import Data
from t5x_lite.data.tasks.labelled import cut_longest, encode_texts, join, separators
from t5x_lite.data.vocabularies.encoder_tokens import encoder_tokens
from t5x_lite.data.vocabularies.loading import load_vocabulary
from tests import tokenizer_files


@pytest.fixture(scope="module")
def roberta(tmp_path_factory):
    return load_vocabulary(tokenizer_files.write_byte_level(tmp_path_factory.mktemp("roberta")))


def berts(first, second, room):
    """google-research/bert run_classifier.py, _truncate_seq_pair."""
    while first + second > room:
        first, second = (first - 1, second) if first > second else (first, second - 1)
    return first, second


def test_the_longer_text_of_a_pair_is_cut():
    assert cut_longest(3, 9, room=8) == (3, 5)
    assert cut_longest(9, 9, room=7) == (4, 3)
    sizes = range(9)
    for first, second, room in [(a, b, r) for a in sizes for b in sizes for r in (2, 5, 8)]:
        assert cut_longest(first, second, room=room) == berts(first, second, room)


def made(vocabulary, first, second, *, length=8, is_pair=True):
    rows, given = encode_texts(
        first,
        second,
        np.array([[1, 0]] * len(first)),
        vocabulary=vocabulary,
        tokens=encoder_tokens(vocabulary),
        length=length,
        is_pair=is_pair,
    )
    assert given.tolist() == [[1, 0]] * len(first)
    pieces = vocabulary.pieces()
    return [" ".join(pieces[i] for i in row) for row in rows]


def test_a_pair_has_a_separator(vocabulary):
    assert made(vocabulary, ["The dogs", "run"], ["run", ""]) == [
        "[CLS] the dog ##s [SEP] run",
        "[CLS] run [SEP]",
    ]
    assert made(vocabulary, ["the dog"], ["run run run run run"], length=7) == [
        "[CLS] the dog [SEP] run run"
    ]


def test_a_text_alone_has_none(vocabulary):
    assert made(vocabulary, ["the dog run run"], [""], length=5, is_pair=False) == [
        "[CLS] the dog run"
    ]


def test_special_tokens_in_a_text_divide_nothing(vocabulary):
    assert made(vocabulary, ["the [SEP] dog"], ["[CLS] run"], length=12) == [
        "[CLS] the [UNK] dog [SEP] [UNK] run"
    ]
    assert made(vocabulary, ["the [MASK]"], ["[PAD] run"], length=12) == [
        "[CLS] the [UNK] [SEP] [UNK] run"
    ]


def test_of_robertas_vocabulary_a_pair_has_two_separators(vocabulary, roberta):
    assert (separators(vocabulary), separators(roberta)) == (1, 2)
    tokens = encoder_tokens(roberta)
    assert join([[5, 6], [7, 8, 9]], tokens=tokens, length=8, separators=2) == [
        tokens.cls_id, 5, 6, tokens.sep_id, tokens.sep_id, 7, 8,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("length", "expected"),
    [(8, [1, 5, 6, 2, 7, 8, 9]), (7, [1, 5, 2, 7, 8, 9]), (6, [1, 2, 7, 8, 9]), (5, [1, 2, 7, 8])],
)
def test_a_second_text_is_cut_last_where_it_shall_be_whole(vocabulary, length, expected):
    tokens = dataclasses.replace(encoder_tokens(vocabulary), cls_id=1, sep_id=2)
    whole = join([[5, 6], [7, 8, 9]], tokens=tokens, length=length, whole=True)
    assert whole == expected


@pytest.fixture(scope="module")
def data(tmp_path_factory, english_lines):
    root = tmp_path_factory.mktemp("glue")
    (root / "RTE").mkdir()
    for split, lines in (("train", english_lines[:40]), ("dev", english_lines[40:45])):
        labels = ("not_entailment", "entailment")
        rows = [f"{i}\t{x[:30]}\t{x[30:50]}\t{labels[i % 2]}" for i, x in enumerate(lines)]
        text = "\n".join(["index\tsentence1\tsentence2\tlabel", *rows])
        (root / "RTE" / f"{split}.tsv").write_text(text + "\n")
    (root / "RTE" / "test.tsv").write_text("index\tsentence1\tsentence2\n0\ta dog\tdogs run\n")
    (root / "STS-B").mkdir()
    text = "index\tsentence1\tsentence2\tscore\n0\ta dog\tdogs run\t3.800\n"
    for split in ("train", "dev"):
        (root / "STS-B" / f"{split}.tsv").write_text(text)
    return Data(
        task="tasks.glue:rte",
        vocabulary="",
        directory=str(root),
        layout=layouts.Labelled(),
        batch_size=8,
        inputs_length=24,
        pack=False,
        shuffle=False,
    )


@pytest.mark.slow
def test_glue_on_the_fly_and_from_a_cache(data, vocabulary, tmp_path):
    from t5x_lite.data import batches as data_batches
    from t5x_lite.data.cache.making import write_cache

    write_cache(data, vocabulary, tmp_path / "cache")
    from_cache = dataclasses.replace(data, cache=str(tmp_path / "cache"))
    one = data_batches.train_batches(data, vocabulary, seed=0)
    other = data_batches.train_batches(from_cache, vocabulary, seed=0)
    for number in range(7):  # into the second epoch
        expected, found = next(one), next(other)
        assert {name: value.shape for name, value in found.items()} == {
            "encoder_input_tokens": (8, 24),
            "encoder_segment_ids": (8, 24),
            "encoder_token_types": (8, 24),
            "labels": (8, 2),
        }
        for name, value in found.items():
            np.testing.assert_array_equal(value, expected[name], err_msg=f"{number} {name}")
        assert found["labels"].tolist() == [[2, 0], [1, 0]] * 4  # entailment is class 0
    other.close()
    (last,) = data_batches.eval_batches(data, vocabulary)
    assert last["labels"][:, 0].tolist() == [2, 1, 2, 1, 2, 0, 0, 0]
    assert last["encoder_segment_ids"][5:].sum() == 0


def test_examples_have_what_the_metrics_read(data, vocabulary):
    from t5x_lite.data import loading, reading

    first, *_ = reading.eval_examples(data, vocabulary)
    task = loading.load_task(data, vocabulary)
    assert loading.task_labels(task) == ("entailment", "not_entailment")
    assert (first.targets_text, first.target, first.raw["idx"]) == ("not_entailment", 1, 0)
    ids = first.inputs.tolist()
    assert (ids[0], ids[-1], ids.count(vocabulary.sep_id)) == (vocabulary.cls_id, ids[-1], 2)
    (unknown,) = reading.eval_examples(data, vocabulary, split="test")
    assert (unknown.inputs_text, unknown.targets_text) == ("a dog dogs run", "<unk>")
    stsb = dataclasses.replace(data, task="tasks.glue:stsb")
    (scored,) = reading.eval_examples(stsb, vocabulary)
    assert (scored.targets_text, scored.target) == ("3.8", 3.8)
    np.testing.assert_array_equal(scored.raw["scores"], np.float32([3.8]))
    assert scored.raw["labels"].tolist() == [0, 0]


@pytest.mark.slow
def test_scores_are_the_same_on_the_fly_and_from_a_cache(data, vocabulary, tmp_path):
    from t5x_lite.data import batches as data_batches
    from t5x_lite.data.cache.making import write_cache

    data = dataclasses.replace(data, task="tasks.glue:stsb", batch_size=2)
    index = write_cache(data, vocabulary, tmp_path / "cache", splits=["train", "validation"])
    assert index.recipe.floats == ("scores",)
    from_cache = dataclasses.replace(data, cache=str(tmp_path / "cache"))
    other = data_batches.train_batches(from_cache, vocabulary, seed=0)
    for batch in (next(other), next(data_batches.train_batches(data, vocabulary, seed=0))):
        np.testing.assert_array_equal(batch["scores"], np.float32([3.8, 3.8]))
    other.close()
    held_out = [
        data_batches.eval_batches(from_cache, vocabulary),
        data_batches.eval_batches(data, vocabulary),
    ]
    for batch in map(next, held_out):
        np.testing.assert_array_equal(batch["scores"], np.float32([3.8, np.nan]))


@pytest.mark.slow
def test_caches_with_and_without_scores_are_not_mixed(data, vocabulary, tmp_path):
    from t5x_lite.data import batches as data_batches
    from t5x_lite.data.cache.making import write_cache

    splits = ["train", "validation"]
    for task in ("stsb", "rte"):
        own = dataclasses.replace(data, task=f"tasks.glue:{task}")
        write_cache(own, vocabulary, tmp_path / task, splits=splits)
    both = (f"{tmp_path / 'stsb'}=1", f"{tmp_path / 'rte'}=1")
    with pytest.raises(
        InputError, match="have different features; write a cache of an earlier version"
    ):
        data_batches.train_batches(
            dataclasses.replace(data, task="", cache=both), vocabulary, seed=0
        )


def test_a_task_that_is_text_alone_says_so(data, vocabulary):
    from t5x_lite.data import loading

    (wnli,) = [dataclasses.replace(data, task="tasks.glue:wnli")]
    with pytest.raises(InputError, match="task glue_wnli supports only text-to-text models, not"):
        loading.load_task(wnli, vocabulary)
    with pytest.raises(
        InputError,
        match=r"data\.layout labelled has one example per row, but data\.pack is True; set",
    ):
        dataclasses.replace(data, pack=True)
    short = dataclasses.replace(data, inputs_length=7)
    with pytest.raises(InputError, match=r"data\.inputs_length must be at least 8 .*: got 7"):
        loading.load_task(short, vocabulary)
