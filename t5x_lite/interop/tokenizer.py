"""Vocabularies of Hugging Face directories, in and out.

    spiece.model                    SentencePiece's own file: it is taken as it is
    tokenizer.json                  all that transformers 5 writes: its pieces and normaliser make
                                    a SentencePiece model again
    tokenizer_class ByT5Tokenizer   no file: bytes, with sentinels above them

The sentinels `<extra_id_N>` are, as in seqio, not in the model but appended (`extra_ids`), except
where it holds them (mT5). On the way out spiece.model and tokenizer_config.json are written, from
which AutoTokenizer makes a tokenizer with the same ids.
"""

import base64
import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from t5x_lite.errors import InputError
from t5x_lite.interop.hf_config import read_json
from t5x_lite.vocabulary.byte_level import Bytes, Layout
from t5x_lite.vocabulary.files import EOS_ID, PAD_ID, UNK_ID
from t5x_lite.vocabulary.loading import SentencePiece, Vocabulary
from t5x_lite.vocabulary.spm import composes

SPIECE = "spiece.model"
_TOKENIZER_CONFIG = "tokenizer_config.json"
_TOKENIZER_JSON = "tokenizer.json"
_BYT5 = "ByT5Tokenizer"
_SPECIAL = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
_EXTRA_ID = re.compile(r"▁?<extra_id_(\d+)>")
_DEFAULT_EXTRA_IDS = {"sentencepiece": 100, "bytes": 125}

_logger = logging.getLogger(__name__)


def read_tokenizer(
    directory: Path,
    config: Mapping[str, Any],
    *,
    vocab_size: int,
    sentinels: Layout,
    scratch: Path,
) -> Vocabulary:
    """The vocabulary of a Hugging Face directory.

    Args:
      directory: what holds it.
      config: the content of its config.json.
      vocab_size: rows of the embedding, which must hold all ids.
      sentinels: how special tokens are read in text, and where a byte vocabulary has its
        sentinels.
      scratch: a directory for a SentencePiece model that has to be made.

    Raises:
      InputError: there is no tokenizer, it is of another kind, or it has more ids than the model.
    """
    path = directory / _TOKENIZER_CONFIG
    settings = read_json(path) if path.is_file() else {}
    stated = _extra_ids(settings, default=0)
    if not 0 <= stated <= vocab_size:  # they would be made first
        raise InputError(
            f"{path}: extra_ids is {stated}, and the model's embedding has {vocab_size} rows"
        )
    model = next((directory / name for name in (SPIECE, "sentencepiece.model")
                  if (directory / name).is_file()), None)  # fmt: skip
    vocabulary: Vocabulary
    if _BYT5 in (settings.get("tokenizer_class"), config.get("tokenizer_class")):
        extra_ids = _extra_ids(settings, default=_DEFAULT_EXTRA_IDS["bytes"])
        vocabulary = Bytes(layout=sentinels, extra_ids=extra_ids)
    elif model is None and not (directory / _TOKENIZER_JSON).is_file():
        raise InputError(
            f"{directory}: holds no tokenizer: copy {SPIECE} of the model it was trained from there"
        )
    else:
        if model is None:
            model = scratch / SPIECE
            model.write_bytes(_from_tokenizer_json(directory / _TOKENIZER_JSON))
        vocabulary = SentencePiece(model, extra_ids=0, layout=sentinels)
        if not vocabulary.num_sentinels:
            extra_ids = _extra_ids(settings, default=_DEFAULT_EXTRA_IDS["sentencepiece"])
            vocabulary = SentencePiece(model, extra_ids=extra_ids, layout=sentinels)
    if vocabulary.size > vocab_size:
        raise InputError(
            f"{directory}: the tokenizer has {vocabulary.size} tokens ({vocabulary.extra_ids} of "
            f"them sentinels), and the model's embedding {vocab_size}"
        )
    _warn_of_added_tokens(directory, settings)
    return vocabulary


def _extra_ids(settings: Mapping[str, Any], *, default: int) -> int:
    """The number of sentinels that a tokenizer_config.json states."""
    named = _named_sentinels(settings)
    stated = settings.get("extra_ids")
    if named:
        return named
    return stated if isinstance(stated, int) and not isinstance(stated, bool) else default


def _named_sentinels(settings: Mapping[str, Any]) -> int:
    """How many sentinels it lists among its special tokens."""
    listed: set[str] = set()
    for name in ("additional_special_tokens", "extra_special_tokens"):
        tokens = settings.get(name)
        for token in tokens if isinstance(tokens, list) else []:
            content = _content(token)
            listed |= set() if content is None else {content}
    return sum(_EXTRA_ID.fullmatch(token) is not None for token in listed)


