"""Import and export of tokenizers in Hugging Face's directories.

T5 family:

    spiece.model                    SentencePiece's own file
    tokenizer.json                  has priority for tokenizing text; without spiece.model, its
                                    pieces and normalizer are converted to a SentencePiece model
    tokenizer_class ByT5Tokenizer   no file: bytes, followed by sentinels

As in seqio, the sentinels `<extra_id_N>` are appended to the SentencePiece model (`extra_ids`),
unless it contains them (mT5). Tokens that users added come from tokenizer_config.json,
added_tokens.json, special_tokens_map.json and tokenizer.json (`data.vocabularies.added_tokens`).
Without tokenizer.json, the files are read like transformers 4.57's Python tokenizers read them. An
export writes spiece.model, tokenizer_config.json, added_tokens.json and the imported
tokenizer.json, from which AutoTokenizer makes a tokenizer with the same ids.

Encoders:

    tokenizer.json             complete; written by transformers 5
    vocab.txt                  WordPiece: BERT and ELECTRA
    spm.model                  SentencePiece: DeBERTa v2 and v3 (releases without tokenizer.json)
    sentencepiece.bpe.model    SentencePiece: XLM-RoBERTa
    vocab.json, merges.txt     byte-level BPE: RoBERTa

An import keeps all tokenizer files of a release unchanged for the export. A vocabulary that
t5x_lite trained is exported as tokenizer.json or vocab.txt, with the names of the special tokens in
tokenizer_config.json. If its tokenizer.json adds no special tokens, the exported one adds [CLS] and
[SEP].
"""

import base64
import itertools
import json
import logging
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from t5x_lite.core.errors import InputError
from t5x_lite.data.vocabularies.added_tokens import (
    ADDED_NAME,
    BPE_NAME,
    EOS_ID,
    MERGES_NAME,
    PAD_ID,
    SPM_NAME,
    TOKENIZER_CONFIG_NAME,
    TOKENIZER_NAME,
    UNK_ID,
    WORDPIECE_NAME,
    XLM_NAME,
    AddedToken,
    Stated,
    as_added,
    check_class,
)
from t5x_lite.data.vocabularies.byte_level import NUM_PLAIN, Bytes, Layout, composes
from t5x_lite.data.vocabularies.loading import ENCODER_FORMS, SentencePiece, Vocabulary
from t5x_lite.data.vocabularies.tokenizer import Tokenizer, add_stated, add_tokens, load_tokenizer
from t5x_lite.interop.hf import read_json

_logger = logging.getLogger(__name__)

SPIECE = "spiece.model"
_TOKENIZER_CONFIG = "tokenizer_config.json"
_TOKENIZER_JSON = "tokenizer.json"
_BYT5 = "ByT5Tokenizer"
_SPECIAL = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
_EXTRA_ID = re.compile(r"▁?<extra_id_(\d+)>")
_CLASSES = ("T5Tokenizer", "MT5Tokenizer", "PreTrainedTokenizer", "TokenizersBackend")
_DEFAULT_EXTRA_IDS = {"sentencepiece": 100, "bytes": 125}


def read_tokenizer(
    directory: Path,
    config: Mapping[str, Any],
    *,
    vocab_size: int,
    sentinels: Layout,
    scratch: Path,
) -> Vocabulary:
    """Read the vocabulary of a Hugging Face T5 directory."""
    path = directory / _TOKENIZER_CONFIG
    said = Stated.of(directory)
    settings = said.config
    stated = _extra_ids(settings, default=0)
    if not 0 <= stated <= vocab_size:  # checked before that many sentinels are created
        raise InputError(
            f"{path}: extra_ids is {stated}, but the model's embedding has {vocab_size} rows"
        )
    _check_roles(said)
    model = next((directory / name for name in (SPIECE, "sentencepiece.model")
                  if (directory / name).is_file()), None)  # fmt: skip
    fast = directory / _TOKENIZER_JSON
    vocabulary: Vocabulary
    if _BYT5 in (settings.get("tokenizer_class"), config.get("tokenizer_class")):
        vocabulary = _bytes(said, sentinels, vocab_size=vocab_size)
    elif model is None and not fast.is_file():
        raise InputError(
            f"{directory}: contains no tokenizer; copy {SPIECE} of the original model into "
            "the directory"
        )
    else:
        form = fast.name if fast.is_file() else SPIECE
        check_class(settings.get("tokenizer_class"), _CLASSES, where=path, form=form)
        if model is None:
            model = scratch / SPIECE
            model.write_bytes(_from_tokenizer_json(fast))
        vocabulary = _sentencepiece(model, said, sentinels, fast=fast, vocab_size=vocab_size)
    if vocabulary.size > vocab_size:
        raise InputError(
            f"{directory}: the tokenizer has {vocabulary.size} tokens ({vocabulary.extra_ids} of "
            f"them sentinels), but the model's embedding has {vocab_size} rows"
        )
    return vocabulary


