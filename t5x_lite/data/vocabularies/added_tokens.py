"""Special and added tokens of vocabularies, and the names of vocabulary files.

Added tokens come from tokenizer files next to the model:

    tokenizer_config.json      {"added_tokens_decoder": {"32100": {"content": "<sep>"}}}
    added_tokens.json          {"<sep>": 32100}
    special_tokens_map.json    {"additional_special_tokens": ["<sep>"], "bos_token": "<s>"}

`Stated.of(directory)` reads the three files with the precedence of transformers: an
added_tokens_decoder replaces the other two files. A token without an id gets the next free id.
Settings that change ids and are not implemented raise InputError.

Source: transformers 4.57.6, tokenization_utils_base.py (_from_pretrained), tokenization_utils.py.

Special and added tokens in text are found as in transformers' Python tokenizers:

    tokens = SpecialTokens({"<extra_id_0>": 399})
    tokens.split("a<extra_id_0>b")      -> ["a", 399, "b"]
    tokens.split("a </s> b")            -> ["a ", 1, " b"]

If several tokens begin at a position, the longest is found. Each text between two tokens is encoded
separately. In contrast, seqio finds sentinels only at the start of a word, and encodes `</s>`,
`<pad>` and `<unk>` as ordinary text.

Source: transformers 4.57.6, tokenization_utils.py (PreTrainedTokenizer.tokenize, Trie.split).

The module also defines the special ids that all vocabularies share.
"""

import dataclasses
import json
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from t5x_lite.core.errors import InputError
from t5x_lite.core.files import made_directory, reason, write_atomically
from t5x_lite.core.object_store import DataPath

PAD_ID, EOS_ID, UNK_ID = 0, 1, 2
MOST_EXTRA_IDS = 1 << 16
"""Maximum number of extra ids, which limits the memory that a damaged file can request."""
MODEL_NAME = "sentencepiece.model"
BYTES_NAME = "bytes.json"
LAYOUT_NAME = "special_tokens.json"
"""Name of the file with the rules for special tokens, if they differ from seqio's rules."""
WORDPIECE_NAME = "vocab.txt"
SPM_NAME = "spm.model"
"""File name of DeBERTa's SentencePiece model."""
XLM_NAME = "sentencepiece.bpe.model"
"""File name of XLM-RoBERTa's SentencePiece model, with ids one less than the encoder's ids."""
BPE_NAME, MERGES_NAME = "vocab.json", "merges.txt"
"""File names of RoBERTa's byte-level BPE: pieces with their ids, and ordered merges of pairs."""
ADDED_NAME = "added_tokens.json"
"""Name of the file with ids of tokens that the model lacks, such as [MASK] of an spm.model."""
SPECIAL_MAP_NAME = "special_tokens_map.json"
FAST_NAME = "huggingface_tokenizer.json"
"""Name of a tokenizer.json next to a SentencePiece model; text is encoded with it, if it exists."""
TOKENIZER_NAME = "tokenizer.json"
TOKENIZER_CONFIG_NAME = "tokenizer_config.json"
"""Name of the file with the names of special pieces and the text normalization."""


def write_file(content: bytes, target: Path) -> Path:
    """Write a file atomically, create missing parent directories, and return its path."""
    try:
        with made_directory(target.parent):
            write_atomically(target, content)
    except OSError as error:
        raise InputError(f"cannot write {target}: {reason(error)}") from error
    return target


ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_USUAL = {"[CLS]", "[SEP]", "[MASK]", "[PAD]", "[UNK]", "<s>", "</s>", "<mask>", "<pad>", "<unk>"}
_LISTS = ("additional_special_tokens", "extra_special_tokens")
_FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")
_SHOWN = 60


