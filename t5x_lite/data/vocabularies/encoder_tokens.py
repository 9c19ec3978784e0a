"""A vocabulary for rows of encoders: special ids, word starts, unknown tokens, fertility.

Special ids and word boundaries for rows of encoders, and conversion of texts to rows.

    tokens = encoder_tokens(vocabulary)
    tokens.cls_id, tokens.sep_id, tokens.mask_id, tokens.pad_id, tokens.unk_id
    tokens.word_ids(ids)       # ids as below -> the numbers below

    [CLS] un ##aff ##able dogs , [SEP]      WordPiece
      0   1    1     1     2   3   0
    <s> ▁un aff able ▁dogs ▁ ( see </s>     SentencePiece; byte-level BPE has "Ġ" for "▁"
     0   1   1   1    2    3 4  5   0

A piece with a leading space mark begins a word, as does a piece after a special token. Each
punctuation mark is a word, and each piece of a script without spaces between words is a word. A
WordPiece piece begins a word unless it starts with "##", as in BERT's whole-word masking. An
unknown piece is a word.

A SentencePiece or byte vocabulary has no [CLS] and no [MASK]. Its first sentinels are used instead:
<extra_id_0> as [MASK], <extra_id_1> as [CLS], and EOS as [SEP].

`text_rows` converts complete texts to rows of an encoder, for example for embeddings:

    rows = text_rows(vocabulary, begins=True)
    rows(["dogs bark"], length=8)        # Cut(rows=[array([2, 9, 7, 3])], longer=[])

A row of BERT is [CLS] text [SEP]; a row of T5 is the text and EOS. If a text is too long, its end
is truncated, but [SEP] or EOS is kept. Special tokens in a text are found as in transformers.

`first_tokens` encodes only the beginning of long texts:

    first_tokens(vocabulary, texts, count=64)    # of each text all tokens, or its first 65 and more

A long text is truncated before it is encoded, at a position that cannot change the tokens before
it: a space between two letters, if no piece of the vocabulary contains such a space. If the
beginning has too few tokens, a longer beginning is encoded. A text without such a position is
encoded completely.

Checks of a vocabulary on a text: fraction of unknown tokens, and fertility.

`tell` logs a warning if text has many unknown tokens, before training begins:

    tell("glue_stsb", [{"inputs": [5, 8, 1], "targets": [2, 9, 2, 1]}], vocabulary)
    # glue_stsb: 100% of targets have unknown tokens (50% of their tokens), such as " ⁇ . ⁇ "; ...

For example, a vocabulary trained on a few novels has no pieces for digits. All targets of STS-B
then have the same tokens, and a model cannot learn them. The first examples of a task are checked.

Fertility is the number of pieces per word:

    fertility(lines, vocabulary).pieces_per_word        1.4 of English, 2.3 of Finnish

In a language with a high fertility, rows are long and few words are a single piece (Rust et al.
2021, arXiv:2012.15613). Words are separated by white space. For scripts without white space, such
as Thai, the number of characters per piece is more informative.
"""

import collections
import dataclasses
import functools
import itertools
import logging
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import UInt8

from t5x_lite.core.errors import InputError
from t5x_lite.data.vocabularies.byte_level import Bytes
from t5x_lite.data.vocabularies.loading import SentencePiece, Vocabulary
from t5x_lite.data.vocabularies.tokenizer import Tokenizer
from t5x_lite.layouts.base import ALONE, BEGINS, CONTINUES, SPECIAL, EncoderTokens, Layout

_logger = logging.getLogger(__name__)


_UNSPACED = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x3040, 0x30FF),  # Hiragana, Katakana
    (0x3400, 0x4DBF),  # Han, extension A
    (0x4E00, 0x9FFF),  # Han
    (0xF900, 0xFAFF),  # Han, compatibility
    (0x20000, 0x3FFFF),  # Han, the other extensions
)


def without_special(ids: Sequence[int], tokens: EncoderTokens) -> Sequence[int]:
    """Replace [CLS], [SEP], [MASK] and padding in the ids of a text by the unknown id.

    These ids have a special meaning in a row, so a text must not contain them.
    """
    special = {tokens.cls_id, tokens.sep_id, tokens.mask_id, tokens.pad_id}
    if special.isdisjoint(ids):
        return ids
    return [tokens.unk_id if i in special else i for i in ids]


