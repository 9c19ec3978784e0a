"""Special and added tokens, and the files of vocabularies.

Added tokens: what tokenizer files say besides the pieces of the model.

    tokenizer_config.json      {"added_tokens_decoder": {"32100": {"content": "<sep>"}}}
    added_tokens.json          {"<sep>": 32100}
    special_tokens_map.json    {"additional_special_tokens": ["<sep>"], "bos_token": "<s>"}

`Stated.of(directory)` reads the three files with the precedence of transformers: an
added_tokens_decoder replaces the other two files. A token without an id gets the next free id.
Settings that change ids and are not implemented raise an error that names them.

Source: transformers 4.57.6, tokenization_utils_base.py (_from_pretrained), tokenization_utils.py.

Special and added tokens in text, found as transformers' Python tokenizers find them.

    tokens = SpecialTokens({"<extra_id_0>": 399})
    tokens.split("a<extra_id_0>b")      -> ["a", 399, "b"]
    tokens.split("a </s> b")            -> ["a ", 1, " b"]

The longest token that begins first is taken. What is between tokens is encoded by itself, as if
each part were a text of its own. seqio instead finds sentinels at the start of a word, and `</s>`,
`<pad>` and `<unk>` never: they are characters.

Source: transformers 4.57.6, tokenization_utils.py (PreTrainedTokenizer.tokenize, Trie.split).

What vocabularies have in common: the special ids, the names of their files, writing one.
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
"""Each is made as a piece: a number from a file may be any."""
MODEL_NAME = "sentencepiece.model"
BYTES_NAME = "bytes.json"
LAYOUT_NAME = "special_tokens.json"
"""Beside a SentencePiece model that does not read special tokens as seqio does."""
WORDPIECE_NAME = "vocab.txt"
SPM_NAME = "spm.model"
"""DeBERTa's: a SentencePiece model of an encoder."""
XLM_NAME = "sentencepiece.bpe.model"
"""XLM-RoBERTa's: a SentencePiece model whose ids are one less than the encoder's."""
BPE_NAME, MERGES_NAME = "vocab.json", "merges.txt"
"""RoBERTa's: byte-level pieces with their ids, and the pairs that are merged, in order."""
ADDED_NAME = "added_tokens.json"
"""Ids of tokens that the model does not have, such as [MASK] of an spm.model."""
SPECIAL_MAP_NAME = "special_tokens_map.json"
FAST_NAME = "huggingface_tokenizer.json"
"""Next to a SentencePiece model: the tokenizer.json that reads text in its place."""
TOKENIZER_NAME = "tokenizer.json"
TOKENIZER_CONFIG_NAME = "tokenizer_config.json"
"""Beside either of these two: the names of the special pieces, and how text is normalised."""


def write_file(content: bytes, target: Path) -> Path:
    """Writes a file whole or not at all.

    Args:
      content: of the file.
      target: its path; parents are made.

    Returns:
      The path.

    Raises:
      InputError: it cannot be written.
    """
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
    """A token that is found in text before the model reads the text.

    Attributes:
      content: text of the token.
      id: its id; None is the next free id.
      lstrip: whether it takes the whitespace before it.
      rstrip: whether it takes the whitespace after it.
      single_word: whether it is found only as a word of its own.
      normalized: whether it is looked for in normalized text.
      special: whether it is a control token.
    """

    content: str
    id: int | None = None
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = True
    special: bool = False

    def to_json(self) -> dict[str, Any]:
        """Every field, as the entries of a tokenizer.json have them."""
        return dataclasses.asdict(self)

    def flags(self) -> dict[str, bool]:
        """The fields besides content and id."""
        return {name: getattr(self, name) for name in _FLAGS}


