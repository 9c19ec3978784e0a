"""ByT5's byte vocabulary: the bytes of UTF-8 text, without a model file (Xue et al. 2021).

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
"""

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from t5x_lite.core.errors import InputError
from t5x_lite.core.files import reason
from t5x_lite.core.object_store import DataPath
from t5x_lite.data.vocabularies.added_tokens import (
    BYTES_NAME,
    EOS_ID,
    MOST_EXTRA_IDS,
    PAD_ID,
    UNK_ID,
    AddedToken,
    SpecialTokens,
    as_added,
    write_file,
)

Layout = Literal["seqio", "hf"]
NAMES: dict[str, Layout] = {"bytes": "seqio", "bytes-hf": "hf"}
"""Layout for each name of a byte vocabulary in data.vocabulary."""

FIRST_BYTE = 3
NUM_PLAIN = FIRST_BYTE + 256


class Bytes:
    """Byte vocabulary (ByT5): the bytes of UTF-8 text, and special ids.

    Attributes:
      layout: name of the sentinel layout.
      extra_ids: number of sentinels.
      size: number of ids.
      added: added tokens, including special tokens with changed flags.
      model_path: name of the vocabulary in data.vocabulary.
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
        """Create the vocabulary.

        Args:
          layout: name of the sentinel layout.
          extra_ids: number of sentinels.
          added: added tokens, including special tokens with changed flags, each with an id.

        Raises:
          InputError: if `extra_ids` is negative or too large; layout "seqio" uses ids of bytes for
            sentinels.
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
        """True if seqio's byte vocabulary gives the same ids for text."""
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
          InputError: if the ids of the sentinels ascend.
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
                f"a sentinel's index must be in [0, {self.extra_ids}) (extra_ids), but is {index}"
            )
        return NUM_PLAIN + index if self.layout == "hf" else NUM_PLAIN - 1 - index

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, without EOS; with layout "hf" a special token is one id."""
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
    """Return the options except the layout in a bytes.json or special_tokens.json, by name."""
    said = json.loads(path.read_bytes())
    found: dict[str, Any] = {}
    if entries := said.get("added_tokens"):
        if not isinstance(entries, list):
            raise InputError(f"vocabulary {path}: added_tokens must be a list")
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
    """Return the layout in a bytes.json or special_tokens.json."""
    try:
        layout = json.loads(path.read_text(encoding="utf-8"))["layout"]
    except OSError as error:
        raise InputError(f"cannot read vocabulary {path}: {reason(error)}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"vocabulary {path} is not a description of a vocabulary") from error
    if layout not in get_args(Layout):
        raise InputError(
            f"vocabulary {path}: layout must be one of {get_args(Layout)}, but is {layout!r}"
        )
    return layout
