"""SentencePiece vocabularies: ids, training, and every way in which the input can be wrong."""

import importlib
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.vocabularies.byte_level import Bytes
from t5x_lite.data.vocabularies.loading import (
    ASCII,
    SentencePiece,
    load_vocabulary,
    split_line,
    train_sentencepiece,
)
from tests.fake_store import store  # noqa: F401 (a fixture)
from tests.tokenizer_files import write_byte_level, write_spm, write_wordpiece

PROSE = [
    "It was the best of times, it was the worst of times.",
    "It was the age of wisdom, it was the age of foolishness.",
    "We had everything before us, we had nothing before us.",
]
SIZE = 34


@pytest.fixture(scope="module")
def model_path(tmp_path_factory) -> Path:
    return train_sentencepiece(PROSE, size=SIZE, output_dir=tmp_path_factory.mktemp("vocabulary"))


@pytest.fixture(scope="module")
def vocabulary(model_path) -> SentencePiece:
    return load_vocabulary(model_path)


def test_special_ids_and_size(vocabulary):
    assert (vocabulary.pad_id, vocabulary.eos_id, vocabulary.unk_id) == (0, 1, 2)
    assert vocabulary.size == 134
    assert vocabulary.sentinel(0) == 133
    assert vocabulary.sentinel(99) == 34


@pytest.mark.parametrize("index", [-1, 100])
def test_sentinel_outside_the_range_is_refused(vocabulary, index):
    with pytest.raises(ValueError, match=r"less than extra_ids \(100\), but is"):
        vocabulary.sentinel(index)


def test_sentinels_in_text(vocabulary):
    ids = vocabulary.encode("it was <extra_id_0> of <extra_id_1>")
    assert [i for i in ids if i >= SIZE] == [133, 132]
    assert vocabulary.decode(ids) == "it was <extra_id_0> of <extra_id_1>"


def test_decode_stops_at_eos_drops_padding_and_maps_large_ids_to_unknown(vocabulary):
    ids = vocabulary.encode("the best of times")
    assert vocabulary.decode([*ids, 0, 0]) == "the best of times"
    assert vocabulary.decode([*ids, 1, *ids]) == "the best of times"
    assert vocabulary.decode([134]) == vocabulary.decode([2]) == " ⁇ "
    assert vocabulary.decode([]) == ""


def test_encode_batch_equals_encode(vocabulary):
    texts = ["", "it was", "wisdom <extra_id_3>"]
    assert vocabulary.encode_batch(texts) == [vocabulary.encode(text) for text in texts]
    assert vocabulary.encode("") == []


def test_no_extra_ids(model_path):
    vocabulary = load_vocabulary(model_path, extra_ids=0)
    assert vocabulary.size == SIZE
    with pytest.raises(InputError, match="extra_ids must be at least 0, but is -1"):
        load_vocabulary(model_path, extra_ids=-1)
    with pytest.raises(InputError, match="extra_ids must not exceed 65536, but is 2147483648"):
        load_vocabulary(model_path, extra_ids=1 << 31)


def test_digest_depends_on_model_and_extra_ids_alone(model_path, vocabulary, tmp_path):
    copy = load_vocabulary(vocabulary.save(tmp_path))
    assert copy.digest == vocabulary.digest
    assert load_vocabulary(model_path, extra_ids=10).digest != vocabulary.digest


def test_pickles(vocabulary):
    copy = pickle.loads(pickle.dumps(vocabulary))
    assert copy.encode("it was <extra_id_0>") == vocabulary.encode("it was <extra_id_0>")


def test_save_writes_the_original_bytes_and_leaves_nothing_else(vocabulary, model_path, tmp_path):
    directory = tmp_path / "a" / "b"
    assert vocabulary.save(directory) == directory / "sentencepiece.model"
    assert (directory / "sentencepiece.model").read_bytes() == model_path.read_bytes()
    assert os.listdir(directory) == ["sentencepiece.model"]
    assert load_vocabulary(directory).size == vocabulary.size


def test_failed_save_leaves_nothing(vocabulary, tmp_path, monkeypatch):
    def fail(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(InputError, match="No space left on device"):
        vocabulary.save(tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("content", [b"", b"not a model", b"\0" * 50])
def test_not_a_model(tmp_path, content):
    path = tmp_path / "some.model"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"some\.model is not a SentencePiece model") as error:
        load_vocabulary(path)
    assert "\n" not in str(error.value)


def test_missing_model(tmp_path):
    with pytest.raises(InputError, match=r"gone\.model: No such file"):
        load_vocabulary(tmp_path / "gone.model")
    with pytest.raises(InputError, match=r"sentencepiece\.model: No such file"):
        load_vocabulary(tmp_path)


def test_other_special_ids_are_refused(tmp_path):
    import sentencepiece

    path = tmp_path / "other.model"
    with open(path, "wb") as writer:
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=iter(PROSE), model_writer=writer, vocab_size=SIZE, minloglevel=2
        )
    with pytest.raises(InputError, match=r"must be \(0, 1, 2\), but are \(-1, 2, 0\)"):
        load_vocabulary(path)


