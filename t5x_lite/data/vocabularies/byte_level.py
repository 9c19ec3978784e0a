"""Vocabularies of ByT5 (bytes) and of encoders' SentencePiece models (DeBERTa, XLM-R).

ByT5's byte vocabulary: the bytes of UTF-8 text, without a model file (Xue et al. 2021).

The 259 ids are 0 for padding, 1 for EOS, 2 for unknown, and b + 3 for byte b. seqio and
transformers use different sentinels for span corruption, so there are two layouts:

    layout     data.vocabulary   ids               sentinels
    "seqio"    bytes             259               258, 257, ...: the last bytes, which UTF-8 lacks
    "hf"       bytes-hf          259 + extra_ids   259, 260, ...: additional ids

The released ByT5 models were pretrained with seqio's layout. Hugging Face's tokenizer, with 125
extra ids, encodes `<extra_id_0>` in text as 259, and `</s>`, `<pad>` and `<unk>`, with the spaces
around them, as the special ids. All other text has the same ids in both layouts.

    vocabulary = Bytes(layout="hf", extra_ids=125)
    vocabulary.encode("hé<extra_id_0>")   -> [107, 198, 172, 259]

Sources: seqio/vocabularies.py ByteVocabulary, t5/data/preprocessors.py sentinel_id;
transformers/models/byt5/tokenization_byt5.py.

Readers of encoders' SentencePiece models: DeBERTa's spm.model, XLM-R's sentencepiece.bpe.model.

    vocabulary = read_spm("deberta-v3-base/spm.model")     # a Tokenizer: ids, offsets, [MASK]
    vocabulary = read_xlm_spm("xlm-r/sentencepiece.bpe.model")

The model is converted to a tokenizer.json with the same ids, which is stored in checkpoints:
unigram pieces with their scores, bytes for text without a piece if the model has byte fallback, and
the model's normalization. [MASK] is a piece of the model, or has the id from added_tokens.json, or
follows the last piece, as in DeBERTaV3 (128000). split_by_punct and do_lower_case of a
tokenizer_config.json are applied.

The ids are the same as from the SentencePiece library, for composed and decomposed text (NFC and
NFD; Korean and Vietnamese are often written in NFD). Ids may differ in three cases: repeated
characters such as "*****", which can be split into the same pieces in several orders; half-width
kana with a voicing mark and letters with several marks, without a composed character; and the
control character U+0085. A given tokenizer.json is used unchanged, as in transformers' fast
tokenizers: without an NFC step it splits decomposed text into other pieces than the library.

XLM-R's ids are one more than the model's ids; <s>, <pad>, </s> and <unk> are first, <mask> is last.

Source: transformers' convert_slow_tokenizer.py, DebertaV2Converter and XLMRobertaConverter.
"""

import dataclasses
import hashlib
import json
import os
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from t5x_lite.core.errors import InputError
from t5x_lite.core.files import reason
from t5x_lite.core.object_store import DataPath, data_path
from t5x_lite.data.vocabularies.added_tokens import (
    ADDED_NAME,
    BYTES_NAME,
    EOS_ID,
    MOST_EXTRA_IDS,
    PAD_ID,
    TOKENIZER_CONFIG_NAME,
    UNK_ID,
    AddedToken,
    SpecialTokens,
    Stated,
    as_added,
    check_class,
    write_file,
)
from t5x_lite.data.vocabularies.tokenizer import Tokenizer, add_tokens, check_added

Layout = Literal["seqio", "hf"]
NAMES: dict[str, Layout] = {"bytes": "seqio", "bytes-hf": "hf"}
"""Layout for each name of a byte vocabulary in data.vocabulary."""

FIRST_BYTE = 3
NUM_PLAIN = FIRST_BYTE + 256


