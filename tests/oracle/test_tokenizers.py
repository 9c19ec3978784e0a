"""Vocabularies of encoders give the ids of transformers' tokenizers."""

import pytest

from t5x_lite.data.vocabularies.loading import load_vocabulary
from tests import tokenizer_files

pytestmark = pytest.mark.oracle

TEXTS = [
    "The unaffable dogs' running, don't!",
    "  spaces\tand\u00a0lines\n\nhere ",
    "naïve Élan — “quoted” 3.14 $5",
    "犬が好き the [MASK] dog [SEP] <mask>",
    "a" * 120 + " b\u200d\ufffd\x00c",
    "",
]


def test_wordpiece_as_berts_tokenizer(tmp_path):
    from transformers import BertTokenizer

    path = tokenizer_files.write_wordpiece(tmp_path)
    ours, theirs = load_vocabulary(path), BertTokenizer.from_pretrained(str(tmp_path))
    for text in TEXTS:
        assert ours.encode(text) == theirs(text, add_special_tokens=False).input_ids
    ids = (theirs.cls_token_id, theirs.sep_token_id, theirs.mask_token_id, theirs.pad_token_id)
    assert ids == (ours.cls_id, ours.sep_id, ours.mask_id, ours.pad_id)


@pytest.mark.parametrize("kind", ["wordpiece", "byte_level", "unigram"])
def test_what_is_saved_is_read_by_transformers(tmp_path, kind):
    from transformers import BertTokenizer, PreTrainedTokenizerFast

    ours = load_vocabulary(getattr(tokenizer_files, f"write_{kind}")(tmp_path))
    ours.save(tmp_path / "saved")
    reader = BertTokenizer if kind == "wordpiece" else PreTrainedTokenizerFast
    theirs = reader.from_pretrained(str(tmp_path / "saved"))
    for text in TEXTS:
        assert ours.encode(text) == theirs(text, add_special_tokens=False).input_ids
    assert theirs.mask_token_id == ours.mask_id
