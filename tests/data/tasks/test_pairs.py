import numpy as np
import pytest

from t5x_lite.data.tasks import pairs as pair_task
from t5x_lite.errors import InputError
from t5x_lite.records.pairs import Pairs, to_json
from t5x_lite.vocabulary.encoder_tokens import encoder_tokens
from t5x_lite.vocabulary.loading import load_vocabulary
from tests import tokenizer_files


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return load_vocabulary(tokenizer_files.write_wordpiece(tmp_path_factory.mktemp("vocabulary")))


def made(vocabulary, *pairs, lengths=(6, 5), negatives=0):
    found = pair_task.examples(
        pairs,
        vocabulary=vocabulary,
        tokens=encoder_tokens(vocabulary),
        lengths=lengths,
        negatives=negatives,
    )
    pieces = vocabulary.pieces()
    return [[" ".join(pieces[i] for i in part) for part in example] for example in found]


def test_each_answer_makes_an_example(vocabulary):
    pairs = Pairs("The dog", ["the", "dogs run"], ["run"])
    assert made(vocabulary, pairs, Pairs("run", ["running"])) == [
        ["[CLS] the dog", "[CLS] the"],
        ["[CLS] the dog", "[CLS] dog ##s run"],
        ["[CLS] run", "[CLS] run ##ning"],
    ]


def test_others_go_with_an_answer_and_each_is_of_a_row_of_its_own(vocabulary):
    pairs = Pairs("the", ["the", "dog"], ["run", "a", "b"])
    assert made(vocabulary, pairs, negatives=2) == [
        ["[CLS] the", "[CLS] the [SEP] [CLS] run [SEP] [CLS] a"],
        ["[CLS] the", "[CLS] dog [SEP] [CLS] b [SEP] [CLS] run"],
    ]
    assert made(vocabulary, Pairs("the", ["the"], ["run"]), negatives=2) == [
        ["[CLS] the", "[CLS] the [SEP] [CLS] run"]
    ]
    assert made(vocabulary, Pairs("the", ["the"]), negatives=2) == [["[CLS] the", "[CLS] the"]]


def test_long_texts_are_cut_and_special_tokens_in_them_begin_no_passage(vocabulary):
    pairs = Pairs("the dogs run the dog", ["the [CLS] dog run"], ["", "dogs run the"])
    assert made(vocabulary, pairs, negatives=2) == [
        [
            "[CLS] the dog ##s run",
            "[CLS] the [UNK] dog [SEP] [CLS] [SEP] [CLS] dog ##s run",
        ]
    ]


def test_special_tokens_that_a_text_spells_out_are_unknown(vocabulary):
    pairs = Pairs("the [SEP] dog", ["[MASK] the [PAD]"], ["[CLS][SEP]"])
    assert made(vocabulary, pairs, negatives=1) == [
        ["[CLS] the [UNK] dog", "[CLS] [UNK] the [UNK] [SEP] [CLS] [UNK] [UNK]"]
    ]


def test_a_task_and_its_cache_give_the_same_rows(vocabulary, tmp_path, english_lines):
    from t5x_lite.data.cache import batches as cached
    from t5x_lite.data.cache.making import write_cache
    from t5x_lite.data.config import Data
    from t5x_lite.data.live import pipeline

    lines = [
        to_json(Pairs(line[:30], [line[:60], line[30:50]], english_lines[: n % 4]))
        for n, line in enumerate(english_lines[:60])
    ]
    (tmp_path / "train.jsonl").write_text("\n".join(lines[:50]))
    (tmp_path / "validation.jsonl").write_text("\n".join(lines[50:]))
    options = {
        "task": "tasks.pairs:jsonl",
        "vocabulary": "",
        "directory": str(tmp_path),
        "layout": "pairs",
        "batch_size": 8,
        "inputs_length": 12,
        "targets_length": 20,
        "negatives": 2,
        "pack": False,
        "shuffle": False,
    }
    data = Data(**options)
    index = write_cache(data, vocabulary, tmp_path / "cache")
    assert index.recipe.lengths == {"query": 12, "passages": 60}
    from_cache = Data(**options, cache=str(tmp_path / "cache"))
    one = pipeline.train_batches(data, vocabulary, seed=0)
    other = cached.train_batches(from_cache, vocabulary, seed=0)
    for _ in range(14):  # into the second epoch
        expected, found = next(one), next(other)
        assert {name: value.shape for name, value in found.items()} == {
            "query_tokens": (8, 12),
            "query_segment_ids": (8, 12),
            "passage_tokens": (8, 3, 20),
            "passage_segment_ids": (8, 3, 20),
        }
        for name, value in found.items():
            np.testing.assert_array_equal(value, expected[name])
    other.close()
    expected = list(pipeline.eval_batches(data, vocabulary))
    assert len(expected) == 3
    assert expected[-1]["passage_segment_ids"][4:].sum() == 0
    for got, wanted in zip(cached.eval_batches(from_cache, vocabulary), expected, strict=True):
        for name, value in got.items():
            np.testing.assert_array_equal(value, wanted[name])
    with pytest.raises(InputError, match="was made for 60 tokens of passages"):
        cached.train_batches(
            Data(**{**options, "negatives": 1}, cache=str(tmp_path / "cache")), vocabulary, seed=0
        )
