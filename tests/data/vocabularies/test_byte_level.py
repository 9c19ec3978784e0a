"""The byte vocabulary: ids spelt out in both layouts, text back and forth."""

import hypothesis
import hypothesis.strategies as st
import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.vocabularies.added_tokens import AddedToken
from t5x_lite.data.vocabularies.byte_level import Bytes
from t5x_lite.data.vocabularies.loading import load_vocabulary

SEQIO = Bytes(layout="seqio", extra_ids=100)
HF = Bytes(layout="hf", extra_ids=125)


def test_ids_of_text():
    assert SEQIO.encode("hé") == HF.encode("hé") == [107, 198, 172]
    assert SEQIO.encode_batch(["", "a"]) == [[], [100]]
    assert (SEQIO.pad_id, SEQIO.eos_id, SEQIO.unk_id) == (0, 1, 2)


def test_sizes_and_sentinels():
    assert (SEQIO.size, SEQIO.sentinel(0), SEQIO.sentinel(99)) == (259, 258, 159)
    assert (HF.size, HF.sentinel(0), HF.sentinel(124)) == (384, 259, 383)
    assert SEQIO.sentinel_start == 258
    assert SEQIO.num_sentinels == 100
    with pytest.raises(InputError, match=r"set data\.vocabulary to bytes"):
        _ = HF.sentinel_start
    for vocabulary in (SEQIO, HF):
        for index in (-1, vocabulary.extra_ids):
            with pytest.raises(ValueError, match="index of a sentinel"):
                vocabulary.sentinel(index)


def test_sentinels_in_text():
    assert HF.encode("a<extra_id_0> <extra_id_124>") == [100, 259, 35, 383]
    assert HF.decode([100, 259, 35, 383]) == "a<extra_id_0> <extra_id_124>"
    plain = "<extra_id_0>"
    assert SEQIO.encode(plain) == [byte + 3 for byte in plain.encode()]
    assert HF.encode("<extra_id_125>") == SEQIO.encode("<extra_id_125>")


def test_special_tokens_in_text_take_the_spaces_around_them():
    assert HF.encode("a </s> b<pad>") == [100, 1, 101, 0]
    assert HF.encode_batch(["<<unk>>", "a < b"]) == [[63, 2, 65], [100, 35, 63, 35, 101]]
    assert SEQIO.encode("</s>") == [63, 50, 118, 65]


def test_decode_stops_at_eos_and_drops_what_is_no_text():
    assert SEQIO.decode([100, 0, 2, 101, 1, 102]) == "ab"
    assert SEQIO.decode([100, 258, 198, 101, 259, 500]) == "ab"
    assert SEQIO.decode([]) == ""
    assert SEQIO.encode("\ud800") == [ord("?") + 3]


@hypothesis.given(st.text())
@pytest.mark.slow
def test_text_comes_back(text):
    hypothesis.assume(not any("\ud800" <= c <= "\udfff" for c in text))
    hypothesis.assume(not any(name in text for name in ("<pad>", "</s>", "<unk>")))
    for vocabulary in (SEQIO, HF):
        assert vocabulary.decode(vocabulary.encode(text)) == text


def test_extra_ids_have_a_range():
    with pytest.raises(InputError, match=r"in \[0, 256\], but is 257"):
        Bytes(extra_ids=257)
    with pytest.raises(InputError, match="but is -1"):
        Bytes(layout="hf", extra_ids=-1)
    assert Bytes(layout="hf", extra_ids=1000).size == 1259


def test_names_and_files(tmp_path):
    assert load_vocabulary("bytes").digest == SEQIO.digest
    assert load_vocabulary("bytes-hf", extra_ids=125).digest == HF.digest
    for vocabulary in (SEQIO, HF):
        path = vocabulary.save(tmp_path)
        assert path.name == "bytes.json"
        assert vocabulary.files() == {"bytes.json": path.read_bytes()}
        for where in (path, tmp_path):
            assert (
                load_vocabulary(where, extra_ids=vocabulary.extra_ids).digest == vocabulary.digest
            )
    digests = {SEQIO.digest, HF.digest, Bytes(extra_ids=99).digest, Bytes(layout="hf").digest}
    assert len(digests) == 4
    assert str(HF.model_path) == "bytes-hf"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"layout": "other"}'])
def test_a_wrong_description(tmp_path, content):
    (tmp_path / "bytes.json").write_text(content)
    with pytest.raises(InputError, match=r"bytes\.json( must be a JSON object|: layout must be)"):
        load_vocabulary(tmp_path)


BYT5_ADDED = [
    AddedToken(content="\n", id=13),
    AddedToken(content="{", id=126),
    AddedToken(content="\u00e9", id=236),
    AddedToken(content="<sep>", id=384),
    AddedToken(content="[ENT]", id=385, lstrip=True, rstrip=True),
    AddedToken(content="covid19x", id=386, single_word=True),
]


@pytest.mark.parametrize(
    ("text", "ids", "decoded"),
    [
        ("a<sep>b", [100, 384, 101], "a <sep> b"),
        ("a  [ENT]\u00a0\tb", [100, 385, 101], "a [ENT] b"),
        ("acovid19xb", [100, 102, 114, 121, 108, 103, 52, 60, 123, 101], "acovid19xb"),
        ("a covid19x b", [100, 35, 386, 35, 101], "a  covid19x  b"),
        ("\u00e9\n\u72ac", [236, 13, 234, 141, 175], "\u00e9 \n \u72ac"),
        ("{{", [126, 126], "{ {"),
    ],
)
def test_added_tokens_as_transformers_4_57_reads_them(tmp_path, text, ids, decoded):
    """Literals of ByT5Tokenizer of transformers 4.57.6."""
    vocabulary = Bytes(layout="hf", extra_ids=125, added=BYT5_ADDED)
    assert (vocabulary.encode(text), vocabulary.decode(ids)) == (ids, decoded)
    vocabulary.save(tmp_path)
    again = load_vocabulary(tmp_path, extra_ids=125)
    assert (again.encode(text), again.digest) == (ids, vocabulary.digest)
