"""Ids of hostile texts are those of transformers, for each form of tokenizer files of each family.

Each case writes a directory by a class of transformers, with tokens added by a user; the ids are
compared as read, after they were kept in a checkpoint, and after export. A spiece.model or
spm.model alone is read as the SentencePiece library reads it (tests/data/vocabularies), as
transformers' former Python tokenizers did; the fast ones cut a few texts otherwise.
"""

import itertools
import json
import shutil

import pytest

from t5x_lite.data.vocabularies.loading import load_vocabulary
from t5x_lite.interop.tokenizers import (
    kept_files,
    read_encoder_tokenizer,
    read_tokenizer,
    tokenizer_files,
    write_tokenizer,
)
from tests import tokenizer_files as made

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

TOKENS = ["{", "}", "<sep>", "[ENT]", "covid19x", "</s>", "<extra_id_0>", "<pad>", "<unk>",
          "[MASK]", "<mask>", "[SEP]", "<s>", "[CLS]"]  # fmt: skip
PLAIN = [
    "", " ", "   ", "\t", "\n\n", "\u00a0", "\u200b", "\x00", "\x07a\x1fb", "a\u0085b",
    "a\u2028b\u2029c", "\ufeffbom", "cafe\u0301 caf\u00e9", "\u1100\u1161\uac00",
    "\uff21\uff22 \uff5b\uff5d", "\ufb01ne", "Stra\u00dfe SS \u1e9e", "\u0130stanbul \u0131I",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f3f3\ufe0f\u200d\U0001f308", "犬が好き。",
    "\uff76\uff9e\uff77", "שלום עולם", "مرحبا \u202eabc\u202c", "नमस्ते", "ไทยภาษา",
    "a" * 250, "*****", "-----  ______", "don't won't I'll", "3.14,15 $5", "x\u0301\u0302\u0303",
    "\U0001d400\U0001f9ff\U00020000\U0010fffd", "a\u200db\u200cc", "  lead and trail  ",
    "a\tb\r\nc", "\u3000wide\u3000", "\u2581under\u2581score \u2581", "\u0120byte \u010a",
    "##s ##ing un##", "A.B.C. e.g.", "!!!???...", "naïve Élan", "ΣΑΣ ς", "<", "<extra_id_",
    "<extra_id_100>", "<<sep>>", "covid19xs [ent]", "1\u00b2\u00b3\u00bd", "x<SEP>y",
]  # fmt: skip
PATTERNS = ["{0}", "a{0}b", "a {0} b", "a  {0}\u00a0\tb", "({0}).", "{0}{0}", " {0} </s> {0} ",
            "é{0}犬", "{0} the dog", "the dog {0}"]  # fmt: skip
TEXTS = [
    *PLAIN,
    *(p.replace("{0}", token) for token in TOKENS for p in PATTERNS),
    *(f"x{a}{b} {a} y" for a, b in itertools.islice(itertools.permutations(TOKENS[:7], 2), 24)),
]


def add_tokens(tokenizer):
    from transformers import AddedToken

    entity = AddedToken("[ENT]", lstrip=True, rstrip=True)
    tokenizer.add_tokens(["{", "}", "<sep>", entity, AddedToken("covid19x", single_word=True)])
    return tokenizer


def test_there_are_200_texts():
    assert len(set(TEXTS)) >= 200


def t5(directory, tiny_vocabulary, *, added):
    from transformers import T5Tokenizer

    shutil.copy(tiny_vocabulary, directory / "spiece.model")
    (directory / "tokenizer_config.json").write_text('{"tokenizer_class": "T5Tokenizer"}')
    theirs = T5Tokenizer.from_pretrained(str(directory))
    for file in directory.iterdir():
        file.unlink()
    (add_tokens(theirs) if added else theirs).save_pretrained(str(directory))
    return T5Tokenizer.from_pretrained(str(directory))