def as_added(entry: Any, *, where: object, number: Any = None, special: bool = False) -> AddedToken:
    """The token that an entry of a tokenizer file describes.

    Args:
      entry: a text, or a dict with its content and flags.
      where: the file, for messages.
      number: the id; None leaves it open.
      special: the flag if the entry does not say it.

    Raises:
      InputError: if the entry is malformed.
    """
    fields = {"content": entry} if isinstance(entry, str) else entry
    if not isinstance(fields, dict) or not isinstance(fields.get("content"), str):
        raise InputError(
            f"{where}: {_short(entry)} is no token; a token is a text or has a content"
        )
    content = fields["content"]
    try:
        content.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{where}: the token {ascii(content)[:_SHOWN]} is not Unicode text"
        ) from error
    if not content:
        raise InputError(f"{where}: an added token is empty; remove it")
    control = fields.get("special", special)
    flags: dict[str, Any] = {
        "special": control,
        "normalized": fields.get("normalized", not control),
    }
    flags |= {name: fields.get(name, False) for name in _FLAGS[:3]}
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise InputError(
                f"{where}: {name} of the token {_short(content)} must be true or false"
            )
    if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
        raise InputError(f"{where}: the id of the token {_short(content)} is {_short(number)}")
    return AddedToken(content=content, id=number, **flags)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stated:
    """What the tokenizer files of a directory say besides the model.

    Attributes:
      directory: of the files.
      config: the content of tokenizer_config.json, with the roles of special_tokens_map.json.
      explicit: tokens with an id, by rising id.
      special: control tokens without an id, in the order in which they are added.
    """

    directory: DataPath
    config: Mapping[str, Any]
    explicit: tuple[AddedToken, ...] = ()
    special: tuple[AddedToken, ...] = ()

    @classmethod
    def of(cls, directory: DataPath) -> "Stated":
        """Reads the files of a directory; each of them may be missing.

        Raises:
          InputError: if a file is damaged or says what is not implemented.
        """
        where = directory / TOKENIZER_CONFIG_NAME
        config = dict(read_object(where))
        check_settings(config, where=where)
        entries = config.get("added_tokens_decoder")
        explicit: list[AddedToken] = []
        if entries is not None:
            if not isinstance(entries, dict):
                raise InputError(f"{where}: added_tokens_decoder must be an object")
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
                    f"both have the id {token.id}; give each its own"
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
        """The content of a special token by its role, such as "cls"; None if it is not said."""
        found = self.config.get(f"{name}_token")
        return as_added(found, where=self.directory).content if found else None

    def resolved(
        self, id_of: Callable[[str], int | None], size: int, *, known: Container[str] = ()
    ) -> tuple[AddedToken, ...]:
        """All tokens with their ids, as transformers' Python tokenizers number them.

        Args:
          id_of: id of a piece of the model; None if it has none.
          size: number of the model's ids.
          known: special tokens that the tokenizer has without being told, with flags of its own.
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
"""Settings that change ids, with the only values that are implemented (None always is)."""


def check_settings(config: Mapping[str, Any], *, where: object) -> None:
    """Raise InputError for a setting that changes ids and is not implemented."""
    for name, values in _NOT_IMPLEMENTED.items():
        value = config.get(name)
        if value is not None and value not in values:
            raise InputError(
                f"{where}: {name} {_short(value)} is not supported; remove it if the model was "
                "trained without it, or let transformers write a tokenizer.json without it"
            )


def check_class(name: Any, known: Iterable[str], *, where: object, form: str) -> None:
    """Raise InputError unless a tokenizer class is one of those that a form is read for.

    Args:
      name: tokenizer_class of a tokenizer_config.json; None is any.
      known: names without "Fast" at their end.
      where: the file, for messages.
      form: the file that holds the pieces.
    """
    if name is None or (isinstance(name, str) and name.removesuffix("Fast") in known):
        return
    raise InputError(
        f"{where}: tokenizer_class {_short(name)} is not supported with {form}; let transformers "
        "write its tokenizer.json (save_pretrained of a fast tokenizer), if it has one"
    )


def read_object(path: DataPath) -> Mapping[str, Any]:
    """The object in a JSON file; empty if there is no such file.

    Raises:
      InputError: if it is unreadable or holds something else.
    """
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"vocabulary {path}: {reason(error)}; mend or remove it") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"vocabulary {path}: not JSON ({error}); mend or remove it") from error
    if not isinstance(found, dict):
        raise InputError(f"vocabulary {path}: must be a JSON object, got {_short(found)}")
    return found


def _merged(config: Mapping[str, Any], special_map: Mapping[str, Any]) -> dict[str, Any]:
    """The roles and lists of a special_tokens_map.json, over those of the config."""
    names = [f"{role}_token" for role in ROLES]
    found = {name: special_map[name] for name in names if special_map.get(name) is not None}
    for name in _LISTS:
        if isinstance(more := special_map.get(name), list):
            said = config.get(name)
            own = said if isinstance(said, list) else []
            found[name] = [*own, *(token for token in more if token not in own)]
    return found


def _specials(config: Mapping[str, Any], *, where: object) -> list[AddedToken]:
    """The control tokens that a config names, in the order in which they are added."""
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
"""Those that every tokenizer of the T5 family has."""


class SpecialTokens:
    """Finds tokens in text.

    Args:
      sentinels: name -> id.
      strip: whether `NAMES` take the spaces around them, as those of ByT5 do.
      strip_sentinels: whether the sentinels do, as those of T5 do.
      added: further tokens, and other flags of these.
      plain: leaves `NAMES` out.

    Attributes:
      changed: those of `added` that are not found without it.
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
        """The special tokens of a text, as ids, and what is between them, where it is not empty."""
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
        """Ids of each text.

        Args:
          texts: any.
          plain: encodes what is between special tokens, all at once.
        """
        split = [self.split(text) for text in texts]
        encoded = iter(plain([part for parts in split for part in parts if isinstance(part, str)]))
        return [
            [i for part in parts for i in (next(encoded) if isinstance(part, str) else [part])]
            for parts in split
        ]


def _same(token: AddedToken, known: Mapping[str, AddedToken]) -> bool:
    """Whether a token is among the known ones, with flags that find it in the same places."""
    other = known.get(token.content)
    flags = ("id", "lstrip", "rstrip", "single_word")
    return other is not None and all(getattr(token, f) == getattr(other, f) for f in flags)
