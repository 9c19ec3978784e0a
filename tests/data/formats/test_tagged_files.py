import gzip
import json

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.formats.benchmark_files import read_conll, read_tagged_jsonl

EU = """-DOCSTART- -X- O O

EU NNP I-NP I-ORG
rejects VBZ I-VP O

Peter\tNNP\t I-NP  I-PER
-DOCSTART- -X- O O


. . O O"""


@pytest.fixture
def file(tmp_path):
    def write(content, name="eng.train"):
        path = tmp_path / name
        path.write_bytes(content.encode())
        return path

    return write


def test_sentences_of_columns(file):
    path = file(EU)
    first, second, third = read_conll(path)
    assert (first.words, first.tags) == (("EU", "rejects"), ("I-ORG", "O"))
    assert (second.words, second.tags) == (("Peter",), ("I-PER",))
    assert (third.words, third.tags) == ((".",), ("O",))
    assert [one.where() for one in (first, second, third)] == [f"{path}:{n}" for n in (3, 6, 10)]
    assert first.where(1) == f"{path}:4"
    assert list(read_conll(file(""))) == list(read_conll(file("\n\n"))) == []
    (windows,) = read_conll(file("a O\r\nb O\r\n\r\n"))
    assert (windows.words, windows.tags) == (("a", "b"), ("O", "O"))
    (spaced,) = read_conll(file("a\u00a0b O\n"))  # no white space between columns
    assert spaced.words == ("a\u00a0b",)


def test_a_compressed_file(tmp_path):
    path = tmp_path / "train.txt.gz"
    path.write_bytes(gzip.compress(EU.encode()))
    assert [one.words[0] for one in read_conll(path)] == ["EU", "Peter", "."]


def test_a_word_without_a_tag(file):
    with pytest.raises(
        InputError, match=r"eng\.train:4: the word 'rejects' has no tag; a line must have a"
    ):
        list(read_conll(file("\n\nEU I-ORG\nrejects\nit O\n")))
    bare = file("EU\nrejects\n\nPeter I-PER\n")
    with pytest.raises(InputError, match=r"eng\.train:1: the word 'EU' has no tag"):
        list(read_conll(bare))
    assert [one.tags for one in read_conll(bare, may_lack_tags=True)] == [None, ("I-PER",)]
    with pytest.raises(
        InputError, match=r"eng\.train:2: the word 'b' has no tag"
    ):  # half of a sentence
        list(read_conll(file("a O\nb\n"), may_lack_tags=True))


def lines(*objects):
    return "".join(json.dumps(each) + "\n" for each in objects)


def test_sentences_of_json_lines(file):
    path = file(
        lines(
            {"tokens": ["EU", "New \t York", " "], "tags": ["B-ORG", "B-LOC", "O"]},
            {"id": 7, "tokens": ["EU"], "ner_tags": [3]},
            {"tokens": ["EU"]},
            {"tokens": ["EU"], "tags": None},
        ),
        "test.jsonl",
    )
    first, *others = read_tagged_jsonl(path, may_lack_tags=True)
    assert (first.words, first.tags) == (("EU", "New York", ""), ("B-ORG", "B-LOC", "O"))
    assert (first.where(2), others[0].where()) == (f"{path}:1", f"{path}:2")
    assert [one.tags for one in others] == [("3",), None, None]
    with pytest.raises(InputError, match=r'test\.jsonl:3: must have "tags", a list of as many'):
        list(read_tagged_jsonl(path))


@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        ({"tokens": ["a", "b"], "tags": ["O"]}, "the sentence has 2 tokens, but 1 tags"),
        ({"tokens": "a b", "tags": ["O", "O"]}, 'must have "tokens", a list of at least one word'),
        ({"tokens": [], "tags": []}, 'must have "tokens", a list of at least one word'),
        ({"tokens": [1], "tags": ["O"]}, 'must have "tokens", a list of at least one word'),
        ({"words": ["a"], "tags": ["O"]}, 'must have "tokens", a list of at least one word'),
        ({"tokens": ["a"], "tags": "O"}, 'the tags must be a list, got "O"'),
        ({"tokens": ["a"], "tags": ["B PER"]}, 'a tag must be a word or a number, got "B PER"'),
        ({"tokens": ["a"], "tags": [True]}, "a tag must be a word or a number, got true"),
        ({"tokens": ["a"], "tags": [""]}, 'a tag must be a word or a number, got ""'),
    ],
)
def test_damaged_json_lines(file, damaged, message):
    path = file(lines({"tokens": ["a"], "tags": ["O"]}, damaged), "train.jsonl")
    with pytest.raises(InputError, match=rf"train\.jsonl:2: {message}"):
        list(read_tagged_jsonl(path))


def test_a_tag_of_two_words_in_a_column(file):
    path = file("a O\nb B-\u00a0P\n")
    with pytest.raises(
        InputError, match=r"eng\.train:2: a tag must be one word without spaces, got 'B-\\xa0P'"
    ):
        list(read_conll(path))
    (bare,) = read_conll(file("a\nb\u00a0c\n"), may_lack_tags=True)
    assert bare.words == ("a", "b\u00a0c")
