"""The first tokens of long texts are those of the whole texts."""

import random

import pytest

from t5x_lite.data.vocabularies import encoder_tokens
from t5x_lite.data.vocabularies.byte_level import Bytes
from t5x_lite.data.vocabularies.encoder_tokens import first_tokens
from t5x_lite.data.vocabularies.loading import SentencePiece, load_vocabulary, train_sentencepiece
from tests import tokenizer_files

PARTS = ["dog", "runs", " ", "  ", "\n", "\t", ".", "42", "é", "e\u0301", "犬", "한", "\u200b",
         "<extra_id_0>", "</s>", "\u00a0", "A", "I"]  # fmt: skip


@pytest.fixture(scope="module")
def vocabularies(tmp_path_factory, tiny_vocabulary):
    found = {"bytes": Bytes(), "bytes-hf": Bytes(layout="hf")}
    found["pieces"] = SentencePiece(tiny_vocabulary)
    found["pieces-hf"] = SentencePiece(tiny_vocabulary, layout="hf")
    for name, write in (
        ("wordpiece", tokenizer_files.write_wordpiece),
        ("byte-level", tokenizer_files.write_byte_level),
        ("unigram", tokenizer_files.write_unigram),
    ):
        found[name] = load_vocabulary(write(tmp_path_factory.mktemp(name)))
    return found


NAMES = ["bytes", "bytes-hf", "pieces", "pieces-hf", "wordpiece", "byte-level", "unigram"]


@pytest.mark.parametrize("name", NAMES)
def test_they_are_those_of_the_whole_text(vocabularies, name, monkeypatch):
    monkeypatch.setattr(encoder_tokens, "_SHORTEST", 8)
    monkeypatch.setattr(encoder_tokens, "_CHARACTERS", 1)
    vocabulary, rng = vocabularies[name], random.Random(0)
    texts = ["".join(rng.choices(PARTS, k=rng.randrange(60))) for _ in range(300)]
    texts += ["dog runs " * 50, "", "x" * 200, " " * 200, "\u200b \u200b" * 99 + "dog runs " * 9]
    for count in (1, 5, 30):
        found = first_tokens(vocabulary, texts, count=count)
        for ids, whole in zip(found, vocabulary.encode_batch(texts), strict=True):
            assert ids[:count] == whole[:count]
            assert (len(ids) > count) == (len(whole) > count)


@pytest.mark.parametrize("name", NAMES)
def test_the_rest_of_a_long_text_is_not_encoded(vocabularies, name, monkeypatch):
    vocabulary = vocabularies[name]
    encode, lengths = type(vocabulary).encode_batch, []

    def encode_batch(self, texts):
        lengths.extend(map(len, texts))
        return encode(self, texts)

    monkeypatch.setattr(type(vocabulary), "encode_batch", encode_batch)
    [ids] = first_tokens(vocabulary, ["the dog runs " * 10_000], count=64)
    assert len(ids) > 64
    assert lengths[0] < 5000
    assert len(lengths) == 1


def test_pieces_that_reach_over_a_space(tmp_path, english_lines):
    import sentencepiece

    train_sentencepiece(english_lines, size=300, output_dir=tmp_path)
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(["of the dog"] * 99 + english_lines[:50]),
        model_prefix=str(tmp_path / "phrases"),
        vocab_size=200,
        split_by_whitespace=False,
        minloglevel=2,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
    )
    vocabulary = SentencePiece(tmp_path / "phrases.model")
    assert not vocabulary.divides_words
    text = "of the dog " * 1000
    assert first_tokens(vocabulary, [text], count=3) == vocabulary.encode_batch([text])


def test_a_tokenizer_whose_pieces_reach_over_a_space(tmp_path):
    import tokenizers

    path = tokenizer_files.write_byte_level(tmp_path)
    assert load_vocabulary(path).divides_words
    made = tokenizers.Tokenizer.from_file(str(path))
    made.add_tokens(["dog runs"])
    made.save(str(path))
    assert not load_vocabulary(path).divides_words