def test_model_that_already_holds_sentinels(tmp_path, vocabulary):
    model_pb2: Any = importlib.import_module("sentencepiece.sentencepiece_model_pb2")
    model = model_pb2.ModelProto.FromString(vocabulary.model_bytes)
    model.pieces.add(piece="▁<extra_id_7>", score=0.0, type=4)
    path = tmp_path / "with_sentinels.model"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(InputError, match=r"already contains ▁<extra_id_7>; set data.extra_ids"):
        load_vocabulary(path)


def test_sentinels_of_the_model_itself(tmp_path, vocabulary):
    model_pb2: Any = importlib.import_module("sentencepiece.sentencepiece_model_pb2")
    model = model_pb2.ModelProto.FromString(vocabulary.model_bytes)
    for i in (2, 1, 0):
        model.pieces.add(piece=f"▁<extra_id_{i}>", score=0.0, type=4)
    path = tmp_path / "with_sentinels.model"
    path.write_bytes(model.SerializeToString())
    own = load_vocabulary(path, extra_ids=0)
    assert (own.size, own.num_sentinels, own.sentinel_start) == (SIZE + 3, 3, SIZE + 2)
    assert [own.sentinel(i) for i in range(3)] == [SIZE + 2, SIZE + 1, SIZE]
    with pytest.raises(ValueError, match=r"less than extra_ids \(3\)"):
        own.sentinel(3)
    assert vocabulary.num_sentinels == 100
    assert vocabulary.sentinel_start == vocabulary.sentinel(0)


def test_files_are_what_it_is_loaded_from(vocabulary, tmp_path):
    for name, content in vocabulary.files().items():
        (tmp_path / name).write_bytes(content)
    assert load_vocabulary(tmp_path).digest == vocabulary.digest


def test_training_is_deterministic_and_quiet(model_path, tmp_path, capfd):
    again = train_sentencepiece(iter(PROSE), size=SIZE, output_dir=tmp_path)
    assert again == tmp_path / "sentencepiece.model"
    assert again.read_bytes() == model_path.read_bytes()
    assert capfd.readouterr() == ("", "")


def test_training_follows_t5(vocabulary):
    model_pb2: Any = importlib.import_module("sentencepiece.sentencepiece_model_pb2")
    model = model_pb2.ModelProto.FromString(vocabulary.model_bytes)
    assert [piece.piece for piece in model.pieces[:3]] == ["<pad>", "</s>", "<unk>"]
    assert len(model.pieces) == SIZE
    assert model.normalizer_spec.name == "nmt_nfkc"
    assert model.trainer_spec.model_type == model_pb2.TrainerSpec.UNIGRAM
    assert not model.trainer_spec.byte_fallback


@pytest.mark.parametrize(
    ("lines", "size", "message"),
    [
        ([], 60, "empty text"),
        (["", "  \n"], 60, "empty text"),
        (["\u200b", "\u2585"], 60, "empty text"),
        (["hello world this is text"], 30, "too little text for 30 pieces; .* at most 16"),
        (["hello world this is text"], 12, "12 pieces are fewer than .* at least 15"),
        (PROSE, 3, "at least 4 pieces, but --size is 3"),
    ],
)
def test_text_and_size_that_do_not_fit(tmp_path, lines, size, message):
    with pytest.raises(InputError, match=message) as error:
        train_sentencepiece(lines, size=size, output_dir=tmp_path / "output")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "output").exists()


def test_required_characters_have_a_piece(tmp_path):
    path = train_sentencepiece(PROSE, size=104, output_dir=tmp_path, required=ASCII)
    vocabulary = load_vocabulary(path)
    text = "3.8 ~Z`@[9]"
    assert vocabulary.unk_id not in vocabulary.encode(text)
    assert vocabulary.decode(vocabulary.encode(text)) == text
    assert all(vocabulary.unk_id not in vocabulary.encode(character) for character in ASCII)
    with pytest.raises(InputError, match=r"ASCII \(--no-ascii excludes"):
        train_sentencepiece(PROSE, size=90, output_dir=tmp_path, required=ASCII)


@pytest.mark.parametrize("position", [0, 2])
def test_reading_error_passes_through_the_trainer(tmp_path, position):
    def lines():
        yield from PROSE[:position]
        raise InputError("prose.txt:3: not UTF-8")

    with pytest.raises(InputError, match=r"^prose\.txt:3: not UTF-8$"):
        train_sentencepiece(lines(), size=SIZE, output_dir=tmp_path / "output")
    assert not (tmp_path / "output").exists()


def test_output_that_is_a_file(tmp_path):
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(InputError, match="Not a directory"):
        train_sentencepiece(PROSE, size=SIZE, output_dir=path)


