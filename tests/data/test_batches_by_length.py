"""Batches of several shapes: which example goes to which, on the fly and from a cache alike."""

import dataclasses
import itertools

import numpy as np
import pytest

from t5x_lite import layouts
from t5x_lite.core.errors import InputError
from t5x_lite.data import batches as data_batches
from t5x_lite.data.cache.making import write_cache
from t5x_lite.data.config import Bucketed, Data, Fixed
from t5x_lite.data.formats.pairs import Pairs, to_json
from t5x_lite.data.vocabularies.loading import load_vocabulary
from tests import tokenizer_files
from tests.batches import assert_equal_batches

# Letters, each a token; [CLS] and [SEP] are two more.
TRAIN = {"a": 3, "b": 9, "c": 6, "d": 4, "e": 12, "f": 3, "g": 3}
BATCHES = ["b", "ac", "e", "df", "ga", "b", "cd", "e", "fg", "b", "ac", "e", "df"]
"""Of 2 rows of 8 tokens or 1 row of 12; g waits at the end of the first epoch."""
VALIDATION = {"h": 3, "i": 12, "j": 4, "k": 5}


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return load_vocabulary(tokenizer_files.write_wordpiece(tmp_path_factory.mktemp("vocabulary")))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    directory = tmp_path_factory.mktemp("documents")
    for name, texts in (("prose", TRAIN), ("validation", VALIDATION)):
        lines = (" ".join([letter] * (tokens - 2)) for letter, tokens in texts.items())
        (directory / f"{name}.txt").write_text("\n\n".join(lines))
    return Data(
        task="tasks.encoder:documents",
        vocabulary="",
        directory=str(directory),
        layout=layouts.Encoder(),
        batches=Bucketed({8: 2, 12: 1}),
        batch_size=1,
        inputs_length=12,
        pack=False,
        shuffle=False,
        shuffle_buffer=4,
    )


@pytest.fixture(scope="module")
def cache(tmp_path_factory, data, vocabulary):
    directory = tmp_path_factory.mktemp("cache") / "documents"
    write_cache(data, vocabulary, directory)
    return str(directory)


@pytest.fixture(params=["on the fly", "cache"])
def source(request, data, cache):
    return data if request.param == "on the fly" else dataclasses.replace(data, cache=cache)


def letters(batch, vocabulary):
    """The letter of each row; "." of a row of padding."""
    pieces = vocabulary.pieces()
    rows = batch.get("encoder_input_tokens", batch.get("query_tokens"))
    return "".join(pieces[row[1]] if row.any() else "." for row in rows)


def train(data, vocabulary, **options):
    return data_batches.train_batches(data, vocabulary, seed=0, **options)


def test_a_bucket_that_is_full_is_the_next_batch(source, vocabulary):
    batches = train(source, vocabulary)
    found = list(itertools.islice(batches, len(BATCHES)))
    assert [letters(batch, vocabulary) for batch in found] == BATCHES
    for name, batch in zip(BATCHES, found, strict=True):
        shape = (2, 8) if len(name) == 2 else (1, 12)
        assert {value.shape for value in batch.values()} == {shape}
        assert {value.dtype for value in batch.values()} == {np.dtype(np.int32)}
    first = found[1]
    assert (first["encoder_input_tokens"] > 0).sum(1).tolist() == [3, 6]
    assert first["encoder_word_ids"].tolist() == [[0, 1, 0, *[0] * 5], [0, 1, 2, 3, 4, 0, 0, 0]]
    assert int(batches.epoch) == 2
    batches.close()


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.gate("cache-False", "cache-True", "on the fly-True")
@pytest.mark.slow
def test_a_run_that_goes_on_has_the_batches_that_it_would_have_had(source, vocabulary, shuffle):
    source = dataclasses.replace(source, shuffle=shuffle)
    batches = train(source, vocabulary)
    states, found = [batches.state()], []
    for _ in range(12):
        found.append(next(batches))
        states.append(batches.state())
    batches.close()
    for after in (0, 1, 4, 5, 7):  # in the files' order g waits behind the fourth
        again = train(source, vocabulary)
        next(again)
        again.restore(states[after])
        assert again.state() == states[after] or not source.cache
        assert_equal_batches(list(itertools.islice(again, 12 - after)), found[after:])
        again.close()