class Bytes:
    """Byte vocabulary (ByT5): the bytes of UTF-8 text, special tokens and sentinels.

    Attributes:
      layout: numbering of the sentinels: "seqio" or "hf" (transformers).
      extra_ids: number of sentinels.
      size: number of ids.
      added: added tokens, and special tokens with flags that differ from the default.
      model_path: "bytes" or "bytes-hf", the name of the vocabulary for `load_vocabulary`.
    """

    pad_id = PAD_ID
    eos_id = EOS_ID
    unk_id = UNK_ID

    def __init__(
        self,
        *,
        layout: Layout = "seqio",
        extra_ids: int = 100,
        added: Sequence[AddedToken] = (),
    ):
        """Create a byte vocabulary.

        Args:
          layout: numbering of the sentinels: "seqio" or "hf" (transformers).
          extra_ids: number of sentinels.
          added: added tokens, and special tokens with changed flags, each with an id.

        Raises:
          InputError: if `extra_ids` is negative or too large.
        """
        most = 256 if layout == "seqio" else MOST_EXTRA_IDS
        if not 0 <= extra_ids <= most:
            raise InputError(
                f"data.extra_ids of a byte vocabulary must be in [0, {most}], but is {extra_ids}"
            )
        self.layout: Layout = layout
        self.extra_ids = extra_ids
        num_plain = NUM_PLAIN + (extra_ids if layout == "hf" else 0)
        names = {f"<extra_id_{i}>": NUM_PLAIN + i for i in range(extra_ids)}
        special = SpecialTokens(names if layout == "hf" else {}, strip=True, added=added)
        self.added = special.changed
        specials = {*range(FIRST_BYTE), *range(NUM_PLAIN, num_plain)}
        self._names = {t.id or 0: t.content for t in self.added if t.id not in specials}
        self.size = max(num_plain, 1 + max(self._names, default=0))
        self._special: SpecialTokens | None = special if layout == "hf" else None
        if layout != "hf" and self._names:
            own = [token for token in self.added if token.id in self._names]
            self._special = SpecialTokens({}, added=own, plain=True)
        # transformers writes a byte as one character, which may be an added token.
        self._bytes = {
            ord(content): number
            for number, content in self._names.items()
            if len(content) == 1 and ord(content) < 256
        }
        self.model_path: DataPath = Path(next(name for name, of in NAMES.items() if of == layout))

    @property
    def model_bytes(self) -> bytes:
        """Content of bytes.json."""
        said: dict[str, Any] = {"vocabulary": "bytes", "layout": self.layout}
        if self.added:
            said["added_tokens"] = [token.to_json() for token in self.added]
        return json.dumps(said).encode() + b"\n"

    @property
    def reads_as_seqio(self) -> bool:
        """True if seqio's byte vocabulary encodes every text as the same ids."""
        return not self._names

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of layout and `extra_ids`; equal digests imply equal ids."""
        return hashlib.sha256(self.model_bytes + b"%d" % self.extra_ids).hexdigest()

    @property
    def num_sentinels(self) -> int:
        return self.extra_ids

    @property
    def divides_words(self) -> bool:
        """True if no token contains a space between two letters."""
        return not any(c.isspace() for name in self._names.values() for c in name)

    @property
    def sentinel_start(self) -> int:
        """Id of the first sentinel for span corruption; the next sentinels have descending ids.

        Raises:
          InputError: if the ids of the sentinels ascend, as with layout "hf".
        """
        if self.layout == "hf":
            raise InputError(
                "span corruption needs sentinels with descending ids, but the sentinels of the "
                "vocabulary bytes-hf ascend; set data.vocabulary to bytes, with which ByT5 was "
                "pretrained"
            )
        return self.sentinel(0)

    def sentinel(self, index: int) -> int:
        """Return the id of `<extra_id_{index}>`: 258 - index, or 259 + index with layout "hf"."""
        if not 0 <= index < self.extra_ids:
            raise ValueError(
                "the index of a sentinel must be at least 0 and less than extra_ids "
                f"({self.extra_ids}), but is {index}"
            )
        return NUM_PLAIN + index if self.layout == "hf" else NUM_PLAIN - 1 - index

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, without EOS."""
        [ids] = self.encode_batch([text])
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, without EOS."""
        if self._special is None:
            return self._encode(texts)
        return self._special.encode(texts, self._encode)

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        own, coded = self._bytes, [text.encode("utf-8", "replace") for text in texts]
        if not own:
            return [[byte + FIRST_BYTE for byte in text] for text in coded]
        return [[own.get(byte, byte + FIRST_BYTE) for byte in text] for text in coded]

    def decode(self, ids: Iterable[int]) -> str:
        """Decode ids up to the first EOS; padding, unknown ids and invalid UTF-8 are dropped."""
        parts: list[bytes] = []  # bytes, and added tokens between them
        split: list[bytes] = []
        for number in map(int, ids):
            if number == EOS_ID:
                break
            if number in self._names:
                split += [b"".join(parts), self._names[number].encode()]
                parts = []
            elif FIRST_BYTE <= number < NUM_PLAIN:
                parts.append(bytes([number - FIRST_BYTE]))
            elif NUM_PLAIN <= number < NUM_PLAIN + self.extra_ids and self.layout == "hf":
                parts.append(b"<extra_id_%d>" % (number - NUM_PLAIN))
        split.append(b"".join(parts))
        # An added token has a space on both sides, as in transformers' Python tokenizers.
        return " ".join(text for part in split if (text := part.decode("utf-8", "ignore")))

    def files(self) -> dict[str, bytes]:
        """Return the contents of the vocabulary's files, by file name."""
        return {BYTES_NAME: self.model_bytes}

    def save(self, directory: str | os.PathLike[str]) -> Path:
        """Write bytes.json to a directory atomically, and return its path."""
        return write_file(self.model_bytes, Path(directory) / BYTES_NAME)


