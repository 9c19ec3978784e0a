"""Tokenizers of Hugging Face directories: which vocabulary they become, and back."""

import json
import shutil

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.vocabularies.byte_level import Bytes
from t5x_lite.data.vocabularies.loading import SentencePiece, load_vocabulary
from t5x_lite.interop.tokenizers import read_tokenizer, write_tokenizer

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
    with pytest.raises(InputError, match=r"has 400 tokens \(100 of them.*embedding has 399 rows$"):
        read(directory, vocab_size=399)


@pytest.mark.parametrize("extra_ids", [1 << 31, 401, -1])
def test_extra_ids_are_compared_with_the_model_before_they_are_made(directory, extra_ids):
    write(directory, "tokenizer_config.json", {"extra_ids": extra_ids})
    with pytest.raises(InputError, match=rf"extra_ids is {extra_ids}, but .* has 400 rows$"):
        read(directory)
    with pytest.raises(InputError, match=rf"extra_ids is {extra_ids}, but .* has 400 rows$"):
        read(directory, {"tokenizer_class": "ByT5Tokenizer"})


def test_no_tokenizer(tmp_path):
    with pytest.raises(InputError, match=r"contains no tokenizer; copy spiece\.model"):
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
    with pytest.raises(InputError, match=f"has the step {step['type']}, which SentencePiece lacks"):
        read(tmp_path)


@pytest.mark.parametrize("entry", [{"foo": 1}, {"content": 1}, 3])
def test_entries_that_are_no_tokens_are_refused(directory, entry):
    write(directory, "tokenizer_config.json", {"added_tokens_decoder": {"300": entry}})
    with pytest.raises(InputError, match="an added token must be a string"):
        read(directory)


ADDED = {
    "400": {"content": "<sep>"},
    "401": {"content": "\n"},
    "402": {"content": "[ENT]", "lstrip": True, "rstrip": True},
    "403": {"content": "covid", "single_word": True},
}


@pytest.fixture(params=["spiece", "json", "bytes"])
def added(request, tmp_path, tiny_vocabulary):
    """A directory with added tokens, and the settings of its config.json."""
    directory = tmp_path / request.param
    directory.mkdir()
    settings = {"added_tokens_decoder": ADDED}
    if request.param == "spiece":
        shutil.copy(tiny_vocabulary, directory / "spiece.model")
    elif request.param == "json":
        content = tokenizer_json(load_vocabulary(tiny_vocabulary))
        entries = {key: entry for key, entry in ADDED.items() if key != "401"}
        entries["401"] = {"content": "<hl>"}
        content["added_tokens"] = [_entry(int(k), e) for k, e in sorted(entries.items())]
        content["pre_tokenizer"] = {
            "type": "Metaspace",
            "replacement": "\u2581",
            "prepend_scheme": "always",
            "split": True,
        }
        content["decoder"] = content["pre_tokenizer"]
        content["version"] = "1.0"
        write(directory, "tokenizer.json", content)
        settings = {}
    else:
        settings["tokenizer_class"] = "ByT5Tokenizer"
        settings["extra_ids"] = 141  # 259 + 141 = 400
    write(directory, "tokenizer_config.json", settings)
    return directory


def _entry(number, entry):
    flags = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized", "special"), False)
    return {"id": number, **flags, **entry}


def test_added_tokens_have_their_ids_and_are_decoded(added):
    found = read(added, vocab_size=410)
    assert found.size == 404
    [sep, ent] = [found.encode(text).count(number) for text, number in
                  (("a<sep>b", 400), ("a [ENT] b", 402))]  # fmt: skip
    assert (sep, ent) == (1, 1)
    assert 403 in found.encode("a covid b")
    assert 403 not in found.encode("acovid")
    assert "<sep>" in found.decode(found.encode("a<sep>b"))
    assert found.pieces()[400] == "<sep>" if hasattr(found, "pieces") else True
    assert found.sentinel(0) == (259 if "bytes" in added.name else 399)