def _bytes(said: Stated, sentinels: Layout, *, vocab_size: int) -> Bytes:
    extra_ids = _extra_ids(said.config, default=_DEFAULT_EXTRA_IDS["bytes"])
    ids = {name: i for i, name in enumerate(_SPECIAL.values())}
    ids |= {f"<extra_id_{i}>": NUM_PLAIN + i for i in range(extra_ids)}
    tokens = said.resolved(ids.get, NUM_PLAIN + extra_ids, known=ids)
    _check_ids(tokens, ids, where=said.directory, vocab_size=vocab_size)
    return Bytes(layout=sentinels, extra_ids=extra_ids, added=tokens)


def _sentencepiece(
    model: Path, said: Stated, sentinels: Layout, *, fast: Path, vocab_size: int
) -> SentencePiece:
    own = SentencePiece(model, extra_ids=0, layout=sentinels)
    if own.num_sentinels:
        extra_ids, base = 0, own
    else:
        extra_ids = _extra_ids(said.config, default=_DEFAULT_EXTRA_IDS["sentencepiece"])
        base = SentencePiece(model, extra_ids=extra_ids, layout=sentinels)
    pieces = own.pieces()
    ids = {piece: number for number, piece in enumerate(pieces)}
    ids |= {f"<extra_id_{i}>": base.size - 1 - i for i in range(extra_ids)}
    content = b""
    if fast.is_file():
        content = fast.read_bytes()
        loaded = load_tokenizer(content, where=fast)
        if loaded.pre_tokenizer is None:  # only pieces: transformers did not write it
            content = b""
    options: dict[str, Any] = {}
    if content:
        _check_pieces(loaded, pieces, fast=fast, spiece=model)
        add_stated(loaded, said, where=fast)
        there = {token.content for token in loaded.get_added_tokens_decoder().values()}
        own_tokens = [*_SPECIAL.values(), *(f"<extra_id_{i}>" for i in range(extra_ids))]
        missing = [
            AddedToken(content=name, id=ids[name], special=True, normalized=False)
            for name in own_tokens
            if name not in there and name in ids
        ]
        add_tokens(loaded, missing, where=fast)
        _check_ending(loaded, where=fast)
        tokens = tuple(
            as_added(entry, where=fast, number=entry["id"])
            for entry in json.loads(loaded.to_str())["added_tokens"]
        )
        options["fast"] = loaded.to_str().encode()
        if own.num_sentinels:  # mT5, which has sentinels among its pieces
            ids |= {name[1:]: i for name, i in ids.items() if _EXTRA_ID.fullmatch(name)}
    else:
        known = {*_SPECIAL.values(), *(f"<extra_id_{i}>" for i in range(extra_ids))}
        tokens = said.resolved(ids.get, base.size, known=known)
        if fast.is_file():
            tokens = tuple({t.content: t for t in (*_json_tokens(fast), *tokens)}.values())
        legacy = said.config.get("legacy")
        if legacy is False:
            space = said.config.get("add_prefix_space")
            options |= {"legacy": False, "add_prefix_space": space is not False}
    _check_ids(tokens, ids, where=said.directory, vocab_size=vocab_size)
    return SentencePiece(model, extra_ids=extra_ids, layout=sentinels, added=tokens, **options)


def _json_tokens(fast: Path) -> list[AddedToken]:
    entries = read_json(fast).get("added_tokens")
    return [
        as_added(entry, where=fast, number=entry.get("id", "missing"))
        for entry in (entries if isinstance(entries, list) else [])
        if isinstance(entry, dict)
    ]


def _check_pieces(loaded: Any, pieces: list[str], *, fast: Path, spiece: Path) -> None:
    """Raise InputError if tokenizer.json and the SentencePiece model have different tokens."""
    vocabulary = json.loads(loaded.to_str())["model"].get("vocab")
    theirs = [entry[0] for entry in vocabulary] if isinstance(vocabulary, list) else []
    for i, piece in enumerate(pieces):
        other = theirs[i] if i < len(theirs) else None
        # Sentinels of mT5 are pieces with and without the space.
        if other != piece and not (other and _EXTRA_ID.fullmatch(piece) and other in piece):
            raise InputError(
                f"{fast}: piece {i} is {other!r}, but {piece!r} in {spiece.name}; remove the "
                "file that does not belong to the model"
            )


