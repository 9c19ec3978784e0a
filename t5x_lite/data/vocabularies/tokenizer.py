"""Vocabularies of encoders: BERT's WordPiece, byte-level BPE, and any tokenizer.json.

    vocabulary = load_vocabulary("bert/vocab.txt")     # WordPiece: one piece per line
    vocabulary.encode("Unaffable dogs")                # ids of "una", "##ffa", "##ble", "dogs"
    vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id, vocabulary.pad_id, vocabulary.unk_id

    load_vocabulary("xlm-roberta/tokenizer.json")      # byte-level BPE, unigram, WordPiece, ...
    load_vocabulary("roberta/vocab.json")              # byte-level BPE, with merges.txt next to it

A tokenizer_config.json in the same directory names the special pieces. By default, the names are
[CLS] [SEP] [MASK] [PAD] [UNK], or <s> </s> <mask> <pad> <unk>. The file also sets do_lower_case for
a vocab.txt; by default, text is lower-cased if no piece has a capital letter. Encoding adds no
special tokens; special tokens in a text are found as in transformers.

Sources: transformers' models/bert/tokenization_bert.py; google-research/bert tokenization.py.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from t5x_lite.core.errors import InputError
from t5x_lite.core.files import reason
from t5x_lite.core.object_store import DataPath, data_path
from t5x_lite.data.vocabularies.added_tokens import (
    BPE_NAME,
    MERGES_NAME,
    MOST_EXTRA_IDS,
    TOKENIZER_CONFIG_NAME,
    TOKENIZER_NAME,
    WORDPIECE_NAME,
    AddedToken,
    Stated,
    check_class,
    read_object,
    write_file,
)

_USUAL = {
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
}
_WORDPIECE_OPTIONS = ("do_lower_case", "strip_accents", "tokenize_chinese_chars")
_WORDPIECE_CLASSES = frozenset(
    (
        "Bert",
        "Electra",
        "DistilBert",
        "ConvBert",
        "MobileBert",
        "SqueezeBert",
        "Funnel",
        "LayoutLM",
        "Lxmert",
        "MPNet",
        "Retribert",
        "DPRContextEncoder",
        "DPRQuestionEncoder",
        "DPRReader",
        "RealmBert",
    )
)
_PYTHON_CLASSES = frozenset(
    (
        "BertJapanese",
        "BertGeneration",
        "Bertweet",
        "Phobert",
        "Flaubert",
        "XLM",
        "CTRL",
        "ProphetNet",
        "Esm",
        "Canine",
        "Tapas",
        "Cpm",
        "CpmAnt",
        "RoCBert",
        "FSMT",
        "Biogpt",
        "Luke",
        "MLuke",
        "Perceiver",
        "ByT5",
    )
)
"""Classes of tokenizers that have no tokenizer.json."""
_GENERAL = ("PreTrainedTokenizer", "TokenizersBackend")
_PROBES = ("a" * 40 + "!", " " * 40 + "!", "1" * 40 + "!", "aA1.'" * 8, "\u0378")
"""Texts on which a damaged tokenizer or an unbounded regular expression fails."""
_UNASSIGNED = "\u0378"
"""Code point without a character, for which no vocabulary has a piece."""
_LONGEST_WORD = 100
"""Maximum number of characters of a word in WordPiece; a longer word is unknown, as in BERT."""


class Tokenizer:
    """Vocabulary of an encoder, from a tokenizer.json or a vocab.txt.

    Attributes:
      model_path: path of the file.
      model_bytes: content of the file, or of a tokenizer.json with the same vocabulary.
      names: texts of the special pieces, by "cls", "sep", "mask", "pad" and "unk".
      cls_id: id of the token at the beginning of a row.
      sep_id: id of the token at the end of a text.
      mask_id: id of the mask token.
      pad_id: padding id.
      unk_id: id of unknown text.
      eos_id: same as `sep_id`.
      size: number of ids, one more than the largest id.
      extra_ids: 0, the number of sentinels for span corruption.
      num_sentinels: 0.
      special_ids: ids of all special pieces.
    """

    extra_ids = 0
    num_sentinels = 0

    def __init__(self, path: str | os.PathLike[str], *, content: bytes | None = None):
        """Read a tokenizer file, and the tokenizer_config.json in the same directory, if it exists.

        Args:
          path: path of a vocab.txt (any name with .txt) or a tokenizer.json.
          content: content of a tokenizer.json to which the file at `path` was converted; None to
            read the file.

        Raises:
          InputError: if a file is unreadable or not a tokenizer, or a special piece is missing.
        """
        self.model_path = data_path(path)
        self.model_bytes = _read(self.model_path) if content is None else content
        stated = Stated.of(self.model_path.parent)
        config, where = stated.config, self.model_path.with_name(TOKENIZER_CONFIG_NAME)
        self._is_wordpiece = self.model_path.suffix == ".txt"
        self._added: tuple[AddedToken, ...] = ()
        if self._is_wordpiece:
            known = {f"{name}Tokenizer" for name in _WORDPIECE_CLASSES} | {*_GENERAL}
            check_class(config.get("tokenizer_class"), known, where=where, form="a vocab.txt")
            pieces = _lines(self.model_bytes, where=self.model_path)
            self.names = _special_names(
                config,
                {*pieces, *(token.content for token in stated.explicit)},
                where=self.model_path,
            )
            self._options = _wordpiece_options(config, pieces, self.names)
            self._tokenizer = _wordpiece(pieces, self._options, unknown=self.names["unk"])
            names = [t for t in stated.explicit if t.content in self.names.values()]
            plain = {*self.names.values()} - {token.content for token in names}
            add_tokens(
                self._tokenizer,
                [*_plain_specials(plain, pieces), *stated.explicit, *stated.special],
                where=self.model_path,
            )
            check_added(self._tokenizer, where=self.model_path)
            self._added = _added_of(self._tokenizer, without=plain)
        else:
            _check_json_class(config, where=where)
            if content is None:
                self.model_bytes = _with_settings(self.model_bytes, config, where=self.model_path)
            self._tokenizer = load_tokenizer(self.model_bytes, where=self.model_path)
            before = self._tokenizer.to_str()
            if content is None:  # if not, `read_spm` has added them
                add_stated(self._tokenizer, stated, where=self.model_path)
            if self._tokenizer.to_str() != before:
                self.model_bytes = self._tokenizer.to_str().encode()
            there = set(self._tokenizer.get_vocab(with_added_tokens=True))
            self.names = _special_names(config, there, where=self.model_path)
            self._options = {}
        ids = {role: self._tokenizer.token_to_id(name) for role, name in self.names.items()}
        self.cls_id: int = ids["cls"]
        self.sep_id: int = ids["sep"]
        self.mask_id: int = ids["mask"]
        self.pad_id: int = ids["pad"]
        self.unk_id: int = ids["unk"]
        self.eos_id: int = ids["sep"]
        self.size: int = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values())
        added = self._tokenizer.get_added_tokens_decoder()
        special = {number for number, token in added.items() if token.special}
        self.special_ids = frozenset({*ids.values(), *special})

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the vocabulary's files; equal digests imply equal ids."""
        return hashlib.sha256(b"".join(self.files().values())).hexdigest()

    @property
    def divides_words(self) -> bool:
        """True if no token contains a space between two letters."""
        added = self._tokenizer.get_added_tokens_decoder().values()
        if self._tokenizer.pre_tokenizer is None or any(
            character.isspace() for token in added for character in token.content
        ):
            return False
        text, normalizer = "ab cd", self._tokenizer.normalizer
        normalized = text if normalizer is None else normalizer.normalize_str(text)
        parts = self._tokenizer.pre_tokenizer.pre_tokenize_str(normalized)
        return len(normalized) == len(text) and not any(a < 2 < end for _, (a, end) in parts)

    @property
    def sentinel_start(self) -> int:
        """Raise InputError, because this vocabulary has no sentinels for span corruption."""
        raise InputError(
            f"vocabulary {self.model_path} has no sentinels, which text-to-text objectives need; "
            "use a SentencePiece model, or an encoder's objective"
        )

    def sentinel(self, index: int) -> int:
        """Raise InputError, because this vocabulary has no sentinels for span corruption."""
        del index
        return self.sentinel_start

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, without special tokens around it."""
        [ids] = self.encode_batch([text])
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, without special tokens; texts are encoded in parallel."""
        return [one.ids for one in encoded(self._tokenizer, texts, where=self.model_path)]

    def encode_with_offsets(
        self, texts: Sequence[str]
    ) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Return the ids of each text, with the character span of each id."""
        found = encoded(self._tokenizer, texts, where=self.model_path, offsets=True)
        return [(one.ids, one.offsets) for one in found]

    def encode_with_words(
        self, texts: Sequence[str]
    ) -> list[tuple[list[int], list[tuple[int, int]], list[int | None]]]:
        """Return the ids of each text, with the character span and the word number of each id."""
        found = encoded(self._tokenizer, texts, where=self.model_path, offsets=True)
        return [(one.ids, one.offsets, one.word_ids) for one in found]

    def decode(self, ids: Iterable[int]) -> str:
        """Decode ids; special pieces are dropped, and ids from `size` up are read as `unk_id`."""
        known = [int(i) if i < self.size else self.unk_id for i in ids]
        return self._tokenizer.decode(known, skip_special_tokens=True)

    def pieces(self) -> list[str]:
        """Return the text of each id's token; "" for an id without a token."""
        return [self._tokenizer.id_to_token(number) or "" for number in range(self.size)]

    def description(self) -> dict[str, Any]:
        """Return the content of an equivalent tokenizer.json."""
        return json.loads(self._tokenizer.to_str())

    def files(self) -> dict[str, bytes]:
        """Return the contents of the vocabulary's files, by file name."""
        config = {f"{role}_token": name for role, name in self.names.items()} | self._options
        if self._added:
            config["added_tokens_decoder"] = {
                str(token.id): {"content": token.content, **token.flags()} for token in self._added
            }
        return {
            WORDPIECE_NAME if self._is_wordpiece else TOKENIZER_NAME: self.model_bytes,
            TOKENIZER_CONFIG_NAME: json.dumps(config, indent=1, sort_keys=True).encode() + b"\n",
        }

    def has_the_ids_of(self, other: object) -> bool:
        """Return True if another vocabulary encodes every text as the same ids."""
        return isinstance(other, Tokenizer) and self.description() == other.description()

    def save(self, directory: str | os.PathLike[str]) -> Path:
        """Write the vocabulary's files to a directory atomically, and return the model's path."""
        for name, content in reversed(self.files().items()):
            path = write_file(content, Path(directory) / name)
        return path