def read_bytes_vocabulary(path: DataPath, *, extra_ids: int) -> Bytes:
    """Read a byte vocabulary from a bytes.json."""
    layout = read_layout(path)
    return Bytes(layout=layout, extra_ids=extra_ids, added=read_added(path).get("added", ()))


def read_added(path: DataPath) -> dict[str, Any]:
    """Return the added tokens and encoding flags in a bytes.json or special_tokens.json."""
    said = json.loads(path.read_bytes())
    found: dict[str, Any] = {}
    if entries := said.get("added_tokens"):
        if not isinstance(entries, list):
            raise InputError(f"vocabulary {path}: the field added_tokens must be a list")
        found["added"] = tuple(
            as_added(
                entry,
                where=path,
                number=entry.get("id", "missing") if isinstance(entry, dict) else "missing",
            )
            for entry in entries
        )
    for name in ("legacy", "add_prefix_space"):
        if isinstance(said.get(name), bool):
            found[name] = said[name]
    return found


def read_layout(path: DataPath) -> Layout:
    """Return the numbering of sentinels, "seqio" or "hf", in the JSON file of a vocabulary."""
    try:
        layout = json.loads(path.read_text(encoding="utf-8"))["layout"]
    except OSError as error:
        raise InputError(f"cannot read vocabulary {path}: {reason(error)}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f'vocabulary {path} must be a JSON object with the field "layout"'
        ) from error
    if layout not in get_args(Layout):
        raise InputError(
            f"vocabulary {path}: layout must be one of {get_args(Layout)}, but is {layout!r}"
        )
    return layout


_MASK = "[MASK]"
_SPACE = "▁"
_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6
"""Types of pieces in SentencePiece's file format."""
_NEVER = -1e9
"""Score of a piece that must not be used for text."""
_UNIGRAM = 1


def read_spm(path: str | os.PathLike[str], *, compose: bool = True) -> Tokenizer:
    """Read the vocabulary of an encoder from its SentencePiece model (DeBERTa's spm.model).

    Args:
      path: path of the model; tokenizer_config.json and added_tokens.json may be in the same
        directory.
      compose: True to convert text to NFC before the model's normalization, so that decomposed text
        has the same ids as in the SentencePiece library (huggingface/tokenizers#2116).

    Raises:
      InputError: if a file is unreadable, or the model is not a unigram model with [CLS] and [SEP].
    """
    path = data_path(path)
    stated = Stated.of(path.parent)
    check_class(
        stated.config.get("tokenizer_class"),
        ("DebertaV2Tokenizer", "PreTrainedTokenizer", "TokenizersBackend"),
        where=path.with_name(TOKENIZER_CONFIG_NAME),
        form="an spm.model",
    )
    model = _read_model(path)
    spaces = model.normalizer_spec.remove_extra_whitespaces
    if model.trainer_spec.model_type != _UNIGRAM or not spaces:
        what = "keeps repeated spaces" if not spaces else "is not a unigram model"
        raise InputError(
            f"vocabulary {path} is not supported, because the SentencePiece model {what}; have "
            "transformers write a tokenizer.json (AutoTokenizer, save_pretrained) and use that "
            "file"
        )
    try:
        compose = compose and composes(model.normalizer_spec.precompiled_charsmap)
        made = _tokenizer(model, stated, compose=compose, where=path)
    except InputError:
        raise
    except Exception as error:  # the packages raise no narrower type
        what = " ".join(str(error).split())[:120]
        raise InputError(f"vocabulary {path} is a damaged SentencePiece model ({what})") from error
    return Tokenizer(path, content=made.to_str().encode())


