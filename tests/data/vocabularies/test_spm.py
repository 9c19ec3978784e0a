"""DeBERTa's spm.model: the ids are those of the SentencePiece library."""

import json
import re
import unicodedata

import numpy as np
import pytest
import sentencepiece
import tokenizers
from sentencepiece import sentencepiece_model_pb2

from t5x_lite.core.errors import InputError
from t5x_lite.data.vocabularies.byte_level import read_spm
from t5x_lite.data.vocabularies.encoder_tokens import encoder_tokens
from t5x_lite.data.vocabularies.loading import load_vocabulary
from tests.tokenizer_files import write_spm, write_xlm_spm

STRANGE = [
    "",
    " ",
    "  two  spaces\tand a tab\nand a line ",
    "caf\u00e9 cafe\u0301 \ufb01ne \uff21\uff22\u3000\u00a0x",
    "\u72ac\u72ac \u65e5\u672c \U0001f600\U0001f600 !",
    "\u2581 already \u2581marked",
]

KOREAN = (
    "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
    "인간은 천부적으로 이성과 양심을 부여받았으며 서로 형제애의 정신으로 행동하여야 한다.",
)
VIETNAMESE = (
    "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền lợi.",
    "Mọi con người đều được tạo hoá ban cho lý trí và lương tâm và cần phải đối xử với nhau.",
)


@pytest.fixture(scope="module")
def spm(tmp_path_factory, english_lines):
    return write_spm(tmp_path_factory.mktemp("spm"), english_lines)


def test_ids_are_those_of_sentencepiece(spm, english_lines):
    reference = sentencepiece.SentencePieceProcessor(model_file=str(spm))
    vocabulary = read_spm(spm)
    texts = [*STRANGE, *english_lines]
    pairs = list(
        zip(vocabulary.encode_batch(texts), map(reference.encode, texts), texts, strict=True)
    )
    other = [(ours, theirs, text) for ours, theirs, text in pairs if ours != theirs]
    # Rules ("*****", ">>>>>") can be cut into the same pieces in several orders.
    assert all(re.search(r"([^\w\s])\1{9}", text) for _, _, text in other)
    assert all(sorted(ours) == sorted(theirs) for ours, theirs, _ in other)
    assert len(other) < 0.1 * len(pairs)
    ids = reference.encode("A small dog runs.")
    assert vocabulary.decode(ids) == reference.decode(ids) == "A small dog runs."


@pytest.mark.parametrize(
    "options",
    [
        {"byte_fallback": True, "size": 560},
        {"user_defined_symbols": ["<u>"]},
        {"add_dummy_prefix": False},
        {"normalization_rule_name": "identity"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_models_of_other_options(tmp_path, english_lines, options):
    spm = write_spm(tmp_path, english_lines, **options)
    reference = sentencepiece.SentencePieceProcessor(model_file=str(spm))
    # Of a text that begins with the mark of a space the other library marks the first word twice.
    texts = [*STRANGE[:-1], "the<u>dog <u> runs <0x0A>"]
    assert read_spm(spm).encode_batch(texts) == [reference.encode(text) for text in texts]
    if "byte_fallback" in options:
        ids = reference.encode("\u72ac!")
        assert read_spm(spm).decode(ids) == reference.decode(ids) == "\u72ac!"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"byte_fallback": True, "size": 356},
        {"normalization_rule_name": "nfkc_cf"},
    ],
    ids=["plain", "bytes", "lower"],
)
def test_decomposed_text_has_the_ids_of_composed_text(tmp_path, options):
    texts = [*KOREAN, *VIETNAMESE]
    options = {"size": 106, "character_coverage": 1.0, **options}
    spm = write_spm(tmp_path, texts * 5, **options)
    reference = sentencepiece.SentencePieceProcessor(model_file=str(spm))
    expected = [reference.encode(text) for text in texts]
    vocabulary = read_spm(spm)
    decomposed = [unicodedata.normalize("NFD", text) for text in texts]
    assert decomposed != texts
    assert vocabulary.encode_batch(texts) == expected
    assert vocabulary.encode_batch(decomposed) == expected
    assert not {vocabulary.unk_id} & {i for ids in expected for i in ids}
    # Characters are those of the text as it was given.
    [(_, offsets)] = vocabulary.encode_with_offsets(decomposed[:1])
    assert offsets[-1][1] == len(decomposed[0])


def test_a_model_that_leaves_marks_apart_is_obeyed(tmp_path):
    texts = [unicodedata.normalize("NFD", text) for text in VIETNAMESE]
    rules = tmp_path / "rules.tsv"
    rules.write_text("FF21\t41\n")  # a full-width A becomes A, and nothing else changes
    spm = write_spm(
        tmp_path, texts * 5, size=60, normalization_rule_tsv=str(rules), character_coverage=1.0
    )
    reference = sentencepiece.SentencePieceProcessor(model_file=str(spm))
    assert "NFC" not in str(read_spm(spm).description()["normalizer"])
    assert read_spm(spm).encode_batch(texts) == [reference.encode(text) for text in texts]


def test_what_was_saved_keeps_its_ids(tmp_path):
    lines = [*KOREAN, *VIETNAMESE] * 5
    spm = write_spm(tmp_path, lines, size=106, character_coverage=1.0)
    old, new = read_spm(spm, compose=False), read_spm(spm)
    text = unicodedata.normalize("NFD", KOREAN[0])
    assert old.encode(text) != new.encode(text)
    for vocabulary in (old, new):
        vocabulary.save(tmp_path / "saved")
        saved = load_vocabulary(tmp_path / "saved")
        assert saved.digest == vocabulary.digest
        assert saved.encode(text) == vocabulary.encode(text)