def _read(path: DataPath) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot read vocabulary {path}: {reason(error)}; give a vocab.txt or a tokenizer.json"
        ) from error


def _special_names(
    config: Mapping[str, Any], pieces: set[str], *, where: DataPath
) -> Mapping[str, str]:
    """Return the texts of the special pieces, by "cls", "sep", "mask", "pad" and "unk"."""
    names = {}
    for role, usual in _USUAL.items():
        said = config.get(f"{role}_token")
        said = said.get("content") if isinstance(said, dict) else said
        first = (said,) if isinstance(said, str) else ()
        candidates = [name for name in (*first, *usual) if name in pieces]
        if candidates:
            names[role] = candidates[0]
    missing = [" or ".join(_USUAL[role]) for role in _USUAL if role not in names]
    if missing:
        raise InputError(
            f"vocabulary {where} has no piece {', no piece '.join(missing)}; use the vocabulary "
            "of an encoder, or name the special tokens (cls_token, ...) in a "
            f"{TOKENIZER_CONFIG_NAME} in the same directory"
        )
    return names


# WordPiece.


def _lines(content: bytes, *, where: DataPath) -> list[str]:
    try:
        pieces = content.decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"vocabulary {where} is not UTF-8 (byte {error.start})") from error
    pieces = [piece.removesuffix("\r") for piece in pieces]
    lines: dict[str, int] = {}
    for number, piece in enumerate(pieces, start=1):
        if lines.setdefault(piece, number) != number:
            raise InputError(
                f"vocabulary {where}:{number}: {piece!r} is also on line {lines[piece]}, but "
                "pieces of a vocab.txt must be different"
            )
    return pieces