@functools.lru_cache(maxsize=8)
def encoder_tokens(vocabulary: Vocabulary) -> EncoderTokens:
    """Return the special token ids of an encoder's vocabulary, and the kind of each token.

    Raises:
      InputError: if [CLS] and [MASK] have no ids, or it is unknown which tokens begin a word.
    """
    if isinstance(vocabulary, Tokenizer):
        return EncoderTokens(
            cls_id=vocabulary.cls_id,
            sep_id=vocabulary.sep_id,
            mask_id=vocabulary.mask_id,
            pad_id=vocabulary.pad_id,
            unk_id=vocabulary.unk_id,
            kinds=_tokenizer_kinds(vocabulary),
            separators=separators(vocabulary),
        )
    if vocabulary.num_sentinels < 2:
        raise InputError(
            "an encoder uses two sentinels of the vocabulary as [MASK] and [CLS], but the "
            f"vocabulary has {vocabulary.num_sentinels}; set data.extra_ids to 2 or more"
        )
    mask_id, cls_id = vocabulary.sentinel(0), vocabulary.sentinel(1)
    return EncoderTokens(
        cls_id=cls_id,
        sep_id=vocabulary.eos_id,
        mask_id=mask_id,
        pad_id=vocabulary.pad_id,
        unk_id=vocabulary.unk_id,
        kinds=_kinds(
            _surfaces(vocabulary),
            special={vocabulary.pad_id, vocabulary.eos_id, mask_id, cls_id},
            unknown=vocabulary.unk_id,
        ),
    )


# Pieces as text, with the spaces that they represent.


def tokens_for(layout: Layout, vocabulary: Vocabulary) -> EncoderTokens | None:
    """Return the special token ids of a vocabulary if the layout is for encoders, else None."""
    return encoder_tokens(vocabulary) if layout.of_encoder else None


def _surfaces(vocabulary: SentencePiece | Bytes) -> Iterable[str]:
    if isinstance(vocabulary, SentencePiece):
        return (piece.replace("▁", " ") for piece in vocabulary.pieces())
    # A byte of a multi-byte character continues a word as a letter does.
    plain = [chr(byte) if byte < 128 else "é" for byte in range(256)]
    return ["x"] * 3 + plain + ["x"] * (vocabulary.size - 259)


def _tokenizer_kinds(vocabulary: Tokenizer) -> UInt8[np.ndarray, " V"]:
    """Classify each token id: the token begins a word, continues a word, or is a word."""
    description, pieces = vocabulary.description(), vocabulary.pieces()
    special = set(vocabulary.special_ids) - {vocabulary.unk_id}
    model = description["model"]
    prefix = model.get("continuing_subword_prefix")
    if model["type"] == "WordPiece" or (model["type"] == "BPE" and prefix):
        kinds = [CONTINUES if prefix and p.startswith(prefix) else BEGINS for p in pieces]
        return _with_special(kinds, special=special, unknown=vocabulary.unk_id)
    if model["type"] == "WordLevel":
        return _with_special([BEGINS] * len(pieces), special=special, unknown=vocabulary.unk_id)
    steps = {*_types(description["pre_tokenizer"]), *_types(description["decoder"])}
    read: Callable[[str], str] | None = None
    if "ByteLevel" in steps:
        read = _byte_level
    elif "Metaspace" in steps or model["type"] == "Unigram":
        read = _metaspace
    if read is None:
        raise InputError(
            f"vocabulary {vocabulary.model_path}: the boundaries of words can be found only for "
            "WordPiece, byte-level BPE and SentencePiece tokenizers, but the tokenizer is a "
            f"{model['type']} with {', '.join(sorted(steps)) or 'no step'}"
        )
    return _kinds(map(read, pieces), special=special, unknown=vocabulary.unk_id)


def _types(step: Any) -> list[str]:
    if isinstance(step, list):
        return [found for part in step for found in _types(part)]
    if not isinstance(step, dict):
        return []
    return [str(step.get("type", "")), *(f for part in step.values() for f in _types(part))]


def _metaspace(piece: str) -> str:
    return piece.replace("▁", " ")


def _byte_level(piece: str) -> str:
    bytes_of = _bytes_of_characters()
    known = bytes(bytes_of[character] for character in piece if character in bytes_of)
    return known.decode("utf-8", "ignore") or "x"