@pytest.mark.slow
def test_every_process_has_its_rows_of_the_same_batch(source, vocabulary):
    source = dataclasses.replace(
        source, batches=Bucketed({8: 4, 12: 2}), batch_size=2, shuffle=True
    )
    alone = train(source, vocabulary)
    parts = [train(source, vocabulary, process_index=i, process_count=2) for i in (0, 1)]
    for whole in itertools.islice(alone, 10):
        halves = [next(part) for part in parts]
        for name, value in whole.items():
            assert len(halves[0][name]) == len(value) // 2
            np.testing.assert_array_equal(np.concatenate([h[name] for h in halves]), value)
    for batches in (alone, *parts):
        batches.close()
    odd = dataclasses.replace(source, batches=Bucketed({8: 3, 12: 2}))
    with pytest.raises(InputError, match="of 3 rows of 8 tokens cannot be divided among 2 pro"):
        train(odd, vocabulary, process_index=0, process_count=2)


@pytest.mark.slow
def test_held_out_examples_are_all_there(source, vocabulary):
    def evaluate(data, **options):
        return list(data_batches.eval_batches(data, vocabulary, **options))

    found = evaluate(source)
    assert [letters(batch, vocabulary) for batch in found] == ["i", "hj", "k."]
    assert found[2]["encoder_segment_ids"].tolist() == [[1] * 5 + [0] * 3, [0] * 8]
    assert_equal_batches(evaluate(source, max_batches=1), found[:1])
    one_shape = evaluate(dataclasses.replace(source, batches=Fixed()))
    totals = [sum(batch["encoder_word_ids"].sum() for batch in got) for got in (found, one_shape)]
    assert totals[0] == totals[1]


def test_a_position_of_other_shapes_is_refused(source, vocabulary):
    fixed = dataclasses.replace(source, batches=Fixed())
    one, other = train(source, vocabulary), train(fixed, vocabulary)
    with pytest.raises(InputError, match=r"batches \[\[8, 2\], \[12, 1\]\] \(now None\)$"):
        other.restore(one.state())
    with pytest.raises(InputError, match=r"batches None \(now \[\[8, 2\], \[12, 1\]\]\)$"):
        one.restore(other.state())
    for batches in (one, other):
        batches.close()


def pair(letter, answer, *others):
    """A query of one letter, and passages of so many tokens."""
    answer, *others = (" ".join([letter] * (tokens - 2)) for tokens in (answer, *others))
    return to_json(Pairs(letter, [answer], others))


@pytest.mark.parametrize("from_cache", [False, True])
@pytest.mark.slow
def test_groups_go_by_the_longest_passage_that_is_drawn(tmp_path, vocabulary, from_cache):
    """The pool of a has a passage of 12 tokens, which is drawn in some epochs; c has no pool."""
    lines = [pair("a", 4, 12, 5, 5), pair("b", 9), pair("c", 8), pair("d", 3, 3, 3)]
    (tmp_path / "train.jsonl").write_text("\n".join(lines))
    data = Data(
        task="tasks.pairs:jsonl",
        vocabulary="",
        directory=str(tmp_path),
        layout=layouts.Groups(negatives=1),
        batches=Bucketed({8: 2, 12: 1}),
        batch_size=1,
        inputs_length=9,
        targets_length=12,
        pack=False,
        shuffle=False,
    )
    if from_cache:
        write_cache(data, vocabulary, tmp_path / "cache")
        data = dataclasses.replace(data, cache=str(tmp_path / "cache"))
    batches = train(data, vocabulary)
    seen = []
    for number, batch in enumerate(itertools.islice(batches, 40)):
        if number == 20:
            state = batches.state()
            batches.close()
            batches = train(data, vocabulary)
            batches.restore(state)
        longest = (batch["passage_segment_ids"] > 0).sum(2).max(1)
        length = 8 if len(longest) == 2 else 12
        assert batch["query_tokens"].shape == (len(longest), 9)
        assert batch["passage_tokens"].shape == (len(longest), 2, length)
        assert (longest <= 8).all() if length == 8 else longest[0] > 8
        seen += zip(letters(batch, vocabulary), longest.tolist(), strict=True)
    batches.close()
    assert {"a": 5, "b": 9, "c": 8, "d": 3}.items() <= dict(x for x in seen if x[1] != 12).items()
    assert 0 < seen.count(("a", 12)) < seen.count(("a", 5))
    counts = [sum(letter == name for name, _ in seen) for letter in "abcd"]
    assert max(counts) - min(counts) <= 1