def _content(token: Any) -> str | None:
    """The text of a token, which is written as such or as {"content": text, ...}."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _warn_of_added_tokens(directory: Path, settings: Mapping[str, Any]) -> None:
    """Says which tokens were added to the model's own: they become ordinary text here."""
    path = directory / "added_tokens.json"
    added = list(read_json(path)) if path.is_file() else []
    entries = settings.get("added_tokens_decoder")
    if isinstance(entries, dict):
        contents = [_content(entry) for entry in entries.values()]
        added += [text for text in contents if text is not None]
    others = sorted(
        {token for token in added if not _EXTRA_ID.fullmatch(token)} - {*_SPECIAL.values(), "<s>"}
    )
    if others:
        _logger.warning(
            "%s: the tokens %s were added to the tokenizer; here they are ordinary text",
            directory,
            ", ".join(others),
        )


def _from_tokenizer_json(path: Path) -> bytes:
    """A SentencePiece model with the pieces, scores and normaliser of a tokenizer.json."""
    from sentencepiece import sentencepiece_model_pb2

    model_pb2: Any = sentencepiece_model_pb2
    content = read_json(path)
    try:
        if content["model"]["type"] != "Unigram":
            raise ValueError(f"its model is {content['model']['type']}")
        vocab = [(str(piece), float(score)) for piece, score in content["model"]["vocab"]]
        for piece, _ in vocab:
            piece.encode()  # half of a surrogate pair is no text
        charsmap = _charsmap(content.get("normalizer"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path}: not a SentencePiece tokenizer ({error}); copy the model's {SPIECE} there"
        ) from error
    while vocab and _EXTRA_ID.fullmatch(vocab[-1][0]):
        vocab.pop()
    proto = model_pb2.ModelProto()
    kinds = model_pb2.ModelProto.SentencePiece
    special = {PAD_ID: kinds.CONTROL, EOS_ID: kinds.CONTROL, UNK_ID: kinds.UNKNOWN}
    for i, (piece, score) in enumerate(vocab):
        proto.pieces.add(piece=piece, score=score, type=special.get(i, kinds.NORMAL))
    trainer = proto.trainer_spec
    trainer.model_type = model_pb2.TrainerSpec.UNIGRAM
    trainer.vocab_size = len(vocab)
    trainer.pad_id, trainer.eos_id, trainer.unk_id, trainer.bos_id = PAD_ID, EOS_ID, UNK_ID, -1
    trainer.pad_piece, trainer.eos_piece, trainer.unk_piece = _SPECIAL.values()
    proto.normalizer_spec.precompiled_charsmap = charsmap
    return proto.SerializeToString(deterministic=True)


def _charsmap(normalizer: Any) -> bytes:
    """The table of a normaliser that is SentencePiece's, or of one that does nothing."""
    if normalizer is None:
        return b""
    steps = normalizer.get("normalizers", [normalizer])
    tables, others = [], []
    for step in steps:
        if step["type"] == "Precompiled":
            tables.append(step["precompiled_charsmap"])
        elif not _is_spacing(step):
            others.append((step["type"], len(tables)))
    table = base64.b64decode(tables[0]) if len(tables) == 1 else b""
    # SentencePiece's own table composes, too.
    if others and not (others == [("NFC", 0)] and composes(table)):
        raise ValueError(f"its normalizer has a step that SentencePiece lacks, {others[0][0]}")
    if len(tables) != 1:
        raise ValueError("its normalizer is another")
    return table


def _is_spacing(step: Mapping[str, Any]) -> bool:
    """Whether a step does what a SentencePiece model does with spaces in any case.

    It strips them at both ends, makes one of several, and writes "▁" for one.
    """
    if step["type"] == "Strip":
        return True
    if step["type"] != "Replace":
        return False
    return (step["pattern"], step["content"]) in (
        ({"Regex": " {2,}"}, " "),
        ({"Regex": " {2,}"}, "▁"),
        ({"String": " "}, "▁"),
    )


def write_tokenizer(vocabulary: Vocabulary, directory: Path) -> None:
    """Writes the files from which AutoTokenizer makes a tokenizer with the same ids."""
    extra_ids = vocabulary.size - 259 if isinstance(vocabulary, Bytes) else vocabulary.extra_ids
    sentinels = [f"<extra_id_{i}>" for i in range(extra_ids)]
    special = dict(_SPECIAL)
    settings: dict[str, Any] = {**special, "extra_ids": extra_ids}
    if sentinels:
        settings["additional_special_tokens"] = sentinels
    if isinstance(vocabulary, Bytes):
        settings["tokenizer_class"] = _BYT5
    else:
        settings["tokenizer_class"] = "T5Tokenizer"
        (directory / SPIECE).write_bytes(vocabulary.model_bytes)
    lists = {"additional_special_tokens": sentinels} if sentinels else {}
    _write_json(directory / _TOKENIZER_CONFIG, settings)
    _write_json(directory / "special_tokens_map.json", {**special, **lists})


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    text = json.dumps(content, ensure_ascii=False, indent=2)
    path.write_text(text + "\n", encoding="utf-8")