def without_tokenizer_json(directory, theirs):
    """The tokens of a tokenizer, stated by tokenizer_config.json alone."""
    (directory / "tokenizer.json").unlink()
    config = json.loads((directory / "tokenizer_config.json").read_text())
    config["added_tokens_decoder"] = {
        str(number): {
            "content": token.content,
            **{f: getattr(token, f) for f in ("lstrip", "rstrip", "single_word", "normalized")},
            "special": token.special,
        }
        for number, token in theirs.added_tokens_decoder.items()
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return theirs


def byt5(directory, tiny_vocabulary, *, added):
    from transformers import ByT5Tokenizer

    theirs = ByT5Tokenizer()
    (add_tokens(theirs) if added else theirs).save_pretrained(str(directory))
    return ByT5Tokenizer.from_pretrained(str(directory))


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("family", [t5, byt5])
def test_text_to_text(tmp_path, tiny_vocabulary, family, added):
    for name in ("in", "scratch", "out"):
        (tmp_path / name).mkdir()
    theirs = family(tmp_path / "in", tiny_vocabulary, added=added)
    options = {"vocab_size": 512, "sentinels": "hf", "scratch": tmp_path / "scratch"}
    read = read_tokenizer(tmp_path / "in", {}, **options)
    read.save(tmp_path / "kept")
    kept = load_vocabulary(tmp_path / "kept", extra_ids=read.extra_ids)
    write_tokenizer(kept, tmp_path / "out")
    exported = type(theirs).from_pretrained(str(tmp_path / "out"))
    assert read.size == len(theirs) == len(exported)
    for text in TEXTS:
        expected = theirs(text, add_special_tokens=False).input_ids
        found = [v.encode(text) for v in (read, kept)]
        found.append(exported(text, add_special_tokens=False).input_ids)
        assert found == [expected] * 3, repr(text)


def wordpiece(directory, **options):
    from transformers import BertTokenizer

    made.write_wordpiece(directory)
    theirs = add_tokens(BertTokenizer.from_pretrained(str(directory), **options))
    theirs.save_pretrained(str(directory))
    return BertTokenizer.from_pretrained(str(directory))


def vocab_txt(directory, **options):
    return without_tokenizer_json(directory, wordpiece(directory, **options))


def byte_level(directory, **options):
    from transformers import RobertaTokenizer

    content = json.loads(made.write_byte_level(directory).read_text())
    (directory / "tokenizer.json").unlink()
    (directory / "vocab.json").write_text(json.dumps(content["model"]["vocab"]))
    merges = [" ".join(m) if isinstance(m, list) else m for m in content["model"]["merges"]]
    (directory / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    theirs = add_tokens(RobertaTokenizer.from_pretrained(str(directory), **options))
    theirs.save_pretrained(str(directory))
    return RobertaTokenizer.from_pretrained(str(directory))


def vocab_and_merges(directory, **options):
    theirs = byte_level(directory, **options)
    content = json.loads((directory / "tokenizer.json").read_text())["model"]
    (directory / "vocab.json").write_text(json.dumps(content["vocab"]))
    merges = "\n".join(" ".join(pair) for pair in content["merges"])
    (directory / "merges.txt").write_text("#version: 0.2\n" + merges + "\n")
    return without_tokenizer_json(directory, theirs)


def xlm_roberta(directory, english_lines, **options):
    from transformers import XLMRobertaTokenizer

    made.write_xlm_spm(directory, english_lines)
    theirs = add_tokens(XLMRobertaTokenizer.from_pretrained(str(directory), **options))
    (directory / "sentencepiece.bpe.model").unlink()
    theirs.save_pretrained(str(directory))
    return XLMRobertaTokenizer.from_pretrained(str(directory))


def xlm_spm(directory, english_lines, **options):
    theirs = xlm_roberta(directory, english_lines, **options)
    made.write_xlm_spm(directory, english_lines)
    return without_tokenizer_json(directory, theirs)


def deberta(directory, english_lines, **options):
    from transformers import DebertaV2Tokenizer

    made.write_spm(directory, english_lines)
    theirs = add_tokens(DebertaV2Tokenizer.from_pretrained(str(directory), **options))
    theirs.save_pretrained(str(directory))
    return DebertaV2Tokenizer.from_pretrained(str(directory))


@pytest.mark.parametrize(
    ("family", "options", "pad_id"),
    [
        (wordpiece, {}, 0),
        (wordpiece, {"do_lower_case": False}, 0),
        (wordpiece, {"strip_accents": False}, 0),
        (wordpiece, {"tokenize_chinese_chars": False}, 0),
        (vocab_txt, {"do_lower_case": True}, 0),
        (vocab_txt, {"do_lower_case": False}, 0),
        (vocab_txt, {"do_lower_case": True, "strip_accents": False}, 0),
        (vocab_txt, {"do_lower_case": True, "tokenize_chinese_chars": False}, 0),
        (byte_level, {}, 1),
        (byte_level, {"add_prefix_space": True}, 1),
        (byte_level, {"trim_offsets": False}, 1),
        (vocab_and_merges, {}, 1),
        (vocab_and_merges, {"add_prefix_space": True}, 1),
        (xlm_roberta, {}, 1),
        (xlm_spm, {}, 1),
        (deberta, {}, 0),
        (deberta, {"do_lower_case": True}, 0),
    ],
)
def test_encoders(tmp_path, english_lines, family, options, pad_id):
    for name in ("in", "out"):
        (tmp_path / name).mkdir()
    if family in (xlm_roberta, xlm_spm, deberta):
        options = {**options, "english_lines": english_lines}
    theirs = family(tmp_path / "in", **options)
    read = read_encoder_tokenizer(tmp_path / "in", vocab_size=512, pad_id=pad_id)
    read.save(tmp_path / "kept")
    kept = load_vocabulary(tmp_path / "kept")
    files = tokenizer_files(kept, kept_files(tmp_path / "in", read), max_length=64)
    for name, content in files.items():
        (tmp_path / "out" / name).write_bytes(content)
    exported = type(theirs).from_pretrained(str(tmp_path / "out"))
    assert read.size == len(theirs)
    for text in TEXTS:
        expected = theirs(text, add_special_tokens=False).input_ids
        found = [v.encode(text) for v in (read, kept)]
        found.append(exported(text, add_special_tokens=False).input_ids)
        assert found == [expected] * 3, repr(text)