def _wordpiece_options(
    config: Mapping[str, Any], pieces: Sequence[str], names: Mapping[str, str]
) -> dict[str, Any]:
    """Return the normalization options in the config, or defaults inferred from the pieces."""
    special = {*names.values()}
    capitals = any(piece != piece.lower() for piece in pieces if piece not in special)
    options = {"do_lower_case": not capitals}
    said = {name: config[name] for name in _WORDPIECE_OPTIONS if config.get(name) is not None}
    return {**options, **said}


def _wordpiece(pieces: Sequence[str], options: Mapping[str, Any], *, unknown: str) -> Any:
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers

    ids = {piece: number for number, piece in enumerate(pieces)}
    made = tokenizers.Tokenizer(
        models.WordPiece(ids, unk_token=unknown, max_input_chars_per_word=_LONGEST_WORD)
    )
    normalizer: Any = normalizers.BertNormalizer(
        lowercase=bool(options["do_lower_case"]),
        strip_accents=options.get("strip_accents"),
        handle_chinese_chars=options.get("tokenize_chinese_chars", True),
    )
    pre_tokenizer: Any = pre_tokenizers.BertPreTokenizer()
    decoder: Any = decoders.WordPiece(prefix="##")
    made.normalizer, made.pre_tokenizer, made.decoder = normalizer, pre_tokenizer, decoder
    return made


