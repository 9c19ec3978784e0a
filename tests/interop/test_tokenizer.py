"""Tokenizers of Hugging Face directories: which vocabulary they become, and back."""

import json
import logging
import shutil

import pytest

from t5x_lite.errors import InputError
from t5x_lite.interop.tokenizer import read_tokenizer, write_tokenizer
from t5x_lite.vocabulary.byte_level import Bytes
from t5x_lite.vocabulary.loading import SentencePiece, load_vocabulary

TEXTS = ["", "Hello, world! 123", "ﬁne  e\u0301té <extra_id_0> x <extra_id_7>"]


@pytest.fixture
def directory(tmp_path, tiny_vocabulary):
    (tmp_path / "hf").mkdir()
    shutil.copy(tiny_vocabulary, tmp_path / "hf" / "spiece.model")
    return tmp_path / "hf"


def write(directory, name, content):
    (directory / name).write_text(json.dumps(content))


def read(directory, config=None, *, vocab_size=400, sentinels="hf"):
    return read_tokenizer(
        directory, config or {}, vocab_size=vocab_size, sentinels=sentinels, scratch=directory
    )


@pytest.mark.parametrize(
    ("settings", "extra_ids"),
    [
        (None, 100),
        ({}, 100),
        ({"extra_ids": 7}, 7),
        ({"extra_ids": 0}, 0),
        ({"additional_special_tokens": ["<extra_id_0>", "<extra_id_1>", "<sep>"]}, 2),
        ({"extra_special_tokens": [{"content": "<extra_id_0>"}], "extra_ids": 0}, 1),
    ],
)
def test_sentencepiece_and_its_sentinels(directory, tiny_vocabulary, settings, extra_ids):
    if settings is not None:
        write(directory, "tokenizer_config.json", settings)
    found = read(directory)
    assert isinstance(found, SentencePiece)
    assert found.extra_ids == extra_ids
    assert found.model_bytes == tiny_vocabulary.read_bytes()


def test_a_model_that_holds_its_sentinels(directory, tiny_vocabulary):
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto.FromString(tiny_vocabulary.read_bytes())
    for i in (1, 0):
        model.pieces.add(piece=f"▁<extra_id_{i}>", score=0.0, type=4)
    (directory / "spiece.model").write_bytes(model.SerializeToString())
    found = read(directory)
    assert (found.extra_ids, found.num_sentinels, found.size) == (0, 2, 302)
    assert found.sentinel(0) == 301


@pytest.mark.parametrize(
    ("settings", "config"),
    [({"tokenizer_class": "ByT5Tokenizer"}, {}), ({}, {"tokenizer_class": "ByT5Tokenizer"})],
)
def test_bytes(tmp_path, settings, config):
    write(tmp_path, "tokenizer_config.json", settings)
    found = read(tmp_path, config)
    assert isinstance(found, Bytes)
    assert (found.layout, found.extra_ids, found.size) == ("hf", 125, 384)
    assert read(tmp_path, config, sentinels="seqio").size == 259


def test_more_ids_than_the_model_has(directory):
    with pytest.raises(InputError, match=r"has 400 tokens \(100 of them.*embedding 399$"):
        read(directory, vocab_size=399)


@pytest.mark.parametrize("extra_ids", [1 << 31, 401, -1])
def test_extra_ids_are_compared_with_the_model_before_they_are_made(directory, extra_ids):
    write(directory, "tokenizer_config.json", {"extra_ids": extra_ids})
    with pytest.raises(InputError, match=rf"extra_ids is {extra_ids}, and .* has 400 rows$"):
        read(directory)
    with pytest.raises(InputError, match=rf"extra_ids is {extra_ids}, and .* has 400 rows$"):
        read(directory, {"tokenizer_class": "ByT5Tokenizer"})


def test_no_tokenizer(tmp_path):
    with pytest.raises(InputError, match=r"no tokenizer: copy spiece\.model"):
        read(tmp_path)


def tokenizer_json(vocabulary):
    """What transformers 5 writes of a T5 tokenizer."""
    import base64

    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto.FromString(vocabulary.model_bytes)
    pieces = [[piece.piece, piece.score] for piece in model.pieces]
    pieces += [[f"<extra_id_{i}>", 0.0] for i in reversed(range(vocabulary.extra_ids))]
    charsmap = base64.b64encode(model.normalizer_spec.precompiled_charsmap).decode()
    return {
        "model": {"type": "Unigram", "unk_id": 2, "vocab": pieces, "byte_fallback": False},
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": charsmap},
    }