def test_long_lines_are_trained_on(tmp_path):
    long = " ".join(["zebra"] * 2000)
    vocabulary = load_vocabulary(train_sentencepiece([long, *PROSE], size=33, output_dir=tmp_path))
    assert vocabulary.unk_id not in vocabulary.encode("zebra")


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("", []),
        (" \n", []),
        (" aa  bb ", ["aa  bb"]),
        ("aaa bbb ccc d", ["aaa bbb", "ccc d"]),
        ("aaaaaaaaaa bb", ["aa aa aa", "aa aa bb"]),
        ("ééé ééé", ["ééé", "ééé"]),
    ],
)
def test_split_line(line, parts):
    assert list(split_line(line, max_bytes=8)) == parts


def test_importing_and_loading_leave_tensorflow_out(model_path):
    code = (
        "import sys; sys.modules['tensorflow'] = sys.modules['seqio'] = None\n"
        "from t5x_lite.data.vocabularies.loading import load_vocabulary\n"
        "assert 'sentencepiece' not in sys.modules\n"
        "print(load_vocabulary(sys.argv[1]).size)\n"
    )
    command = [sys.executable, "-c", code, str(model_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "134\n"), done.stderr


@pytest.mark.parametrize("extra_ids", [0, 100])
def test_equals_seqio(model_path, extra_ids):
    seqio = pytest.importorskip("seqio")
    ours = load_vocabulary(model_path, extra_ids=extra_ids)
    theirs = seqio.SentencePieceVocabulary(str(model_path), extra_ids=extra_ids)
    assert ours.size == theirs.vocab_size
    texts = [
        *PROSE,
        "",
        "  two  spaces ",
        "x <extra_id_0> y<extra_id_5> <extra_id_99> <extra_id_100>",
        "</s> <pad> ﬁ 日本 ▁",
    ]
    for text in texts:
        ids = ours.encode(text)
        assert ids == list(theirs.encode(text))
        for extra in ([], [0, 0], [1, 5], [ours.size, 4000], [0, 7, 1]):
            assert ours.decode(ids + extra) == theirs.decode(ids + extra)


# Special tokens in text, as transformers reads them.


def test_special_tokens_anywhere(tiny_vocabulary):
    plain, found = (SentencePiece(tiny_vocabulary, layout=layout) for layout in ("seqio", "hf"))
    a, b, the = (plain.encode(text) for text in ("a", "b", "the"))
    assert found.encode("a<extra_id_0>b </s> the") == [*a, 399, *b, 1, *the]
    assert found.encode_batch(["", "the<pad>", "a"]) == [[], [*the, 0], a]
    assert found.encode("the a") == plain.encode("the a")
    assert (found.size, found.digest) == (plain.size, plain.digest)
    assert found.decode([*the, 399]) == plain.decode([*the, 399])


def test_the_layout_is_kept_beside_the_model(tiny_vocabulary, tmp_path):
    SentencePiece(tiny_vocabulary, layout="hf").save(tmp_path / "hf")
    assert (tmp_path / "hf" / "special_tokens.json").read_text() == '{"layout": "hf"}\n'
    found = load_vocabulary(tmp_path / "hf", extra_ids=7)
    assert isinstance(found, SentencePiece)
    assert (found.layout, found.extra_ids) == ("hf", 7)
    assert load_vocabulary(tmp_path / "hf" / "sentencepiece.model").layout == "seqio"
    assert load_vocabulary(found.save(tmp_path / "again").parent).layout == "hf"
    assert sorted(SentencePiece(tiny_vocabulary).files()) == ["sentencepiece.model"]
    (tmp_path / "hf" / "special_tokens.json").write_text('{"layout": "other"}')
    with pytest.raises(InputError, match=r"special_tokens\.json: layout must be one of \('seqio"):
        load_vocabulary(tmp_path / "hf")


def test_vocabularies_of_a_bucket(store, tmp_path, model_path, english_lines):  # noqa: F811
    """Small files, read whole; equal bytes are one vocabulary wherever they lie."""
    shutil.copy(model_path, store / "spiece.model")
    write_wordpiece(tmp_path)
    write_byte_level(tmp_path)
    write_spm(tmp_path, english_lines)
    for name in ("vocab.txt", "tokenizer.json", "spm.model"):
        shutil.copy(tmp_path / name, store / name)
    Bytes(layout="hf").save(store / "bytes")
    load_vocabulary(model_path).save(store / "directory")
    expected = {
        "spiece.model": load_vocabulary(model_path),
        "directory": load_vocabulary(model_path),
        "bytes": Bytes(layout="hf"),
        **{name: load_vocabulary(tmp_path / name) for name in ("tokenizer.json", "spm.model")},
    }
    for name, vocabulary in expected.items():
        found = load_vocabulary(f"gs://bucket/{name}")
        assert found.digest == vocabulary.digest
        assert found.encode("the age of wisdom") == vocabulary.encode("the age of wisdom")
        assert name == "bytes" or str(found.model_path).startswith(f"gs://bucket/{name}")
    assert (
        load_vocabulary("gs://bucket/vocab.txt").size
        == load_vocabulary(tmp_path / "vocab.txt").size
    )
    with pytest.raises(InputError, match=r"vocabulary gs://bucket/none: No such file or directory"):
        load_vocabulary("gs://bucket/none")