# tokenizer.json.


def load_tokenizer(content: bytes, *, where: DataPath) -> Any:
    """Load a tokenizers.Tokenizer from the bytes of a tokenizer.json.

    Raises:
      InputError: if the content is damaged, or encoding a probe text fails.
    """
    import tokenizers

    with _panics_as_errors(f"vocabulary {where} is not a tokenizer.json"):
        loaded = tokenizers.Tokenizer.from_str(content.decode())
        loaded.no_padding()
        loaded.no_truncation()
    ids = loaded.get_vocab(with_added_tokens=True).values()
    if ids and max(ids) >= len(ids) + MOST_EXTRA_IDS:  # each id up to the largest takes memory
        raise InputError(
            f"vocabulary {where} has {len(ids)} pieces, but the largest id is {max(ids)}; "
            "download the file again"
        )
    check_added(loaded, where=where)
    with _panics_as_errors(f"vocabulary {where} is not a tokenizer.json"):
        loaded.encode(_UNASSIGNED, add_special_tokens=False)  # fails without an unknown piece
    with _panics_as_errors(f"vocabulary {where}: a step of the tokenizer fails on a probe text"):
        for probe in _PROBES:
            loaded.encode(probe, add_special_tokens=False)
    return loaded


def encoded(
    tokenizer: Any, texts: Sequence[str], *, where: DataPath, offsets: bool = False
) -> list[Any]:
    """Encode texts with a tokenizers.Tokenizer in parallel, without adding special tokens.

    Args:
      tokenizer: a tokenizers.Tokenizer.
      texts: any strings.
      where: path of the tokenizer's file for messages.
      offsets: True to compute also the character positions of each token.
    """
    encode = tokenizer.encode_batch if offsets else tokenizer.encode_batch_fast
    with _panics_as_errors(f"vocabulary {where}: cannot encode one of {len(texts)} texts"):
        return encode(list(texts), add_special_tokens=False)


@contextlib.contextmanager
def _panics_as_errors(what: str) -> Iterator[None]:
    """Convert exceptions of the tokenizers package, including Rust's panics, to InputError."""
    try:
        yield
    except BaseException as error:  # the package raises no narrower type
        if not isinstance(error, Exception) and type(error).__module__ != "pyo3_runtime":
            raise
        reason = " ".join(str(error).split())[:120]
        raise InputError(f"{what} ({reason})") from error


def _check_json_class(config: Mapping[str, Any], *, where: DataPath) -> None:
    """Raise InputError if the tokenizer class assigns other ids than its tokenizer.json."""
    name = config.get("tokenizer_class")
    if isinstance(name, str) and name.removesuffix("Tokenizer") in _PYTHON_CLASSES:
        raise InputError(
            f"{where}: tokenizer_class {name!r} is not supported, and the tokenizer.json in the "
            "same directory assigns other ids than this class"
        )


