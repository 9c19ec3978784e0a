"""Sentences with tags: the pieces of words, what is cut, what damaged files say."""

import dataclasses
import json

import numpy as np
import pytest

from t5x_lite import layouts
from t5x_lite.core.errors import InputError
from t5x_lite.data.config import Data
from t5x_lite.data.preprocessors import Columns
from t5x_lite.data.tasks.labelled import WordTags, encode, iob2, words_of
from t5x_lite.data.vocabularies.encoder_tokens import encoder_tokens
from t5x_lite.data.vocabularies.loading import load_vocabulary
from t5x_lite.metrics.classification import entity_f1, tag_accuracy
from tests import tokenizer_files

TRAIN = """\
the O
dogs I-A
running I-A

dogs B-B
dogs I-B
. O
"""
VALIDATION = "the B-B\ndogs I-B\n\nrun O\n"
TAGS = ("B-A", "B-B", "I-A", "I-B", "O")


@pytest.fixture
def data(tmp_path):
    (tmp_path / "train.txt").write_text(TRAIN)
    (tmp_path / "valid.txt").write_text(VALIDATION)
    (tmp_path / "test.txt").write_text("dogs\nrun\n\nrun\n")
    return Data(
        task="tasks.tokens:conll",
        vocabulary="",
        directory=str(tmp_path),
        layout=layouts.Tokens(),
        batch_size=2,
        inputs_length=12,
        pack=False,
        shuffle=False,
    )


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("I-A I-A O I-A B-A", "B-A I-A O B-A B-A"),  # IOB1
        ("I-A I-B I-B", "B-A B-B I-B"),
        ("B-A I-A O B-B", "B-A I-A O B-B"),
        ("B-A E-A S-B I-B O NN", "B-A E-A S-B B-B O NN"),
        ("", ""),
    ],
)
def test_tags_become_iob2(tags, expected):
    found = iob2(tags.split())
    assert found == expected.split()
    assert iob2(found) == found


def encoded(vocabulary, *sentences, length=12):
    tokens = encoder_tokens(vocabulary)
    made = encode(
        [text.split() for text in sentences], vocabulary=vocabulary, tokens=tokens, length=length
    )
    pieces = vocabulary.pieces()
    return [(" ".join(pieces[i] for i in row), starts) for row, starts in made]


def test_the_first_pieces_of_words(vocabulary):
    first, second = encoded(vocabulary, "The dogs U.N. [SEP] \u200d running", "dogs dogs")
    assert first == ("[CLS] the dog ##s u . n . [UNK] [UNK] run", [1, 2, 4, 8, 9, 10])
    assert second == ("[CLS] dog ##s dog ##s", [1, 3])


def test_a_sentence_that_is_too_long_is_cut(vocabulary):
    assert encoded(vocabulary, "dogs dogs dogs dogs", length=8) == [
        ("[CLS] dog ##s dog ##s dog ##s", [1, 3, 5])
    ]
    assert encoded(vocabulary, "the the the dogs the", length=6) == [
        ("[CLS] the the the dog", [1, 2, 3, 4])
    ]


@pytest.mark.parametrize("write", [tokenizer_files.write_byte_level, tokenizer_files.write_unigram])
def test_each_word_has_a_space_before_it(write, tmp_path):
    vocabulary = load_vocabulary(write(tmp_path))
    ((row, starts),) = encoded(vocabulary, "dog run" if "byte" in write.__name__ else "dog the")
    pieces = row.split()
    firsts = [pieces[start] for start in starts]
    assert firsts == (["Ġ", "Ġrun"] if "byte" in write.__name__ else ["▁dog", "▁the"])


@pytest.mark.parametrize("pack", [False, True])
@pytest.mark.slow
def test_batches_on_the_fly_and_from_a_cache(data, vocabulary, tmp_path, pack):
    from t5x_lite.data import batches as data_batches
    from t5x_lite.data.cache.making import write_cache

    data = dataclasses.replace(data, pack=pack, inputs_length=16)
    write_cache(data, vocabulary, tmp_path / "cache")
    from_cache = dataclasses.replace(data, cache=str(tmp_path / "cache"))
    held_out = data_batches.eval_batches, data_batches.eval_batches
    live, read = (
        list(batches(each, vocabulary, split="validation"))
        for batches, each in zip(held_out, (data, from_cache), strict=True)
    )
    if not pack:
        one = data_batches.train_batches(data, vocabulary, seed=0)
        other = data_batches.train_batches(from_cache, vocabulary, seed=0)
        live += [next(one) for _ in range(3)]
        read += [next(other) for _ in range(3)]
        other.close()
    assert len(live) == len(read)
    for expected, found in zip(live, read, strict=True):
        assert found.keys() == expected.keys()
        for name, value in found.items():
            np.testing.assert_array_equal(value, expected[name], err_msg=name)
    # [CLS] the dog ##s [SEP] [CLS] run [SEP]
    labels = [0, 2, 4, 0, 0, 0, 5, 0] if pack else [0, 2, 4, 0, 0, 0, 0, 0]
    assert live[0]["token_labels"][0].tolist() == [*labels, *[0] * 8]
    if not pack:
        assert live[0]["token_labels"][1].tolist() == [0, 5, *[0] * 14]
        first = live[1]["token_labels"].tolist()
        assert first[0] == [0, 5, 1, 0, 3, *[0] * 11]  # [CLS] the dog ##s run ##ning [SEP]
        assert first[1] == [0, 2, 0, 4, 0, 5, *[0] * 10]