def _check_ending(loaded: Any, *, where: Path) -> None:
    """Raise InputError if tokenizer.json adds special tokens other than EOS to a text."""
    around = loaded.encode("", add_special_tokens=True).ids
    if around not in ([EOS_ID], []):
        raise InputError(
            f"{where}: the post_processor adds the tokens {around} to a text, but only "
            f"[{EOS_ID}] at the end is supported"
        )


def _check_roles(said: Stated) -> None:
    """Raise InputError if padding, EOS or the unknown token differ from T5's."""
    for name, content in _SPECIAL.items():
        found = said.role(name.removesuffix("_token"))
        if found not in (None, content):
            raise InputError(f"{said.directory}: {name} is {found!r}, but a T5 needs {content!r}")


def _check_ids(
    tokens: Iterable[AddedToken], ids: Mapping[str, int], *, where: object, vocab_size: int
) -> None:
    """Raise InputError if a token's id is wrong, or has no row in the model's embedding."""
    fixed = {*_SPECIAL.values(), *(name for name in ids if _EXTRA_ID.fullmatch(name))}
    for token in tokens:
        number = token.id
        if number is None or not 0 <= number < vocab_size:
            raise InputError(
                f"{where}: the added token {token.content!r} has the id {number}, but the model's "
                f"embedding has {vocab_size} rows"
            )
        if token.content in fixed and ids[token.content] != number:
            raise InputError(
                f"{where}: the token {token.content!r} has the id {number}, but must have "
                f"{ids[token.content]}"
            )


def _extra_ids(settings: Mapping[str, Any], *, default: int) -> int:
    """Return the number of sentinels in tokenizer_config.json."""
    named = _named_sentinels(settings)
    stated = settings.get("extra_ids")
    if named:
        return named
    return stated if isinstance(stated, int) and not isinstance(stated, bool) else default


def _named_sentinels(settings: Mapping[str, Any]) -> int:
    listed: set[str] = set()
    for name in ("additional_special_tokens", "extra_special_tokens"):
        tokens = settings.get(name)
        for token in tokens if isinstance(tokens, list) else []:
            content = _content(token)
            listed |= set() if content is None else {content}
    return sum(_EXTRA_ID.fullmatch(token) is not None for token in listed)


def _content(token: Any) -> str | None:
    """Return the text of a token in a tokenizer file."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _from_tokenizer_json(path: Path) -> bytes:
    """Convert a tokenizer.json to a SentencePiece model."""
    from sentencepiece import sentencepiece_model_pb2

    model_pb2: Any = sentencepiece_model_pb2
    content = read_json(path)
    try:
        if content["model"]["type"] != "Unigram":
            raise ValueError(
                f"the tokenizer's model type must be Unigram, but is {content['model']['type']}"
            )
        vocab = [(str(piece), float(score)) for piece, score in content["model"]["vocab"]]
        for piece, _ in vocab:
            piece.encode()  # half a surrogate pair raises ValueError
        charsmap = _charsmap(content.get("normalizer"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path}: not a SentencePiece tokenizer ({error}); copy the model's {SPIECE} "
            "into the directory"
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
    """Return the character map of SentencePiece's normalizer, or b"" without a normalizer."""
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
    # SentencePiece's own table composes characters (NFC), too.
    if others and not (others == [("NFC", 0)] and composes(table)):
        raise ValueError(f"the normalizer has the step {others[0][0]}, which SentencePiece lacks")
    if len(tables) != 1:
        raise ValueError("the normalizer has no SentencePiece charsmap, or more than one")
    return table


def _is_spacing(step: Mapping[str, Any]) -> bool:
    """Return True if a normalizer step only changes spaces."""
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
    """Write the tokenizer files of a T5 in Hugging Face's format."""
    extra_ids = vocabulary.extra_ids
    if isinstance(vocabulary, Bytes) and vocabulary.layout == "seqio":
        extra_ids = 0
    sentinels = [f"<extra_id_{i}>" for i in range(extra_ids)]
    special = dict(_SPECIAL)
    settings: dict[str, Any] = {**special, "extra_ids": extra_ids}
    if sentinels:
        settings["additional_special_tokens"] = sentinels
    added = () if isinstance(vocabulary, Tokenizer) else vocabulary.added
    if isinstance(vocabulary, Bytes):
        settings["tokenizer_class"] = _BYT5
    else:
        settings["tokenizer_class"] = "T5Tokenizer"
        (directory / SPIECE).write_bytes(vocabulary.model_bytes)
    if isinstance(vocabulary, SentencePiece):
        if vocabulary.fast:
            (directory / _TOKENIZER_JSON).write_bytes(vocabulary.fast)
        if not vocabulary.legacy:
            settings |= {"legacy": False, "add_prefix_space": vocabulary.add_prefix_space}
    if added:
        # With this field, transformers reads no other file for added tokens, so it needs all.
        decoder = _default_tokens(vocabulary, extra_ids) | {token.id or 0: token for token in added}
        settings["added_tokens_decoder"] = {
            str(number): {"content": token.content, **token.flags()}
            for number, token in sorted(decoder.items())
        }
        ids = {token.content: number for number, token in sorted(decoder.items())}
        own = {*special.values(), *sentinels}
        if others := {name: number for name, number in ids.items() if name not in own}:
            _write_json(directory / ADDED_NAME, others)
    lists = {"additional_special_tokens": sentinels} if sentinels else {}
    _write_json(directory / _TOKENIZER_CONFIG, settings)
    _write_json(directory / "special_tokens_map.json", {**special, **lists})


