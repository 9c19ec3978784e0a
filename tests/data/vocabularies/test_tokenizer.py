"""WordPiece and tokenizer.json: ids, what is saved, and every way in which input can be wrong."""

import json
import pickle

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.vocabularies.loading import load_vocabulary
from t5x_lite.data.vocabularies.tokenizer import Tokenizer
from tests import tokenizer_files


@pytest.fixture(scope="module")
def wordpiece(tmp_path_factory):
    directory = tmp_path_factory.mktemp("wordpiece")
    return load_vocabulary(tokenizer_files.write_wordpiece(directory))


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory):
    return load_vocabulary(tokenizer_files.write_byte_level(tmp_path_factory.mktemp("bpe")))


def special_ids(vocabulary):
    names = ("pad", "unk", "cls", "sep", "mask", "eos")
    return tuple(getattr(vocabulary, f"{name}_id") for name in names)


def named(vocabulary, ids):
    pieces = vocabulary.pieces()
    return [pieces[i] for i in ids]


def test_wordpiece(wordpiece):
    assert isinstance(wordpiece, Tokenizer)
    assert special_ids(wordpiece) == (0, 1, 2, 3, 4, 3)
    ids = wordpiece.encode("The DOGS, runnïng unaffable")
    assert named(wordpiece, ids) == [
        *("the", "dog", "##s", ","),
        *("run", "##ning", "una", "##ffa", "##ble"),
    ]
    assert wordpiece.decode([2, *ids, 3, 0]) == "the dogs, running unaffable"
    assert wordpiece.encode("☃ " + "a" * 101) == [1, 1]
    assert wordpiece.encode("") == []
    assert wordpiece.size == len(wordpiece.pieces())


def test_special_pieces_in_text_are_found(wordpiece):
    assert wordpiece.encode("the [MASK] dog") == [5, 4, 6]
    assert wordpiece.decode([5, 4, 6, 10_000]) == "the dog"


@pytest.mark.parametrize("lower", [True, False])
def test_capital_letters_in_the_pieces_or_the_config_say_whether_text_is_lower_cased(
    tmp_path, lower
):
    path = tokenizer_files.write_wordpiece(tmp_path)
    with path.open("a") as file:
        file.write("The\n")
    assert named(load_vocabulary(path), load_vocabulary(path).encode("The")) == ["The"]
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"do_lower_case": lower, "cls_token": {"content": "[CLS]"}, "name": "/tmp"})
    )
    loaded = load_vocabulary(path)
    assert named(loaded, loaded.encode("The")) == ["the" if lower else "The"]
    loaded.save(tmp_path / "copy")
    copy = load_vocabulary(tmp_path / "copy")
    assert copy.digest == loaded.digest
    assert copy.encode("The") == loaded.encode("The")
    saved = json.loads((tmp_path / "copy" / "tokenizer_config.json").read_text())
    assert saved == {
        "cls_token": "[CLS]",
        "do_lower_case": lower,
        "mask_token": "[MASK]",
        "pad_token": "[PAD]",
        "sep_token": "[SEP]",
        "unk_token": "[UNK]",
    }


def test_a_tokenizer_json(byte_level):
    assert special_ids(byte_level) == (1, 3, 0, 2, 265, 2)
    ids = byte_level.encode("dog running é")
    assert named(byte_level, ids) == ["dog", "Ġrun", "n", "i", "n", "g", "Ġ", "Ã", "©"]
    assert byte_level.decode([0, *ids, 2, 1, 1]) == "dog running é"
    assert byte_level.size == 266


def test_the_special_pieces_may_have_other_names(tmp_path):
    path = tokenizer_files.write_wordpiece(tmp_path)
    path.write_text(path.read_text().replace("[MASK]", "<hidden>"))
    with pytest.raises(InputError, match=r"no piece \[MASK\] or <mask>; use the vocabulary of an"):
        load_vocabulary(path)
    (tmp_path / "tokenizer_config.json").write_text('{"mask_token": "<hidden>"}')
    assert load_vocabulary(path).encode("the <hidden>") == [5, 4]


@pytest.mark.parametrize("kind", ["wordpiece", "byte_level", "unigram"])
def test_what_is_saved_is_loaded_again_from_its_directory(tmp_path, kind):
    path = getattr(tokenizer_files, f"write_{kind}")(tmp_path)
    vocabulary = load_vocabulary(path)
    saved = vocabulary.save(tmp_path / "a" / "b")
    assert saved == tmp_path / "a" / "b" / path.name
    assert saved.read_bytes() == path.read_bytes()
    copy = load_vocabulary(tmp_path / "a" / "b")
    assert copy.files() == vocabulary.files()
    assert copy.digest == vocabulary.digest
    assert load_vocabulary(tmp_path).digest == vocabulary.digest
    text = "the dogs (running)"
    assert copy.encode(text) == vocabulary.encode(text)
    assert pickle.loads(pickle.dumps(vocabulary)).encode(text) == vocabulary.encode(text)
    assert vocabulary.encode_batch([text, "", "a"]) == [
        vocabulary.encode(text),
        [],
        vocabulary.encode("a"),
    ]