def test_a_tokenizer_json_of_it_puts_special_pieces_around_a_text(spm):
    made = tokenizers.Tokenizer.from_str(read_spm(spm).model_bytes.decode())
    assert made.encode("dogs").tokens[:: len(made.encode("dogs").tokens) - 1] == ["[CLS]", "[SEP]"]


def test_special_pieces(spm):
    vocabulary = read_spm(spm)
    found = {name: getattr(vocabulary, f"{name}_id") for name in ("pad", "cls", "sep", "unk")}
    assert found == {"pad": 0, "cls": 1, "sep": 2, "unk": 3}
    # As in DeBERTaV3: behind the last piece.
    assert (vocabulary.mask_id, vocabulary.size) == (300, 301)
    assert vocabulary.encode("a[MASK]")[-1] == 300


def test_words_begin_at_the_mark_of_a_space(spm):
    vocabulary = read_spm(spm)
    ids = vocabulary.encode("unhappily yours")
    marks = [piece.startswith("\u2581") for piece in (vocabulary.pieces()[i] for i in ids)]
    words = encoder_tokens(vocabulary).word_ids(np.array(ids))
    assert marks.count(True) == 2
    assert words.tolist() == np.cumsum(marks).tolist()


def test_it_is_saved_as_a_tokenizer_json(spm, tmp_path):
    vocabulary = load_vocabulary(spm)
    assert vocabulary.save(tmp_path).name == "tokenizer.json"
    again = load_vocabulary(tmp_path)
    assert again.digest == vocabulary.digest
    assert again.encode("two dogs") == vocabulary.encode("two dogs")
    assert load_vocabulary(spm.parent).digest == vocabulary.digest


def test_files_beside_it_are_obeyed(tmp_path, english_lines):
    spm = write_spm(tmp_path, english_lines)
    (tmp_path / "added_tokens.json").write_text(json.dumps({"[MASK]": 310}))
    config = {"do_lower_case": True, "split_by_punct": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    vocabulary = read_spm(spm)
    assert (vocabulary.mask_id, vocabulary.size) == (310, 311)
    assert vocabulary.encode("DOG(s)") == vocabulary.encode("dog(s)")
    # Each part is a text of its own, as the original code encodes them.
    pieces = [vocabulary.pieces()[i] for i in vocabulary.encode("the(the")]
    assert pieces == ["\u2581the", "\u2581(", "\u2581the"]
    (tmp_path / "added_tokens.json").write_text(json.dumps({"[MASK]": 5}))
    with pytest.raises(
        InputError, match=r"assigns the id 5, which is the id of .* to the token \[MASK\]"
    ):
        read_spm(spm)
    for place in (1 << 31, -1000):
        (tmp_path / "added_tokens.json").write_text(json.dumps({"[MASK]": place}))
        with pytest.raises(
            InputError, match=rf"the id {place}, which is invalid, to .*; the first .* is 300"
        ):
            read_spm(spm)
    (tmp_path / "added_tokens.json").write_text("{")
    with pytest.raises(InputError, match=r"added_tokens.json is not JSON"):
        read_spm(spm)


def test_what_is_no_such_model(tmp_path, tiny_vocabulary, english_lines):
    path = tmp_path / "spm.model"
    with pytest.raises(InputError, match="No such file"):
        read_spm(path)
    for options in ({"remove_extra_whitespaces": False}, {"model_type": "bpe"}):
        write_spm(tmp_path, english_lines, **options)
        with pytest.raises(InputError, match=r"the SentencePiece model (keeps|is not a unigram)"):
            read_spm(path)
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(write_spm(tmp_path, english_lines).read_bytes())
    model.normalizer_spec.precompiled_charsmap = b"damaged"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(InputError, match="a damaged SentencePiece model"):
        read_spm(path)
    path.write_bytes(b"not a model")
    with pytest.raises(InputError, match="not a SentencePiece model"):
        read_spm(path)
    path.write_bytes(tiny_vocabulary.read_bytes())
    with pytest.raises(InputError, match=r"no piece \[CLS\]"):
        read_spm(path)


def test_xlm_r_ids_are_one_above_sentencepiece_s(tmp_path, english_lines):
    path = write_xlm_spm(tmp_path, english_lines)
    reference = sentencepiece.SentencePieceProcessor(model_file=str(path))
    vocabulary = load_vocabulary(tmp_path)
    names = vocabulary.pieces()
    assert names[:5] == ["<s>", "<pad>", "</s>", "<unk>", reference.id_to_piece(3)]
    assert (names[-1], vocabulary.size) == ("<mask>", reference.GetPieceSize() + 2)
    texts = [text for text in (*STRANGE, *english_lines) if not re.search(r"([^\w\s])\1{9}", text)]
    expected = [[3 if i == 0 else i + 1 for i in reference.encode(text)] for text in texts]
    assert vocabulary.encode_batch(texts) == expected
    masked = [*vocabulary.encode("a"), vocabulary.mask_id, *vocabulary.encode(".")]
    assert vocabulary.encode("a <mask>.") == masked  # takes the space before it
    assert load_vocabulary(vocabulary.save(tmp_path / "saved")).encode_batch(texts) == expected


def test_a_model_of_another_order_is_not_xlm_r_s(spm, tmp_path):
    path = tmp_path / "sentencepiece.bpe.model"
    path.write_bytes(spm.read_bytes())
    with pytest.raises(InputError, match=r"not a unigram model that begins with <unk>, <s>, </s>"):
        load_vocabulary(path)
    path.write_bytes(b"damaged")
    with pytest.raises(InputError, match="not a SentencePiece model"):
        load_vocabulary(path)