def test_added_tokens_are_kept_and_written(added, tmp_path):
    found = read(added, vocab_size=410)
    texts = [*TEXTS, "x <sep>y", "a\n[ENT] b", "(covid) covid 19", "</s> a}"]
    found.save(tmp_path / "kept")
    kept = load_vocabulary(tmp_path / "kept", extra_ids=found.extra_ids)
    (tmp_path / "out").mkdir()
    write_tokenizer(kept, tmp_path / "out")
    again = read(tmp_path / "out", vocab_size=410)
    for other in (kept, again):
        assert other.encode_batch(texts) == found.encode_batch(texts)
        assert other.digest == found.digest
        assert other.size == found.size


def test_added_tokens_change_the_digest(directory, tiny_vocabulary):
    plain = read(directory).digest
    assert plain == load_vocabulary(tiny_vocabulary).digest
    write(directory, "added_tokens.json", {"<sep>": 400})
    one = read(directory, vocab_size=401).digest
    write(directory, "added_tokens.json", {"<sep>": 401})
    two = read(directory, vocab_size=402).digest
    write(directory, "added_tokens.json", {})
    write(directory, "tokenizer_config.json", {"legacy": False})
    assert len({plain, one, two, read(directory).digest}) == 4


def test_a_text_in_a_graph_has_the_same_added_tokens(directory):
    from t5x_lite.data.elements import tf
    from t5x_lite.data.tasks.names import seqio_vocabulary

    write(directory, "added_tokens.json", {"<sep>": 400, "\n": 401})
    found = read(directory, vocab_size=402)
    same = seqio_vocabulary(found)
    texts = ["x <sep>y", "a\nb", "", "plain"]
    assert same.vocab_size == 402
    assert same.encode_tf(tf.constant(texts)).to_list() == found.encode_batch(texts)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"added_tokens.json": {"<sep>": 400}}, "'<sep>' has the id 400, but .* 400 rows"),
        ({"added_tokens.json": {"<sep>": -1}}, "'<sep>' has the id -1"),
        (
            {"added_tokens.json": {"<extra_id_0>": 7}},
            "'<extra_id_0>' has the id 7, but must have 399",
        ),
        ({"added_tokens.json": {"a": 300, "b": 300}}, "both have the id 300"),
        ({"special_tokens_map.json": {"eos_token": "<eos>"}}, "eos_token is '<eos>'"),
        ({"tokenizer_config.json": {"bos_token": "<s>"}}, "'<s>' has the id 400"),
        ({"tokenizer_config.json": {"tokenizer_class": "LlamaTokenizer"}}, "LlamaTokenizer"),
        ({"tokenizer_config.json": {"split_special_tokens": True}}, "split_special_tokens True"),
        ({"tokenizer_config.json": {"auto_map": {"AutoTokenizer": "x.Y"}}}, "auto_map"),
        ({"tokenizer_config.json": {"sp_model_kwargs": {"alpha": 1}}}, "sp_model_kwargs"),
        ({"tokenizer.json": {"model": {"type": "BPE"}}}, r"tokenizer\.json"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(directory, files, message):
    for name, content in files.items():
        write(directory, name, content)
    with pytest.raises(InputError, match=message):
        read(directory)


def test_legacy_false_gives_no_space_after_a_special_token(directory):
    """transformers 4.57, T5Tokenizer(legacy=False): "a <extra_id_0>." has no piece of a space."""
    write(directory, "tokenizer_config.json", {"legacy": False})
    found = read(directory)
    pieces = [found.pieces()[i] for i in found.encode("the <extra_id_0>, s")]
    at = pieces.index("\u2581<extra_id_0>")
    assert pieces[at + 1] == ","
    (directory / "tokenizer_config.json").unlink()
    pieces = [read(directory).pieces()[i] for i in read(directory).encode("the <extra_id_0>, s")]
    assert pieces[at + 1].startswith("\u2581")


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