def _default_tokens(vocabulary: Vocabulary, extra_ids: int) -> dict[int, AddedToken]:
    """Return the default special tokens of T5Tokenizer or ByT5Tokenizer by id."""
    is_bytes = isinstance(vocabulary, Bytes)
    common: dict[str, Any] = {"normalized": False, "special": True}
    found: dict[int, AddedToken] = {}
    for number, name in enumerate(_SPECIAL.values()):
        strip = {"lstrip": is_bytes, "rstrip": is_bytes}
        found[number] = AddedToken(content=name, id=number, **strip, **common)
    for i in range(extra_ids):
        number = vocabulary.sentinel(i)
        strip = {"lstrip": not is_bytes, "rstrip": not is_bytes}
        found[number] = AddedToken(content=f"<extra_id_{i}>", id=number, **strip, **common)
    return found


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    text = json.dumps(content, ensure_ascii=False, indent=2)
    path.write_text(text + "\n", encoding="utf-8")


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


def read_encoder_tokenizer(directory: Path, *, vocab_size: int, pad_id: int) -> Tokenizer:
    """Read the vocabulary of a Hugging Face encoder directory."""
    names = [name for name in ENCODER_FORMS if (directory / name).is_file()]
    if not names:
        raise InputError(
            f"{directory}: contains none of the supported tokenizer files "
            f"{', '.join(ENCODER_FORMS)}; write the first one with transformers' "
            "AutoTokenizer.from_pretrained(...).save_pretrained"
        )
    path = directory / names[0]
    vocabulary = ENCODER_FORMS[path.name](path)
    if path.name == TOKENIZER_NAME and _cuts_decomposed(vocabulary):
        _logger.info(
            "%s: this tokenizer splits decomposed text (NFD) as transformers' fast tokenizers do, "
            "but SentencePiece does not; pass texts in NFC",
            path,
        )
    if vocabulary.size > vocab_size:
        raise InputError(
            f"{directory}: the tokenizer has {vocabulary.size} tokens, but the model's embedding "
            f"has {vocab_size} rows"
        )
    if vocabulary.pad_id != pad_id:
        raise InputError(
            f"{directory}: the tokenizer's padding id is {vocabulary.pad_id}, but the model's "
            f"pad_token_id is {pad_id}"
        )
    return vocabulary


def _cuts_decomposed(vocabulary: Tokenizer) -> bool:
    normalizer = vocabulary.description()["normalizer"] or {}
    kinds = [step["type"] for step in normalizer.get("normalizers", [normalizer]) if step]
    before = itertools.takewhile(lambda kind: kind != "Precompiled", kinds)
    return "Precompiled" in kinds and not {"NFC", "NFKC"} & {*before}


def kept_files(directory: Path, vocabulary: Tokenizer) -> dict[str, bytes]:
    """Return the files of an imported tokenizer that an export copies unchanged, by name."""
    found = {
        name: (directory / name).read_bytes() for name in _FILES if (directory / name).is_file()
    }
    own = vocabulary.files()
    return {name: content for name, content in found.items() if own.get(name) != content}


def tokenizer_files(
    vocabulary: Tokenizer, kept: Mapping[str, bytes], *, max_length: int
) -> dict[str, bytes]:
    """Return the tokenizer files of an encoder in Hugging Face's format, by name."""
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
    config = json.loads(content)
    if not isinstance(config, dict) or "added_tokens_decoder" not in config:
        return content
    entries = [dict(entry) for entry in vocabulary.description()["added_tokens"]]
    config["added_tokens_decoder"] = {str(entry.pop("id")): entry for entry in entries}
    return _json(config)


def _template(vocabulary: Tokenizer) -> dict[str, Any]:
    """Return tokenizer.json's post_processor, which adds [CLS] and [SEP]."""
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