@dataclasses.dataclass(frozen=True, kw_only=True)
class AddedToken:
    """Token added to a vocabulary, which is found in a text before the text is encoded.

    Attributes:
      content: text of the token.
      id: id of the token; None for the next free id.
      lstrip: True if the token includes the whitespace before it.
      rstrip: True if the token includes the whitespace after it.
      single_word: True if the token is found only as a separate word.
      normalized: True if the token is searched in normalized text.
      special: True for a control token.
    """

    content: str
    id: int | None = None
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = True
    special: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return all fields as an entry of a tokenizer.json."""
        return dataclasses.asdict(self)

    def flags(self) -> dict[str, bool]:
        """Return the flags of the token, such as `lstrip`, by name."""
        return {name: getattr(self, name) for name in _FLAGS}


def as_added(entry: Any, *, where: object, number: Any = None, special: bool = False) -> AddedToken:
    """Convert an entry of a tokenizer file to an `AddedToken`.

    Args:
      entry: the token's text, or a dict with "content" and flags.
      where: path of the file for messages.
      number: id of the token; None if unknown.
      special: True for a control token, if the entry does not set this flag.
    """
    fields = {"content": entry} if isinstance(entry, str) else entry
    if not isinstance(fields, dict) or not isinstance(fields.get("content"), str):
        raise InputError(
            f'{where}: an added token must be a string or an object with "content", but is '
            f"{_short(entry)}"
        )
    content = fields["content"]
    try:
        content.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{where}: the token {ascii(content)[:_SHOWN]} is not Unicode text"
        ) from error
    if not content:
        raise InputError(f"{where}: an added token is the empty string; remove the entry")
    control = fields.get("special", special)
    flags: dict[str, Any] = {
        "special": control,
        "normalized": fields.get("normalized", not control),
    }
    flags |= {name: fields.get(name, False) for name in _FLAGS[:3]}
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise InputError(
                f"{where}: the flag {name} of the added token {_short(content)} must be true or "
                "false"
            )
    if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
        raise InputError(
            f"{where}: the id of the token {_short(content)} must be an integer, but is "
            f"{_short(number)}"
        )
    return AddedToken(content=content, id=number, **flags)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stated:
    """Settings of a tokenizer, read from the JSON files of its directory.

    Attributes:
      directory: directory of the JSON files.
      config: content of tokenizer_config.json, completed by special_tokens_map.json.
      explicit: added tokens that the files list with an id, by ascending id.
      special: control tokens that the files list without an id; they get ids in this order.
    """

    directory: DataPath
    config: Mapping[str, Any]
    explicit: tuple[AddedToken, ...] = ()
    special: tuple[AddedToken, ...] = ()

    @classmethod
    def of(cls, directory: DataPath) -> "Stated":
        """Read the tokenizer's JSON files in a directory; missing files are ignored.

        Raises:
          InputError: if a file is damaged or has a setting that is not implemented.
        """
        where = directory / TOKENIZER_CONFIG_NAME
        config = dict(read_object(where))
        check_settings(config, where=where)
        entries = config.get("added_tokens_decoder")
        explicit: list[AddedToken] = []
        if entries is not None:
            if not isinstance(entries, dict):
                raise InputError(f"{where}: the field added_tokens_decoder must be a JSON object")
            for key, entry in entries.items():
                number = int(key) if key.isascii() and key.isdigit() and len(key) < 10 else key
                explicit.append(as_added(entry, where=where, number=number))
        else:
            config |= _merged(config, read_object(directory / SPECIAL_MAP_NAME))
            names = {token.content for token in _specials(config, where=where)} | _USUAL
            where_added = directory / ADDED_NAME
            for content, number in read_object(where_added).items():
                number = "null" if number is None else number
                entry = {"content": content, "special": content in names}
                explicit.append(as_added(entry, where=where_added, number=number))
        known: dict[str, AddedToken] = {}
        ids: dict[int | None, str] = {}
        for token in explicit:
            if (other := ids.setdefault(token.id, token.content)) != token.content:
                raise InputError(
                    f"{directory}: the added tokens {_short(other)} and {_short(token.content)} "
                    f"both have the id {token.id}; give each a different id"
                )
            if token.content in known:
                raise InputError(
                    f"{directory}: the added token {_short(token.content)} has two ids, "
                    f"{known[token.content].id} and {token.id}; keep one"
                )
            known[token.content] = token
        special: dict[str, AddedToken] = {}
        for token in _specials(config, where=where):
            if token.content not in known:
                special.setdefault(token.content, token)
        return cls(
            directory=directory,
            config=config,
            explicit=tuple(sorted(explicit, key=lambda token: token.id or 0)),
            special=tuple(special.values()),
        )

    def role(self, name: str) -> str | None:
        """Return the text of a special token by its role, such as "cls"; None if it is not set."""
        found = self.config.get(f"{name}_token")
        return as_added(found, where=self.directory).content if found else None

    def resolved(
        self, id_of: Callable[[str], int | None], size: int, *, known: Container[str] = ()
    ) -> tuple[AddedToken, ...]:
        """Return all added tokens, with the same ids as in transformers' Python tokenizers.

        Args:
          id_of: function that returns the id of a token of the model, or None for an unknown token.
          size: number of ids of the model.
          known: special tokens to exclude from the result.
        """
        tokens = list(self.explicit)
        beyond = sum(id_of(token.content) is None for token in tokens)
        for token in self.special:
            if token.content in known:
                continue
            number = id_of(token.content)
            if number is None:
                number, beyond = size + beyond, beyond + 1
            tokens.append(dataclasses.replace(token, id=number))
        return tuple(tokens)


_NOT_IMPLEMENTED: Mapping[str, Sequence[Any]] = {
    "split_special_tokens": (False,),
    "auto_map": (),
    "never_split": ([],),
    "do_basic_tokenize": (True,),
    "sp_model_kwargs": ({},),
    "vocab_type": ("spm",),
    "word_tokenizer_type": ("basic",),
    "subword_tokenizer_type": ("wordpiece",),
    "wordpieces_prefix": ("##",),
    "clean_text": (True,),
}
"""Settings that change ids and are not implemented, with the values that are supported.