def _with_settings(content: bytes, config: Mapping[str, Any], *, where: DataPath) -> bytes:
    """Return a tokenizer.json with the settings of a tokenizer_config.json applied."""
    names = ("do_lower_case", "strip_accents", "tokenize_chinese_chars", "add_prefix_space")
    names = [name for name in (*names, "split_by_punct") if isinstance(config.get(name), bool)]
    try:
        said = json.loads(content) if names else None
    except (ValueError, RecursionError):
        return content  # `load_tokenizer` raises the error
    if not isinstance(said, dict):
        return content
    changed = False
    normalizer, pre_tokenizer = said.get("normalizer"), said.get("pre_tokenizer")
    if isinstance(normalizer, dict) and normalizer.get("type") == "BertNormalizer":
        fields = {
            "do_lower_case": "lowercase",
            "strip_accents": "strip_accents",
            "tokenize_chinese_chars": "handle_chinese_chars",
        }
        for name, field in fields.items():
            if name in names and normalizer.get(field) != config[name]:
                normalizer[field], changed = config[name], True
    steps = pre_tokenizer if isinstance(pre_tokenizer, dict) else {}
    if steps.get("type") == "ByteLevel" and "add_prefix_space" in names:
        changed |= steps.get("add_prefix_space") != config["add_prefix_space"]
        steps["add_prefix_space"] = config["add_prefix_space"]
    if str(config.get("tokenizer_class")).startswith("DebertaV2"):
        kinds = {"do_lower_case": '"Lowercase"', "split_by_punct": '"Punctuation"'}
        text = json.dumps([normalizer, pre_tokenizer])
        for name, step in kinds.items():
            if name in names and config[name] != (step in text):
                raise InputError(
                    f"vocabulary {where}: {TOKENIZER_CONFIG_NAME} has {name} {config[name]}, but "
                    f"the tokenizer.json has {'a' if step in text else 'no'} step {step}; correct "
                    "the file that differs from the model's training"
                )
    return json.dumps(said, ensure_ascii=False).encode() if changed else content


# RoBERTa's vocab.json and merges.txt.

_ROBERTA_NAMES = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}
_BYTE_LEVEL_CLASSES = ("RobertaTokenizer", "LongformerTokenizer", *_GENERAL)


def read_byte_level(path: str | os.PathLike[str]) -> Tokenizer:
    """Read a byte-level BPE vocabulary, such as RoBERTa's, from vocab.json and merges.txt.

    A tokenizer_config.json in the same directory may set `add_prefix_space` and the special pieces;
    a special_tokens_map.json may also set the special pieces. By default, <mask> includes the space
    before it.

    Source: transformers 4.57, tokenization_roberta.py and RobertaConverter.

    Raises:
      InputError: if a file is missing or damaged, or the tokenizer class is not supported.
    """
    path = data_path(path)
    stated = Stated.of(path.parent)
    where = path.with_name(TOKENIZER_CONFIG_NAME)
    known = _BYTE_LEVEL_CLASSES
    check_class(stated.config.get("tokenizer_class"), known, where=where, form=f"a {BPE_NAME}")
    ids = read_object(path)
    if not ids or not all(isinstance(i, int) and not isinstance(i, bool) for i in ids.values()):
        raise InputError(f"vocabulary {path} must be a JSON object of pieces and their ids")
    merges_path = path.with_name(MERGES_NAME)
    merges = []
    lines = _merge_lines(merges_path)
    for number, line in enumerate(lines, start=1):
        pair = line.removesuffix("\r").split(" ")
        if not line or (number == 1 and line.startswith("#version")):
            continue
        if len(pair) != 2 or not all(piece in ids for piece in (*pair, "".join(pair))):
            raise InputError(
                f"vocabulary {merges_path}:{number}: the merge {line!r} must join two pieces of "
                f"{BPE_NAME} to a third piece of {BPE_NAME}; use the two files of one model"
            )
        merges.append(pair)
    names = {role: stated.role(role) or usual for role, usual in _ROBERTA_NAMES.items()}
    said = {token.content for token in (*stated.explicit, *stated.special)}
    special = [
        AddedToken(content=name, special=True, normalized=role != "mask", lstrip=role == "mask")
        for role, name in names.items()
        if name in ids and name not in said
    ]
    known_specials = [token for token in stated.special if token.content in ids]
    prefix_space = bool(stated.config.get("add_prefix_space", False))
    sep, cls = ([name, ids.get(name, 0)] for name in (names["eos"], names["bos"]))
    description = {
        "version": "1.0",
        "added_tokens": [
            {**token.to_json(), "id": ids[token.content]}
            for token in sorted((*special, *known_specials), key=lambda token: ids[token.content])
        ],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": prefix_space,
                          "trim_offsets": True, "use_regex": True},
        "post_processor": {"type": "RobertaProcessing", "sep": sep, "cls": cls,
                           "trim_offsets": True, "add_prefix_space": prefix_space},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                    "use_regex": True},
        "model": {"type": "BPE", "continuing_subword_prefix": "", "end_of_word_suffix": "",
                  "fuse_unk": False, "byte_fallback": False, "vocab": dict(ids),
                  "merges": merges},
    }  # fmt: skip
    made = load_tokenizer(json.dumps(description).encode(), where=path)
    add_stated(made, stated, where=path)
    return Tokenizer(path, content=made.to_str().encode())