def test_a_cache_is_of_one_length(data, vocabulary, tmp_path):
    from t5x_lite.data import batches as data_batches
    from t5x_lite.data.cache.making import write_cache

    write_cache(data, vocabulary, tmp_path / "cache")
    longer = dataclasses.replace(data, cache=str(tmp_path / "cache"), inputs_length=20)
    with pytest.raises(
        InputError, match=r"was written for data\.inputs_length 12, but data\.inputs_length is 20"
    ):
        data_batches.train_batches(longer, vocabulary, seed=0)


def test_examples_and_their_words(data, vocabulary):
    from t5x_lite.data import loading, reading

    task = loading.load_task(data, vocabulary)
    assert loading.task_labels(task) == TAGS
    postprocess, metrics = loading.task_metrics(task)
    assert metrics == [entity_f1]
    first, second = reading.eval_examples(data, vocabulary)
    assert (first.inputs_text, first.targets_text, first.target) == ("the dogs", *["B-B I-B"] * 2)
    assert (words_of(first.raw), second.raw["starts"].tolist()) == (["the", "dogs"], [1])
    read = postprocess("O B-A I-A O O", example=first.raw, is_target=False)
    assert read == "B-A I-A"
    assert task.postprocessor.is_answer(read)
    assert not task.postprocessor.is_answer("B-A B-C")
    unknown, _ = reading.eval_examples(data, vocabulary, split="test")
    assert (unknown.targets_text, unknown.raw["token_labels"].tolist()) == ("<unk>", [0] * 5)


def test_words_behind_the_cut_are_answered_all_the_same(data, vocabulary, tmp_path):
    from t5x_lite.data import reading

    (tmp_path / "valid.txt").write_text("".join("dogs B-A\n" for _ in range(5)))
    (one,) = reading.eval_examples(dataclasses.replace(data, inputs_length=8), vocabulary)
    assert len(one.inputs) == len(one.raw["token_labels"]) == 8
    assert one.raw["token_labels"].tolist() == [0, 1, 0, 1, 0, 1, 0, 0]
    read = WordTags(TAGS)(" ".join(["B-A"] * 8), example=one.raw)
    assert read == "B-A B-A B-A O O"
    assert entity_f1([one.target], [read])["recall"] == 0.6


def test_tags_that_are_given(data, vocabulary, tmp_path):
    from t5x_lite.data import loading, reading

    lines = [{"tokens": ["the", "dogs"], "ner_tags": [0, 2]}, {"tokens": ["run"], "ner_tags": [1]}]
    for name in ("train", "validation"):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    own = dataclasses.replace(data, task="tasks.tokens:jsonl")
    with pytest.raises(
        InputError, match=r"train\.jsonl: the tags are numbers; name each tag by --dat"
    ):
        loading.load_task(own, vocabulary)
    named = dataclasses.replace(own, columns=Columns(labels=("0=O", "1=B-A", "2=I-A", "3=B-A")))
    assert loading.task_labels(loading.load_task(named, vocabulary)) == ("O", "B-A", "I-A")
    first, _ = reading.eval_examples(named, vocabulary)
    assert first.target == "O B-A"
    assert first.raw["token_labels"].tolist() == [0, 1, 2, 0, 0]


def test_parts_of_speech_are_measured_by_accuracy(data, vocabulary, tmp_path):
    from t5x_lite.data import loading

    (tmp_path / "train.txt").write_text("the DT\ndogs NNS\n")
    task = loading.load_task(data, vocabulary)
    assert loading.task_labels(task) == ("DT", "NNS")
    assert loading.task_metrics(task)[1] == [tag_accuracy]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("valid.txt", "the O\n\nrun I-C\n", r"valid\.txt:3: the tag 'I-C', which is read as B-C, "),
        (
            "valid.txt",
            "the O\nrun PER\n",
            r"valid\.txt:2: the tag 'PER' must be one of B-A, B-B, I-A",
        ),
        ("valid.txt", "the O\nrun\n", r"valid\.txt:2: the word 'run' has no tag"),
        ("train.txt", "the O\nrun\n", r"train\.txt:2: the word 'run' has no tag"),
        (
            "train.txt",
            "the O\n",
            r"train\.txt: must have at least two tags, but has O; list all tags by --data\.",
        ),
        (
            "train.txt",
            "\n",
            r"train\.txt: must have at least two tags, but has no tag; list all tags",
        ),
        ("eng.train", "the O\n", r"has both eng\.train and train\.txt"),
    ],
)
def test_what_is_wrong_with_a_file(data, vocabulary, tmp_path, name, content, message):
    from t5x_lite.data import reading

    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        reading.eval_examples(data, vocabulary)


def test_what_is_missing(data, vocabulary, tmp_path):
    from t5x_lite.data import loading

    (tmp_path / "train.txt").unlink()
    with pytest.raises(
        InputError, match=r"no training file to read the tags from, only .*valid\.txt"
    ):
        loading.load_task(data, vocabulary)
    given = dataclasses.replace(data, columns=Columns(labels=TAGS))
    assert tuple(loading.load_task(given, vocabulary).splits) == ("validation", "test")
    other = dataclasses.replace(data, task="tasks.tokens:jsonl")
    with pytest.raises(InputError, match=r"has none of the files train\.jsonl, validation\.jsonl,"):
        loading.load_task(other, vocabulary)


def test_another_layout_is_refused(data, vocabulary):
    from t5x_lite.data import batches as data_batches

    other = dataclasses.replace(data, layout=layouts.Labelled())
    with pytest.raises(InputError, match="the task has inputs and token_labels; use tokens or a"):
        next(data_batches.eval_batches(other, vocabulary))