def test_digests_differ_with_the_pieces_and_with_what_is_said_of_them(tmp_path, wordpiece):
    path = tokenizer_files.write_wordpiece(tmp_path)
    assert load_vocabulary(path).digest == wordpiece.digest
    (tmp_path / "tokenizer_config.json").write_text('{"strip_accents": false}')
    assert load_vocabulary(path).digest != wordpiece.digest


def test_there_are_no_sentinels(wordpiece):
    assert (wordpiece.extra_ids, wordpiece.num_sentinels) == (0, 0)
    for function in (lambda: wordpiece.sentinel_start, lambda: wordpiece.sentinel(0)):
        with pytest.raises(InputError, match="has no sentinels, which text-to-text objectives"):
            function()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vocab.txt", b"a\nb\na\n", r"vocab.txt:3: 'a' is also on line 1"),
        ("vocab.txt", b"a\n\xff\n", r"vocab.txt is not UTF-8 \(byte 2\)"),
        ("vocab.txt", b"", r"no piece \[CLS\] or <s>, no piece \[SEP\]"),
        ("tokenizer.json", b"{}", r"not a tokenizer.json \("),
        ("tokenizer.json", b"\xff", r"not a tokenizer.json \("),
        ("tokenizer_config.json", b"{", r"tokenizer_config.json is not JSON"),
    ],
)
def test_what_is_no_vocabulary_is_refused(tmp_path, name, content, message):
    tokenizer_files.write_wordpiece(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        load_vocabulary(tmp_path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"tokenizer.json: No such file or directory; give a"):
        load_vocabulary(tmp_path / "tokenizer.json")


def test_a_tokenizer_without_an_unknown_and_with_endless_padding(tmp_path):
    path = tokenizer_files.write_unigram(tmp_path)
    description = json.loads(path.read_text())
    description["padding"]["strategy"] = {"Fixed": 1 << 62}
    path.write_text(json.dumps(description))
    assert load_vocabulary(path).encode("the") == load_vocabulary(path).encode(" the")
    description["model"]["unk_id"] = None
    path.write_text(json.dumps(description))
    with pytest.raises(InputError, match=r"not a tokenizer\.json \(.*unk_id"):
        load_vocabulary(path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tokenizer_class": "BertJapaneseTokenizer"}, "BertJapaneseTokenizer"),
        ({"tokenizer_class": "PhobertTokenizer"}, "PhobertTokenizer"),
        ({"word_tokenizer_type": "mecab"}, "word_tokenizer_type 'mecab'"),
        ({"subword_tokenizer_type": "character"}, "subword_tokenizer_type"),
        ({"never_split": ["[X]"]}, "never_split"),
        ({"do_basic_tokenize": False}, "do_basic_tokenize False"),
        ({"split_special_tokens": True}, "split_special_tokens"),
        ({"auto_map": {"AutoTokenizer": ["x.Y", None]}}, "auto_map"),
    ],
)
@pytest.mark.parametrize("form", ["wordpiece", "byte_level"])
def test_settings_that_are_not_implemented_are_refused_by_name(tmp_path, form, settings, message):
    path = getattr(tokenizer_files, f"write_{form}")(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(InputError, match=message):
        load_vocabulary(path)


@pytest.mark.parametrize("name", ["added_tokens.json", "tokenizer_config.json"])
def test_tokens_added_to_a_vocab_txt(tmp_path, name):
    path = tokenizer_files.write_wordpiece(tmp_path)
    size = load_vocabulary(path).size
    tokens = {"covid19x": size, "[ENT]": size + 1}
    decoder = {str(number): {"content": token} for token, number in tokens.items()}
    content = tokens if name == "added_tokens.json" else {"added_tokens_decoder": decoder}
    (tmp_path / name).write_text(json.dumps(content))
    found = load_vocabulary(path)
    assert found.encode("covid19x [ENT]") == [size, size + 1]
    found.save(tmp_path / "kept")
    kept = load_vocabulary(tmp_path / "kept")
    assert kept.encode("a[ENT]b covid19x") == found.encode("a[ENT]b covid19x")
    assert (kept.size, kept.digest) == (size + 2, found.digest)


def test_an_added_token_at_an_id_that_is_not_the_next(tmp_path):
    path = tokenizer_files.write_wordpiece(tmp_path)
    (tmp_path / "added_tokens.json").write_text(json.dumps({"[ENT]": 500}))
    with pytest.raises(InputError, match=r"'\[ENT\]' has the id 500 in the JSON files"):
        load_vocabulary(path)


def test_settings_above_a_tokenizer_json(tmp_path):
    """transformers changes the file's steps by tokenizer_config.json."""
    path = tokenizer_files.write_byte_level(tmp_path)
    plain = load_vocabulary(path)
    (tmp_path / "tokenizer_config.json").write_text('{"add_prefix_space": true}')
    assert load_vocabulary(path).encode("run") == plain.encode(" run")


@pytest.fixture
def changed(tmp_path):
    """Writes a tokenizer.json of bytes with changes."""

    def write(**changes):
        path = tokenizer_files.write_byte_level(tmp_path)
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
        return path

    return write


def _split(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def test_a_regular_expression_without_bounds_is_refused(changed):
    path = changed(pre_tokenizer=_split("(a+)+$"))
    with pytest.raises(InputError, match=r"fails on a probe text \(Onig: Regex search error"):
        load_vocabulary(path)


def test_a_panic_of_the_library_while_encoding_is_an_input_error(changed):
    found = load_vocabulary(changed(pre_tokenizer=_split("(b|bb)+$")))
    for encode in (found.encode_batch, found.encode_with_offsets):
        with pytest.raises(InputError, match=r"cannot encode one of 2 texts \(Onig"):
            encode(["fine", "b" * 60 + "!"])


def test_a_damaged_table_of_normalization_is_an_input_error(changed):
    table = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    with pytest.raises(InputError, match=r"not a tokenizer\.json"):
        load_vocabulary(changed(normalizer=table))


def test_an_added_token_that_normalizes_to_nothing(changed):
    strip = {"type": "Strip", "strip_left": True, "strip_right": True}
    flags = {"lstrip": False, "rstrip": False, "single_word": False, "special": False}
    token = {"id": 400, "content": "\n", "normalized": True, **flags}
    with pytest.raises(InputError, match=r"makes the added token '\\n' empty"):
        load_vocabulary(changed(normalizer=strip, added_tokens=[token]))


@pytest.fixture
def bpe_files(tmp_path):
    """A vocab.json and a merges.txt of the pieces of `write_byte_level`."""
    content = json.loads(tokenizer_files.write_byte_level(tmp_path).read_text())["model"]
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.json").write_text(json.dumps(content["vocab"]))
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in content["merges"]]
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    return tmp_path


def test_vocab_json_and_merges_are_read_as_the_tokenizer_json(bpe_files, byte_level):
    for path in (bpe_files, bpe_files / "vocab.json"):
        found = load_vocabulary(path)
        assert special_ids(found) == special_ids(byte_level)
        for text in ("the dog runs", " do", "犬\n", "</s>dog"):
            assert found.encode(text) == byte_level.encode(text)
    mask = found.mask_id
    assert found.encode("dog <mask>") == [*found.encode("dog"), mask]  # takes the space before it
    assert load_vocabulary(found.save(bpe_files / "saved")).encode("dog <mask> x") == found.encode(
        "dog <mask> x"
    )
    (bpe_files / "tokenizer_config.json").write_text('{"add_prefix_space": true}')
    assert load_vocabulary(bpe_files).encode("run") == byte_level.encode(" run")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("merges.txt", None, r"merges.txt does not exist, but vocab.json requires it"),
        (
            "merges.txt",
            b"d o\nq zz\n",
            r"merges.txt:2: the merge 'q zz' must join two pieces of vocab.json",
        ),
        ("merges.txt", b"\xff", r"merges.txt is not UTF-8"),
        ("vocab.json", b"[1]", r"must be a JSON object"),
        ("vocab.json", b'{"a": "b"}', r"vocab.json must be a JSON object of pieces"),
        ("vocab.json", b"{", r"vocab.json is not JSON"),
        ("tokenizer_config.json", b'{"tokenizer_class": "GPT2Tokenizer"}', "GPT2Tokenizer"),
    ],
)
def test_damaged_vocab_json_and_merges(bpe_files, name, content, message):
    if content is None:
        (bpe_files / name).unlink()
    else:
        (bpe_files / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        load_vocabulary(bpe_files)


def test_an_id_far_beyond_the_pieces_is_refused(tmp_path):
    path = tokenizer_files.write_byte_level(tmp_path)
    content = json.loads(path.read_text())
    content["model"]["vocab"]["dog"] = 2**31 - 1
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match="the largest id is 2147483647; download the file again"):
        load_vocabulary(path)