None is always supported.
"""


def check_settings(config: Mapping[str, Any], *, where: object) -> None:
    """Raise InputError if a tokenizer's config has an unsupported setting that affects ids."""
    for name, values in _NOT_IMPLEMENTED.items():
        value = config.get(name)
        if value is not None and value not in values:
            raise InputError(
                f"{where}: the setting {name} {_short(value)} is not supported; "
                "remove it if the model was trained without it, or have transformers write a "
                f"tokenizer.json without {name}"
            )


def check_class(name: Any, known: Iterable[str], *, where: object, form: str) -> None:
    """Raise InputError if the class of a tokenizer is not supported.

    Args:
      name: tokenizer_class of a tokenizer_config.json; None is always supported.
      known: supported names, without "Fast" at the end.
      where: path of the file for messages.
      form: name of the vocabulary file, for messages.
    """
    if name is None or (isinstance(name, str) and name.removesuffix("Fast") in known):
        return
    raise InputError(
        f"{where}: tokenizer_class {_short(name)} is not supported with {form}; if transformers "
        "has a fast tokenizer of this class, write a tokenizer.json with its save_pretrained"
    )


def read_object(path: DataPath) -> Mapping[str, Any]:
    """Return the object in a JSON file, or {} if the file does not exist."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(
            f"cannot read vocabulary {path}: {reason(error)}; fix or remove the file"
        ) from error
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"vocabulary {path} is not JSON ({error}); fix or remove the file"
        ) from error
    if not isinstance(found, dict):
        raise InputError(f"vocabulary {path} must be a JSON object, but is {_short(found)}")
    return found


def _merged(config: Mapping[str, Any], special_map: Mapping[str, Any]) -> dict[str, Any]:
    names = [f"{role}_token" for role in ROLES]
    found = {name: special_map[name] for name in names if special_map.get(name) is not None}
    for name in _LISTS:
        if isinstance(more := special_map.get(name), list):
            said = config.get(name)
            own = said if isinstance(said, list) else []
            found[name] = [*own, *(token for token in more if token not in own)]
    return found


def _specials(config: Mapping[str, Any], *, where: object) -> list[AddedToken]:
    entries = [config.get(f"{role}_token") for role in ROLES]
    for name in _LISTS:
        found = config.get(name)
        entries += (
            found.values() if isinstance(found, dict) else found if isinstance(found, list) else []
        )
    return [
        dataclasses.replace(as_added(entry, where=where, special=True), special=True)
        for entry in entries
        if isinstance(entry, str | dict) and entry
    ]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


NAMES = {"<pad>": PAD_ID, "</s>": EOS_ID, "<unk>": UNK_ID}
"""Special tokens of every tokenizer in the T5 family, with their ids."""


class SpecialTokens:
    """Splitter of text at special and added tokens, before the text between them is encoded.

    Args:
      sentinels: ids of the sentinels by their text.
      strip: True if <pad>, </s> and <unk> include the spaces around them, as in ByT5.
      strip_sentinels: True if sentinels include the spaces around them, as in T5.
      added: added tokens; an entry for a sentinel or special token replaces its flags.
      plain: True if <pad>, </s> and <unk> are ordinary text.

    Attributes:
      changed: entries of `added` that are new tokens or replace flags.
    """

    def __init__(
        self,
        sentinels: Mapping[str, int],
        *,
        strip: bool = False,
        strip_sentinels: bool = False,
        added: Iterable[AddedToken] = (),
        plain: bool = False,
    ):
        self._tokens = {
            name: AddedToken(
                content=name,
                id=number,
                lstrip=stripped,
                rstrip=stripped,
                normalized=False,
                special=True,
            )
            for names, stripped in ((sentinels, strip_sentinels), ({} if plain else NAMES, strip))
            for name, number in names.items()
        }
        self.changed = tuple(token for token in added if not _same(token, self._tokens))
        self._tokens |= {token.content: token for token in self.changed}
        names = sorted(self._tokens, key=len, reverse=True)
        self._pattern = re.compile(f"({'|'.join(map(re.escape, names))})") if names else None

    def split(self, text: str) -> list[str | int]:
        """Split a text into ids of special tokens and the texts between these tokens."""
        if self._pattern is None:
            return [text] if text else []
        parts = [part for part in self._pattern.split(text) if part]
        for i, part in enumerate(parts):
            token = self._tokens.get(part)
            if token is None:
                continue
            left = parts[i - 1] if i else ""
            right = parts[i + 1] if i + 1 < len(parts) else ""
            if token.rstrip and right:
                parts[i + 1] = right.lstrip()
            if token.lstrip and left:
                parts[i - 1] = left.rstrip()
            if token.single_word and left and left[-1] != " ":
                parts[i - 1] += part
                parts[i] = ""
            elif token.single_word and right and right[0] != " ":
                parts[i + 1] = part + parts[i + 1]
                parts[i] = ""
        found: list[str | int] = []
        for part in parts:
            token = self._tokens.get(part)
            if part:
                found.append(part if token is None or token.id is None else token.id)
        return found

    def encode(
        self, texts: Sequence[str], plain: Callable[[list[str]], list[list[int]]]
    ) -> list[list[int]]:
        """Return the token ids of each text.

        Args:
          texts: any texts.
          plain: function that encodes a list of texts without special tokens.
        """
        split = [self.split(text) for text in texts]
        encoded = iter(plain([part for parts in split for part in parts if isinstance(part, str)]))
        return [
            [i for part in parts for i in (next(encoded) if isinstance(part, str) else [part])]
            for parts in split
        ]


def _same(token: AddedToken, known: Mapping[str, AddedToken]) -> bool:
    other = known.get(token.content)
    flags = ("id", "lstrip", "rstrip", "single_word")
    return other is not None and all(getattr(token, f) == getattr(other, f) for f in flags)