def read_xlm_spm(path: str | os.PathLike[str]) -> Tokenizer:
    """Read the vocabulary of XLM-RoBERTa from its SentencePiece model, as in transformers.

    A tokenizer_config.json, special_tokens_map.json and added_tokens.json may be in the same
    directory. By default, <mask> includes the space before it.

    Raises:
      InputError: if a file is unreadable, or the model is not a unigram model with <s> and </s>.
    """
    path = data_path(path)
    stated = Stated.of(path.parent)
    check_class(
        stated.config.get("tokenizer_class"),
        ("XLMRobertaTokenizer", "PreTrainedTokenizer", "TokenizersBackend"),
        where=path.with_name(TOKENIZER_CONFIG_NAME),
        form=f"a {path.name}",
    )
    model = _read_model(path)
    first = [piece.piece for piece in model.pieces[:3]]
    if first != ["<unk>", "<s>", "</s>"] or model.trainer_spec.model_type != _UNIGRAM:
        raise InputError(
            f"vocabulary {path} is not a unigram model that begins with <unk>, <s>, </s>, like "
            "XLM-RoBERTa's; have transformers write a tokenizer.json and use that file"
        )
    try:
        made = _xlm_tokenizer(model, stated, where=path)
    except InputError:
        raise
    except Exception as error:  # the packages raise no narrower type
        what = " ".join(str(error).split())[:120]
        raise InputError(f"vocabulary {path} is a damaged SentencePiece model ({what})") from error
    return Tokenizer(path, content=made.to_str().encode())


def _xlm_tokenizer(model: Any, stated: Stated, *, where: DataPath) -> Any:
    import tokenizers
    from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
    from tokenizers.processors import TemplateProcessing

    special = ["<s>", "<pad>", "</s>", "<unk>"]
    pieces = [(name, 0.0) for name in special]
    pieces += [(str(piece.piece), _score(piece)) for piece in model.pieces[3:]]
    pieces.append(("<mask>", 0.0))
    made = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=3, byte_fallback=False))
    said = {token.content for token in (*stated.explicit, *stated.special)}
    own = {name: AddedToken(name, normalized=False) for name in special}
    own["<mask>"] = AddedToken("<mask>", normalized=False, lstrip=True)
    made.add_special_tokens([token for name, token in own.items() if name not in said])
    charsmap = model.normalizer_spec.precompiled_charsmap
    scheme = "always" if stated.config.get("add_prefix_space", True) else "never"
    metaspace: Any = pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme=scheme)
    pre_tokenizer: Any = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace])
    decoder: Any = decoders.Metaspace(replacement=_SPACE, prepend_scheme=scheme)
    if charsmap:
        normalizer: Any = normalizers.Precompiled(charsmap)
        made.normalizer = normalizer
    made.pre_tokenizer, made.decoder = pre_tokenizer, decoder
    around: Any = TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    made.post_processor = around
    add_tokens(made, (*stated.explicit, *stated.special), where=where)
    check_added(made, where=where)
    return made


def _read_model(path: DataPath) -> Any:
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2

    kinds: Any = sentencepiece_model_pb2
    model = kinds.ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except OSError as error:
        raise InputError(
            f"cannot read vocabulary {path}: {reason(error)}; give a SentencePiece model"
        ) from error
    except DecodeError as error:
        raise InputError(
            f"vocabulary {path} is not a SentencePiece model; download the file again"
        ) from error
    return model