@functools.cache
def _bytes_of_characters() -> dict[str, int]:
    """Return the byte of each character in GPT-2's map of bytes to characters."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    found = {chr(byte): byte for byte in printable}
    return found | {chr(256 + place): byte for place, byte in enumerate(others)}


# Kinds.


def _kinds(surfaces: Iterable[str], *, special: set[int], unknown: int) -> UInt8[np.ndarray, " V"]:
    kinds = [_kind(surface) for surface in surfaces]
    return _with_special(kinds, special=special, unknown=unknown)


def _with_special(
    kinds: Sequence[int], *, special: set[int], unknown: int
) -> UInt8[np.ndarray, " V"]:
    found = np.array(kinds, np.uint8)
    found[unknown] = ALONE
    found[sorted(special)] = SPECIAL
    return found


def _kind(surface: str) -> int:
    """Classify a token by its text: the token begins a word, continues a word, or is a word."""
    core = surface.strip()
    if core and all(_is_alone(character) for character in core):
        return ALONE
    return BEGINS if surface[:1].isspace() else CONTINUES


def _is_alone(character: str) -> bool:
    if unicodedata.category(character)[0] in "PS":
        return True
    return any(first <= ord(character) <= last for first, last in _UNSPACED)


def separators(vocabulary: Vocabulary) -> int:
    """Return the number of [SEP] between two texts: 2 if [CLS] is <s> (RoBERTa), or else 1."""
    return 2 if isinstance(vocabulary, Tokenizer) and vocabulary.names["cls"] == "<s>" else 1


_SHORTEST = 4096
"""Maximum number of characters of texts that are always encoded completely."""
_CHARACTERS = 16
"""Estimated number of characters per token, an upper limit for most languages."""
_LONGER = 8
_PLACE = re.compile(r"(?<=[^\W\d_]) (?=[^\W\d_])")


def first_tokens(vocabulary: Vocabulary, texts: Sequence[str], *, count: int) -> list[list[int]]:
    """Return the token ids of each text; long texts may be truncated after `count` + 1 ids.

    Args:
      vocabulary: vocabulary that encodes the texts.
      texts: any strings.
      count: number of tokens that the caller needs.

    Returns:
      Token ids of each text. ids[:count] are the first ids of the complete text, and len(ids) >
      count if and only if the complete text has more than `count` tokens.
    """
    size = max(_SHORTEST, _CHARACTERS * count)
    found: list[list[int]] = [[] for _ in texts]
    pending = list(range(len(texts)))
    while pending:
        places = [_place(vocabulary, texts[i], size) for i in pending]
        parts = [texts[i][:place] for i, place in zip(pending, places, strict=True)]
        encoded = vocabulary.encode_batch(parts)
        left = []
        for i, place, ids in zip(pending, places, encoded, strict=True):
            found[i] = ids
            if place < len(texts[i]) and len(ids) <= count:
                left.append(i)
        pending, size = left, size * _LONGER
    return found


def _place(vocabulary: Vocabulary, text: str, size: int) -> int:
    """Return a position >= `size` where a cut of the text leaves the ids before it unchanged."""
    if len(text) <= size:
        return len(text)
    if isinstance(vocabulary, Bytes) and vocabulary.layout == "seqio":
        return size
    match = _PLACE.search(text, size) if _divides(vocabulary) else None
    return match.start() if match else len(text)


@functools.lru_cache(maxsize=8)
def _divides(vocabulary: Vocabulary) -> bool:
    return vocabulary.divides_words


class Cut(NamedTuple):
    """Texts as rows of tokens, and a list of the texts that were too long.

    Attributes:
      rows: int32 token ids of each text's row.
      longer: indices of the texts that were truncated.
    """

    rows: list[np.ndarray]
    longer: list[int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextRows:
    """Callable that converts texts to rows of tokens, such as [CLS] text [SEP].

    Attributes:
      vocabulary: vocabulary that encodes the texts.
      before: token ids before the text, such as [CLS].
      after: token ids after the text, such as [SEP] or EOS.
    """

    vocabulary: Vocabulary
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def pad_id(self) -> int:
        return self.vocabulary.pad_id

    @property
    def shortest(self) -> int:
        """Number of tokens in the row of an empty text."""
        return len(self.before) + len(self.after)

    def __call__(self, texts: Sequence[str], *, length: int) -> Cut:
        """Return the row of tokens of each text, truncated to a maximum length.

        Args:
          texts: any strings.
          length: maximum number of tokens of a row, including the tokens before and after the text.

        Raises:
          InputError: if `length` leaves no token for the text.
        """
        room = length - self.shortest
        if room < 1:
            raise InputError(
                f"a maximum length of {length} tokens leaves no space for text, because "
                f"{self.shortest} special tokens are added to each text"
            )
        encoded = first_tokens(self.vocabulary, texts, count=room)
        rows = [np.array([*self.before, *ids[:room], *self.after], np.int32) for ids in encoded]
        return Cut(rows, [i for i, ids in enumerate(encoded) if len(ids) > room])


def text_rows(vocabulary: Vocabulary, *, begins: bool) -> TextRows:
    """Return a callable that converts texts to rows of tokens.

    Args:
      vocabulary: vocabulary that encodes the texts.
      begins: True if rows begin with [CLS], as in encoders other than T5's.

    Raises:
      InputError: if `begins` is True, and the vocabulary has neither [CLS] nor enough sentinels.
    """
    if not begins:
        return TextRows(vocabulary=vocabulary, before=(), after=(vocabulary.eos_id,))
    special = vocabulary if isinstance(vocabulary, Tokenizer) else encoder_tokens(vocabulary)
    return TextRows(vocabulary=vocabulary, before=(special.cls_id,), after=(special.sep_id,))


FIRST = 200
"""Number of examples that are checked for unknown tokens."""
_FEATURES = ("targets", "inputs")
_SHARE = 0.01
"""Minimum fraction of examples with unknown tokens for a warning; of tokens, a tenth of it."""
_SHOWN = 40


def tell(name: str, examples: Iterable[Mapping[str, Any]], vocabulary: Vocabulary) -> None:
    """Warn if the inputs or targets of a task have many unknown tokens.

    Args:
      name: the task's name.
      examples: examples with token ids as "inputs" or "targets"; only the first ones are read. If
        they have the text as "inputs_pretokenized" or "targets_pretokenized", the warning lists
        unknown characters.
      vocabulary: vocabulary of the token ids.
    """
    rows: dict[str, list[np.ndarray]] = {feature: [] for feature in _FEATURES}
    texts: dict[str, list[str]] = {feature: [] for feature in _FEATURES}
    for example in itertools.islice(examples, FIRST):
        for feature in _FEATURES:
            if feature in example:
                rows[feature].append(np.asarray(example[feature]))
                texts[feature].append(_text(example.get(f"{feature}_pretokenized", "")))
    told = [
        text + _unknown_characters(texts[feature], vocabulary)
        for feature, found in rows.items()
        if (text := _told(feature, found, vocabulary))
    ]
    if told:
        _logger.warning(
            "unknown tokens in task %s: %s; train a vocabulary on the text of the task with "
            "`t5x-lite vocab`, or set --data.vocabulary bytes",
            name,
            "; ".join(told),
        )


def _told(feature: str, rows: Sequence[np.ndarray], vocabulary: Vocabulary) -> str:
    """Return the warning about a feature's unknown tokens, or "" if unknown tokens are rare."""
    unknown = [int((ids == vocabulary.unk_id).sum()) for ids in rows]
    in_examples = sum(map(bool, unknown)) / max(1, len(rows))
    in_tokens = sum(unknown) / max(1, sum(ids.size for ids in rows))
    if in_examples < _SHARE or in_tokens < _SHARE / 10:
        return ""
    first = rows[next(i for i, number in enumerate(unknown) if number)]
    shown = vocabulary.decode(first.tolist())[:_SHOWN]
    return (
        f"{_percent(in_examples)} of {feature} have unknown tokens ({_percent(in_tokens)} of their "
        f"tokens), such as {shown!r}"
    )


