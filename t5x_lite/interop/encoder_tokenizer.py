"""Tokenizers of Hugging Face's encoders, in and out.

    tokenizer.json       all that there is to know; what transformers 5 writes
    vocab.txt            WordPiece: BERT and ELECTRA
    spm.model            SentencePiece: DeBERTa v2 and v3, whose releases have no tokenizer.json
    sentencepiece.bpe.model    SentencePiece: XLM-RoBERTa
    vocab.json, merges.txt     byte-level BPE: RoBERTa

All of a release's tokenizer files are kept as they are, for the way out. What was trained here is
written in the first two forms, with the names of the special pieces in tokenizer_config.json; a
tokenizer.json that adds none of them to a text is made to add [CLS] and [SEP].
"""

import itertools
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from t5x_lite.errors import InputError
from t5x_lite.vocabulary.files import (
    ADDED_NAME,
    BPE_NAME,
    MERGES_NAME,
    SPM_NAME,
    TOKENIZER_CONFIG_NAME,
    TOKENIZER_NAME,
    WORDPIECE_NAME,
    XLM_NAME,
)
from t5x_lite.vocabulary.loading import ENCODER_FORMS
from t5x_lite.vocabulary.tokenizer import Tokenizer

_FILES = (
    TOKENIZER_NAME,
    TOKENIZER_CONFIG_NAME,
    WORDPIECE_NAME,
    "special_tokens_map.json",
    ADDED_NAME,
    BPE_NAME,
    MERGES_NAME,
    XLM_NAME,
    SPM_NAME,
)

_logger = logging.getLogger(__name__)


def read_encoder_tokenizer(directory: Path, *, vocab_size: int, pad_id: int) -> Tokenizer:
    """The vocabulary of a Hugging Face directory.

    Args:
      directory: what holds it.
      vocab_size: rows of the embedding, which must hold all ids.
      pad_id: the model's token of padding.

    Raises:
      InputError: there is no tokenizer, or it is damaged, larger than the model, or pads otherwise.
    """
    names = [name for name in ENCODER_FORMS if (directory / name).is_file()]
    if not names:
        raise InputError(
            f"{directory}: holds no tokenizer that is read here, none of "
            f"{', '.join(ENCODER_FORMS)}: "
            "transformers' AutoTokenizer.from_pretrained(...).save_pretrained writes the first"
        )
    path = directory / names[0]
    vocabulary = ENCODER_FORMS[path.name](path)
    if path.name == TOKENIZER_NAME and _cuts_decomposed(vocabulary):
        _logger.info(
            "%s: cuts decomposed text (NFD) unlike SentencePiece, as transformers' fast tokenizers "
            "do; give it texts in NFC",
            path,
        )
    if vocabulary.size > vocab_size:
        raise InputError(
            f"{directory}: the tokenizer has {vocabulary.size} tokens, and the model's embedding "
            f"{vocab_size} rows"
        )
    if vocabulary.pad_id != pad_id:
        raise InputError(
            f"{directory}: the tokenizer pads with {vocabulary.pad_id}, and the model's "
            f"pad_token_id is {pad_id}"
        )
    return vocabulary


def _cuts_decomposed(vocabulary: Tokenizer) -> bool:
    """Whether a step "Precompiled" gets letters and their marks apart, as no step composes them."""
    normalizer = vocabulary.description()["normalizer"] or {}
    kinds = [step["type"] for step in normalizer.get("normalizers", [normalizer]) if step]
    before = itertools.takewhile(lambda kind: kind != "Precompiled", kinds)
    return "Precompiled" in kinds and not {"NFC", "NFKC"} & {*before}


def kept_files(directory: Path, vocabulary: Tokenizer) -> dict[str, bytes]:
    """The tokenizer files of a directory that the vocabulary does not have as they are."""
    found = {
        name: (directory / name).read_bytes() for name in _FILES if (directory / name).is_file()
    }
    own = vocabulary.files()
    return {name: content for name, content in found.items() if own.get(name) != content}


def tokenizer_files(
    vocabulary: Tokenizer, kept: Mapping[str, bytes], *, max_length: int
) -> dict[str, bytes]:
    """The files from which AutoTokenizer makes a tokenizer with the same ids.

    Args:
      vocabulary: that the model was trained with.
      kept: files of where the model was imported from, by name; others are passed over.
      max_length: tokens of a text at most.
    """
    files = vocabulary.files()
    kept = {name: content for name, content in kept.items() if name in _FILES}
    if kept:
        if TOKENIZER_NAME in files and TOKENIZER_NAME not in kept and TOKENIZER_CONFIG_NAME in kept:
            own = kept[TOKENIZER_CONFIG_NAME]
            kept[TOKENIZER_CONFIG_NAME] = _with_own_tokens(own, vocabulary)
        return {**files, **kept}
    config = json.loads(files[TOKENIZER_CONFIG_NAME])
    wordpiece = WORDPIECE_NAME in files
    config["tokenizer_class"] = "BertTokenizer" if wordpiece else "PreTrainedTokenizerFast"
    config["model_max_length"] = max_length
    if not wordpiece:
        description = vocabulary.description()
        if description.get("post_processor") is None:
            description["post_processor"] = _template(vocabulary)
        files[TOKENIZER_NAME] = _json(description)
    return {**files, TOKENIZER_CONFIG_NAME: _json(config)}


def _with_own_tokens(content: bytes, vocabulary: Tokenizer) -> bytes:
    """A kept tokenizer_config.json, its added tokens as in the tokenizer.json that was made."""
    config = json.loads(content)
    if not isinstance(config, dict) or "added_tokens_decoder" not in config:
        return content
    entries = [dict(entry) for entry in vocabulary.description()["added_tokens"]]
    config["added_tokens_decoder"] = {str(entry.pop("id")): entry for entry in entries}
    return _json(config)


def _template(vocabulary: Tokenizer) -> dict[str, Any]:
    """The step of a tokenizer.json that puts [CLS] and [SEP] around a text, or a pair."""
    ids = {vocabulary.names["cls"]: vocabulary.cls_id, vocabulary.names["sep"]: vocabulary.sep_id}
    cls, sep = ids

    def special(name: str, kind: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": name, "type_id": kind}}

    def text(name: str, kind: int) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": kind}}

    single = [special(cls, 0), text("A", 0), special(sep, 0)]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, text("B", 1), special(sep, 1)],
        "special_tokens": {
            name: {"id": name, "ids": [number], "tokens": [name]} for name, number in ids.items()
        },
    }


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=False, indent=2).encode() + b"\n"