def test_a_tokenizer_json_alone(tmp_path, tiny_vocabulary, english_lines):
    vocabulary = load_vocabulary(tiny_vocabulary)
    write(tmp_path, "tokenizer.json", tokenizer_json(vocabulary))
    found = read(tmp_path)
    texts = TEXTS + english_lines[:50]
    assert found.size == vocabulary.size
    assert found.encode_batch(texts) == vocabulary.encode_batch(texts)
    assert found.decode([5, 6, 399]) == vocabulary.decode([5, 6, 399])


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"model": {"type": "BPE", "vocab": {}}},
        {"model": {"type": "Unigram", "vocab": [["a"]]}},
        {"model": {"type": "Unigram", "vocab": []}, "normalizer": {"type": "Lowercase"}},
        {"model": {"type": "Unigram", "vocab": []}, "normalizer": [{"type": "Precompiled"}]},
        {"model": [], "normalizer": None},
    ],
)
def test_a_tokenizer_json_of_another_kind(tmp_path, content):
    write(tmp_path, "tokenizer.json", content)
    with pytest.raises(InputError, match=r"tokenizer\.json: not a SentencePiece tokenizer"):
        read(tmp_path)


TABLE = {"type": "Precompiled", "precompiled_charsmap": ""}
SPACES = [
    {"type": "Strip", "strip_left": False, "strip_right": True},
    {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
    {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"},
]


@pytest.mark.parametrize(
    "steps",
    [[TABLE], [TABLE, SPACES[0], SPACES[1]], [TABLE, SPACES[2]], [{"type": "NFC"}, TABLE]],
)
def test_steps_that_sentencepiece_takes_by_itself(tmp_path, tiny_vocabulary, steps):
    content = tokenizer_json(load_vocabulary(tiny_vocabulary))
    table = content["normalizer"]["precompiled_charsmap"]
    steps = [step | ({"precompiled_charsmap": table} if step is TABLE else {}) for step in steps]
    content["normalizer"] = {"type": "Sequence", "normalizers": steps}
    write(tmp_path, "tokenizer.json", content)
    assert read(tmp_path).encode("a  b") == load_vocabulary(tiny_vocabulary).encode("a b")


@pytest.mark.parametrize(
    "step",
    [
        {"type": "Lowercase"},
        {"type": "NFD"},
        {"type": "Replace", "pattern": {"String": "a"}, "content": "b"},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": ""},
    ],
)
def test_steps_that_sentencepiece_lacks_are_refused(tmp_path, tiny_vocabulary, step):
    content = tokenizer_json(load_vocabulary(tiny_vocabulary))
    content["normalizer"] = {"type": "Sequence", "normalizers": [content["normalizer"], step]}
    write(tmp_path, "tokenizer.json", content)
    with pytest.raises(InputError, match=f"has a step that SentencePiece lacks, {step['type']}"):
        read(tmp_path)


def test_special_tokens_of_other_kinds_are_no_sentinels(directory, caplog):
    listed = ["<extra_id_0>", {"foo": 1}, {"content": 1}, 3, None]
    entries = {"0": {"content": 1}, "1": {"content": "<hl>"}, "2": 3}
    settings = {"additional_special_tokens": listed, "added_tokens_decoder": entries}
    write(directory, "tokenizer_config.json", settings)
    assert read(directory).extra_ids == 1
    assert "the tokens <hl> were added" in caplog.text


def test_added_tokens_are_named(directory, caplog):
    write(directory, "added_tokens.json", {"<sep>": 400, "<extra_id_0>": 399})
    entries = {"0": {"content": "<pad>"}, "401": {"content": "<hl>"}}
    write(directory, "tokenizer_config.json", {"added_tokens_decoder": entries})
    with caplog.at_level(logging.WARNING):
        read(directory)
    assert "the tokens <hl>, <sep> were added to the tokenizer" in caplog.text


@pytest.mark.parametrize(
    "make",
    [
        lambda path: load_vocabulary(path),
        lambda path: load_vocabulary(path, extra_ids=0),
        lambda path: Bytes(layout="hf", extra_ids=125),
        lambda path: Bytes(layout="hf", extra_ids=0),
    ],
)
def test_what_is_written_is_read(tmp_path, tiny_vocabulary, make):
    vocabulary = make(tiny_vocabulary)
    write_tokenizer(vocabulary, tmp_path)
    assert read(tmp_path).digest == vocabulary.digest