def _text(value: Any) -> str:
    value = value.item() if isinstance(value, np.ndarray) and not value.shape else value
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _unknown_characters(texts: Sequence[str], vocabulary: Vocabulary) -> str:
    characters = collections.Counter("".join("".join(text.split()) for text in texts))
    unknown = [
        character
        for character, _ in characters.most_common()
        if vocabulary.unk_id in vocabulary.encode(character)
    ]
    shown = " ".join(unknown[:_SHOWN])
    return f"; characters without a token: {shown}" if unknown else ""


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 else f"{share:.1%}"


LINES = 2_000
"""Default number of lines for measuring the fertility."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fertility:
    """Numbers of words, characters and tokens of a text.

    Attributes:
      words: number of words, separated by white space.
      characters: number of characters in these words.
      pieces: number of tokens.
      unknown: number of unknown tokens.
    """

    words: int
    characters: int
    pieces: int
    unknown: int

    @property
    def pieces_per_word(self) -> float:
        """Mean number of tokens per word, called fertility."""
        return self.pieces / max(self.words, 1)

    def __str__(self) -> str:
        length = self.characters / max(self.pieces, 1)
        unknown = 100 * self.unknown / max(self.pieces, 1)
        return (
            f"{self.pieces_per_word:.2f} pieces per word, {length:.1f} characters per piece, "
            f"{unknown:.2f} % unknown pieces ({self.words:,} words)"
        )


def fertility(lines: Iterable[str], vocabulary: Vocabulary, *, most: int = LINES) -> Fertility:
    """Count the words, characters and tokens of the first nonempty lines.

    Args:
      lines: lines of text.
      vocabulary: vocabulary that encodes the text.
      most: maximum number of lines.
    """
    words = characters = pieces = unknown = 0
    for line in itertools.islice((line for line in lines if line.strip()), most):
        ids = list(vocabulary.encode(line))
        own = line.split()
        words += len(own)
        characters += sum(map(len, own))
        pieces += len(ids)
        unknown += ids.count(vocabulary.unk_id)
    return Fertility(words=words, characters=characters, pieces=pieces, unknown=unknown)