def composes(charsmap: bytes) -> bool:
    """Return True if SentencePiece's normalization joins letters with combining marks.

    Args:
      charsmap: precompiled_charsmap of a model, which may be empty.
    """
    if not charsmap:
        return False
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2

    library: Any = sentencepiece
    kinds: Any = sentencepiece_model_pb2
    model = kinds.ModelProto()
    model.normalizer_spec.precompiled_charsmap = charsmap
    normalizer = library.SentencePieceNormalizer(model_proto=model.SerializeToString())
    probe = "e\u0301 \u1100\u1161"
    return normalizer.Normalize(probe) == normalizer.Normalize(unicodedata.normalize("NFC", probe))


def _tokenizer(model: Any, stated: Stated, *, compose: bool, where: DataPath) -> Any:
    import tokenizers
    from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
    from tokenizers.processors import TemplateProcessing

    config = stated.config
    pieces = [(str(piece.piece), _score(piece)) for piece in model.pieces]
    unknown = [i for i, piece in enumerate(model.pieces) if piece.type == _UNKNOWN]
    if not unknown:
        raise InputError(
            f"vocabulary {where} is not a SentencePiece model, because it has no unknown piece; "
            "download the file again"
        )
    if all(name != _MASK for name, _ in pieces):
        places = {token.content: token.id for token in stated.explicit}
        place = places.get(_MASK)
        place = len(pieces) if place is None else place
        if not len(pieces) <= place <= len(pieces) + MOST_EXTRA_IDS:
            whose = f"the id of {pieces[place][0]!r}" if 0 <= place < len(pieces) else "invalid"
            raise InputError(
                f"vocabulary {where}: file {ADDED_NAME} assigns the id {place}, which is {whose}, "
                f"to the token {_MASK}; the first free id is {len(pieces)}"
            )
        # Ids between the pieces and [MASK] are unused: no text has these names.
        pieces += [(f"[unused{i}]", 0.0) for i in range(len(pieces), place)]
        pieces.append((_MASK, 0.0))
    by_bytes = model.trainer_spec.byte_fallback
    made = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=unknown[0], byte_fallback=by_bytes))
    special = {piece.piece for piece in model.pieces if piece.type in (_CONTROL, _UNKNOWN)}
    special |= {_MASK}
    made.add_special_tokens(
        [AddedToken(name, normalized=False) for name, _ in pieces if name in special]
    )
    said = model.normalizer_spec
    steps: list[Any] = [normalizers.Lowercase()] if config.get("do_lower_case") else []
    if compose:
        steps.append(normalizers.NFC())
    if said.precompiled_charsmap:
        steps.append(normalizers.Precompiled(said.precompiled_charsmap))
    steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip()]
    split = bool(config.get("split_by_punct"))
    # Parts between punctuation marks are separate texts, as in DeBERTa's code.
    scheme = "always" if said.add_dummy_prefix else "never"
    splits: list[Any] = [pre_tokenizers.Punctuation(behavior="isolated")] if split else []
    splits.append(pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme=scheme))
    metaspace: Any = decoders.Metaspace(replacement=_SPACE, prepend_scheme=scheme)
    normalizer: Any = normalizers.Sequence(steps)
    pre_tokenizer: Any = pre_tokenizers.Sequence(splits)
    decoder: Any = decoders.Sequence([decoders.ByteFallback(), metaspace])
    made.normalizer, made.pre_tokenizer = normalizer, pre_tokenizer
    made.decoder = decoder if by_bytes else metaspace
    # Without a tokenizer.json added tokens are found in the unchanged text.
    lowers = bool(config.get("do_lower_case"))
    added = [
        dataclasses.replace(token, normalized=token.normalized and lowers)
        for token in (*stated.explicit, *stated.special)
        if token.content not in special
    ]
    add_tokens(made, added, where=where)
    check_added(made, where=where)
    ids = [(name, made.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    if all(number is not None for _, number in ids):
        around: Any = TemplateProcessing(
            single="[CLS]:0 $A:0 [SEP]:0",
            pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
            special_tokens=ids,
        )
        made.post_processor = around
    return made


def _score(piece: Any) -> float:
    if piece.type == _BYTE:  # "<0x0A>" is a byte, and not six characters of a text
        return _NEVER
    return 0.0 if piece.type == _USER_DEFINED else piece.score
