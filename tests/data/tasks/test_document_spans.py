"""Spans of documents: how they are cut, what is dropped, and what is read."""

import dataclasses
import json

import numpy as np
import pytest

from t5x_lite import layouts
from t5x_lite.core.errors import InputError
from t5x_lite.data.config import TaskArguments
from t5x_lite.data.tasks.encoder import checked, cut_spans, listed_spans
from t5x_lite.data.vocabularies.encoder_tokens import encoder_tokens
from t5x_lite.data.vocabularies.loading import load_vocabulary
from t5x_lite.layouts.base import KEY
from tasks import encoder


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A vocabulary of whole words and a full stop."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *(f"w{i}" for i in range(100))]
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join(pieces) + "\n")
    return load_vocabulary(str(path))


def sentence(first, size):
    """A sentence of so many tokens, the full stop among them."""
    return "W" + " w".join(str(i) for i in range(first, first + size - 1)) + "."


def ids(vocabulary, spans):
    return [[vocabulary.encode(span) for span in document] for document in spans]


def test_spans_are_whole_sentences_that_fill_a_row(words):
    # Rows of 34 tokens have room for 32: two sentences of 16, and none of the third is left over.
    text = " ".join([sentence(0, 16), sentence(20, 16), sentence(40, 16), sentence(60, 17)])
    found = cut_spans([text], vocabulary=words, tokens=encoder_tokens(words), length=34)
    first, second = [sentence(0, 16), sentence(20, 16)], [sentence(40, 16)]
    expected = [" ".join(first), *second, sentence(60, 17)]
    assert [list(map(list, spans)) for spans in found] == ids(words, [expected])


def test_a_span_that_is_too_short_is_dropped(words):
    text = " ".join([sentence(0, 30), sentence(40, 15)])
    found = cut_spans([text, ""], vocabulary=words, tokens=encoder_tokens(words), length=34)
    assert [list(map(list, spans)) for spans in found] == ids(words, [[sentence(0, 30)], []])


def test_listed_spans_may_be_of_any_length(words):
    listed = json.dumps(["w1", "", " ".join(f"w{i}" for i in range(90))])
    (spans,) = listed_spans([listed], vocabulary=words, tokens=encoder_tokens(words))
    assert [len(span) for span in spans] == [1, 90]
    # Special tokens that a text spells out divide no spans.
    (spans,) = listed_spans(['["[SEP] w1"]'], vocabulary=words, tokens=encoder_tokens(words))
    assert [list(span) for span in spans] == [[1, 7]]


@pytest.mark.parametrize("record", [{"text": "a"}, {"spans": "a"}, {"spans": [1]}])
def test_what_is_no_list_of_strings_is_refused(record):
    with pytest.raises(InputError, match=r'a\.jsonl:3: must have "spans", a list of strings'):
        checked(record, "a.jsonl:3")


def arguments(directory, vocabulary, layout):
    return TaskArguments(
        vocabulary=vocabulary,
        directory=str(directory),
        layout=layout,
        inputs_length=34,
        targets_length=8,
        seed=5,
    )


def examples(task, epochs=1):
    dataset = task.get_dataset(
        sequence_length={"spans": None}, split="train", shuffle=False, num_epochs=epochs
    )
    return list(dataset.as_numpy_iterator())


def test_documents_of_files_become_examples(tmp_path, words):
    long = " ".join(sentence(i, 20) for i in (0, 20, 40))
    text = f"{long}\n\n{sentence(0, 20)}\n\n{long}\n{sentence(60, 25)}\n"
    (tmp_path / "train").mkdir()
    (tmp_path / "validation").mkdir()
    (tmp_path / "train" / "a.txt").write_text(text)
    (tmp_path / "validation" / "a.txt").write_text(text)
    found = examples(encoder.spans(arguments(tmp_path, words, layouts.Spans())), epochs=2)
    # The second document has one span; the others have 3 and 4.
    assert [np.sum(one["spans"] == 2) for one in found] == [3, 4, 3, 4]
    assert [one[KEY].tolist() for one in found] == [[5, 0, 0], [5, 0, 1], [5, 1, 0], [5, 1, 1]]
    with pytest.raises(InputError, match=r"data\.layout encoder needs the features inputs"):
        encoder.spans(arguments(tmp_path, words, layouts.Encoder()))


def test_lists_of_spans_are_read_and_wrong_lines_named(tmp_path, words):
    lines = [{"spans": ["w1", "w2", "w3 w4"]}, {"spans": ["w1"]}]
    for name in ("train", "validation"):
        (tmp_path / name).mkdir()
        path = tmp_path / name / "a.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    task = encoder.jsonl_spans(arguments(tmp_path, words, layouts.Spans()))
    (one,) = examples(task)
    assert one["spans"].tolist() == [2, 7, 3, 2, 8, 3, 2, 9, 10, 3]
    (tmp_path / "train" / "a.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(Exception, match=r'a\.jsonl:1: must have "spans"'):
        examples(encoder.jsonl_spans(arguments(tmp_path, words, layouts.Spans())))


@pytest.mark.slow
def test_a_task_and_its_cache_give_the_same_rows(tmp_path, words):
    from t5x_lite.data import batches as data_batches
    from t5x_lite.data.cache.making import write_cache
    from t5x_lite.data.config import Data

    documents = [" ".join(sentence(i + j, 20) for j in (0, 20, 40)) for i in range(6)]
    for name in ("a", "validation"):
        (tmp_path / f"{name}.txt").write_text("\n\n".join(documents))
    data = Data(
        task="tasks.encoder:spans",
        vocabulary="",
        directory=str(tmp_path),
        layout=layouts.Spans(),
        batch_size=4,
        inputs_length=34,
        pack=False,
        shuffle=False,
    )
    write_cache(data, words, tmp_path / "cache")
    from_cache = dataclasses.replace(data, cache=str(tmp_path / "cache"))
    one = data_batches.train_batches(data, words, seed=0)
    other = data_batches.train_batches(from_cache, words, seed=0)
    seen = []
    for number in range(9):  # six epochs of six documents
        if number == 4:  # both go on as they would have
            states = one.state(), other.state()
            one.close()
            other.close()
            one = data_batches.train_batches(data, words, seed=0)
            other = data_batches.train_batches(from_cache, words, seed=0)
            one.restore(states[0])
            other.restore(states[1])
        first, second = next(one), next(other)
        assert first.keys() == second.keys()
        for feature in first:
            np.testing.assert_array_equal(first[feature], second[feature], err_msg=feature)
        assert first["encoder_input_tokens"].shape == (4, 2, 34)
        assert (first["encoder_input_tokens"][:, 0] != first["encoder_input_tokens"][:, 1]).any()
        seen += first["encoder_input_tokens"][:, 0, 1].tolist()
    one.close()
    other.close()
    assert len({*seen}) > 6  # of a document other spans in other epochs