def _merge_lines(path: DataPath) -> list[str]:
    try:
        return path.read_bytes().decode().removesuffix("\n").split("\n")
    except FileNotFoundError as error:
        raise InputError(
            f"vocabulary {path} does not exist, but {BPE_NAME} requires it; copy both files to "
            "the same directory"
        ) from error
    except OSError as error:
        raise InputError(f"cannot read vocabulary {path}: {reason(error)}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"vocabulary {path} is not UTF-8 (byte {error.start})") from error


# Added tokens.


def _plain_specials(names: Iterable[str], pieces: Sequence[str]) -> list[AddedToken]:
    return [
        AddedToken(content=name, normalized=False, special=True)
        for name in sorted(names, key=pieces.index)
    ]


def add_tokens(tokenizer: Any, tokens: Iterable[AddedToken], *, where: DataPath) -> None:
    """Add tokens to a tokenizers.Tokenizer; raise InputError if a token gets an unexpected id."""
    import tokenizers

    for token in tokens:
        made = tokenizers.AddedToken(token.content, **token.flags())
        if token.special:
            tokenizer.add_special_tokens([made])
        else:
            tokenizer.add_tokens([made])
        number = tokenizer.token_to_id(token.content)
        if token.id is not None and number != token.id:
            raise InputError(
                f"vocabulary {where}: the added token {token.content!r} has the id {token.id} in "
                "the JSON files of the tokenizer, but the loaded tokenizer gives it the id "
                f"{number}; have transformers write a tokenizer.json"
            )


def add_stated(tokenizer: Any, stated: Stated, *, where: DataPath) -> None:
    """Add the added tokens in a tokenizer's JSON files to a tokenizers.Tokenizer."""
    there = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    special = [token for token in stated.special if token.content not in there]
    add_tokens(tokenizer, [*stated.explicit, *special], where=where)
    check_added(tokenizer, where=where)


def check_added(tokenizer: Any, *, where: DataPath) -> None:
    """Raise InputError if normalization makes an added token empty."""
    normalizer = tokenizer.normalizer
    for token in tokenizer.get_added_tokens_decoder().values():
        if normalizer is None or not token.normalized:
            continue
        with _panics_as_errors(f"vocabulary {where} has a damaged normalizer"):
            left = normalizer.normalize_str(token.content)
        if not left:
            raise InputError(
                f"vocabulary {where}: normalization makes the added token {token.content!r} "
                'empty; set its "normalized" to false'
            )


def _added_of(tokenizer: Any, *, without: Iterable[str]) -> tuple[AddedToken, ...]:
    names = {*without}
    return tuple(
        AddedToken(
            content=token.content,
            id=number,
            lstrip=token.lstrip,
            rstrip=token.rstrip,
            single_word=token.single_word,
            normalized=token.normalized,
            special=token.special,
        )
        for number, token in sorted(tokenizer.get_added_tokens_decoder().items())
        if token.content not in names
    )
