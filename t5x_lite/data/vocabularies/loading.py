"""Vocabularies without TensorFlow: loading, and training of a SentencePiece model.

The ids are the same as in `seqio.SentencePieceVocabulary(path, extra_ids=100)`: the model's own
pieces, then the sentinels as user-defined pieces, `<extra_id_0>` last (T5, Raffel et al. 2020,
section 3.1.4). With T5's model of 32000 pieces:

    vocabulary = load_vocabulary("t5_spiece.model")
    vocabulary.size             -> 32100
    vocabulary.sentinel(0)      -> 32099
    vocabulary.encode("Thank you <extra_id_0> me")  -> [1562, 25, 32099, 140]
    vocabulary.decode([1562, 25, 1])                -> "Thank you"

As in seqio, a sentinel in text is found only at the start of a word. With layout "hf" it is found
anywhere, and so are `</s>`, `<pad>` and `<unk>`, as in transformers. A model that already holds its
sentinels, such as mT5's, is loaded with extra_ids=0. The byte vocabulary of ByT5 is in
`t5x_lite.data.vocabularies.byte_level`; vocabularies of encoders (WordPiece, tokenizer.json) are in
`t5x_lite.data.vocabularies.tokenizer` and `t5x_lite.data.vocabularies.spm`. `load_vocabulary` loads
any of them.
"""

import collections
import errno
import hashlib
import io
import itertools
import json
import math
import os
import re
import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from t5x_lite.core.errors import InputError
from t5x_lite.core.files import reason
from t5x_lite.core.object_store import DataPath, data_path
from t5x_lite.core.progress import counting, waiting
from t5x_lite.core.workers import WorkerContext
from t5x_lite.data.vocabularies.added_tokens import (
    BPE_NAME,
    BYTES_NAME,
    EOS_ID,
    FAST_NAME,
    LAYOUT_NAME,
    MODEL_NAME,
    MOST_EXTRA_IDS,
    PAD_ID,
    SPM_NAME,
    TOKENIZER_NAME,
    UNK_ID,
    WORDPIECE_NAME,
    XLM_NAME,
    AddedToken,
    SpecialTokens,
    write_file,
)
from t5x_lite.data.vocabularies.byte_level import (
    NAMES,
    Bytes,
    Layout,
    read_added,
    read_bytes_vocabulary,
    read_layout,
)
from t5x_lite.data.vocabularies.spm import read_spm, read_xlm_spm
from t5x_lite.data.vocabularies.tokenizer import Tokenizer, encoded, load_tokenizer, read_byte_level

MAX_LINE_BYTES = 4192
"""T5's `max_sentence_length`; SentencePiece drops longer lines, so they are split first."""
ASCII = string.digits + string.ascii_letters + string.punctuation
"""Characters of labels, numbers and the tasks' prefixes."""
_NORMALIZATION = "nmt_nfkc"
_OVER_A_SPACE = re.compile(r"[^▁\s][▁\s]")
_RESERVED = "\u2585"
"""SentencePiece's mark of an unknown byte; it drops every line that holds one."""


class SentencePiece:
    """A SentencePiece model with `extra_ids` sentinels appended.

    Attributes:
      model_path: the file that it was read from.
      model_bytes: that file's content, without the sentinels.
      extra_ids: the number of sentinels.
      layout: "seqio" or "hf", the rule for special tokens in text; the ids are equal.
      size: number of ids, sentinels and added tokens included.
      num_sentinels: the sentinels, appended or the model's own: the last ids before added tokens.
      added: tokens that the model does not have, and changed flags of special tokens.
      legacy: if False, a part after a special token gets no space piece (`legacy` of T5Tokenizer).
      add_prefix_space: if True, a text begins with a space piece; only used if `legacy` is False.
      fast: content of a tokenizer.json that reads text in layout "hf"; b"" if unused.
    """

    pad_id = PAD_ID
    eos_id = EOS_ID
    unk_id = UNK_ID

    def __init__(
        self,
        model_path: str | os.PathLike[str],
        *,
        extra_ids: int = 100,
        layout: Layout = "seqio",
        added: Sequence[AddedToken] = (),
        legacy: bool = True,
        add_prefix_space: bool = True,
        fast: bytes = b"",
    ):
        """Read the model.

        Args:
          model_path: a SentencePiece model file with pad 0, eos 1, unk 2.
          extra_ids: number of sentinels to append.
          layout: rule for special tokens in text.
          added: added tokens, each with an id.
          legacy: as in the class.
          add_prefix_space: as in the class.
          fast: as in the class.

        Raises:
          InputError: if the file is missing, unreadable, not a SentencePiece model or has other
            special ids, or there are too many extra ids.
        """
        if extra_ids < 0:
            raise InputError(f"data.extra_ids must be at least 0, got {extra_ids}")
        if extra_ids > MOST_EXTRA_IDS:
            raise InputError(f"data.extra_ids must be at most {MOST_EXTRA_IDS}, got {extra_ids}")
        self.model_path = data_path(model_path)
        self.extra_ids = extra_ids
        self.layout: Layout = layout
        try:
            self.model_bytes = self.model_path.read_bytes()
        except OSError as error:
            raise InputError(
                f"vocabulary {model_path}: {reason(error)}; give a SentencePiece .model file or "
                f"train one with `t5x-lite vocab`"
            ) from error
        self._processor = _load_processor(
            self.model_bytes, extra_ids=extra_ids, where=str(model_path)
        )
        self._num_pieces: int = self._processor.GetPieceSize()
        self.num_sentinels = _num_sentinels(self._processor)
        self.fast = fast
        self.legacy, self.add_prefix_space = legacy, add_prefix_space
        names = {f"<extra_id_{i}>": self._num_pieces - 1 - i for i in range(extra_ids)}
        special = SpecialTokens(names, strip_sentinels=True, added=added)
        self.added = special.changed
        self._names = {token.id or 0: token.content for token in self.own_added}
        self.size: int = max(self._num_pieces, 1 + max(self._names, default=0))
        self._special: SpecialTokens | None = special if layout == "hf" else None
        if layout != "hf" and self._names:
            self._special = SpecialTokens({}, added=self.own_added, plain=True)
        self._ids_of_pieces = {content: number for number, content in self._names.items()}
        self._fast = load_tokenizer(fast, where=self.model_path) if fast else None
        self._bare = None if legacy else _without_prefix(self._processor)

    @property
    def own_added(self) -> tuple[AddedToken, ...]:
        """Added tokens that the model lacks: all but pad, EOS, unknown and sentinels."""
        known = {PAD_ID, EOS_ID, UNK_ID}
        known |= {self._num_pieces - 1 - i for i in range(self.num_sentinels)}
        return tuple(token for token in self.added if token.id not in known)

    @property
    def reads_as_seqio(self) -> bool:
        """True if seqio's vocabulary of the model gives plain text the same ids."""
        return not self._names and self.legacy

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the model's bytes and `extra_ids`: equal digests give equal ids.

        The layout is not included: it does not change the meaning of an id.
        """
        content = self.model_bytes + b"\n%d" % self.extra_ids
        if not self.reads_as_seqio:
            said = {**self._reading(), "added_tokens": [t.to_json() for t in self.own_added]}
            content += b"\n" + json.dumps(said, sort_keys=True).encode()
        return hashlib.sha256(content).hexdigest()

    def _reading(self) -> dict[str, Any]:
        """Return the content of special_tokens.json except the layout."""
        said: dict[str, Any] = {}
        if self.added:
            said["added_tokens"] = [token.to_json() for token in self.added]
        if not self.legacy:
            said |= {"legacy": False, "add_prefix_space": self.add_prefix_space}
        return said

    @property
    def divides_words(self) -> bool:
        """True if no piece contains a space between two letters."""
        if not self.legacy or any(c.isspace() for name in self._names.values() for c in name):
            return False
        pieces = self.pieces()
        # Without a piece for the space, unknown characters on both sides become one with it.
        return "▁" in pieces and not any(_OVER_A_SPACE.search(piece) for piece in pieces)

    @property
    def sentinel_start(self) -> int:
        """First sentinel, from which span corruption counts down."""
        return self._num_pieces - 1

    def sentinel(self, index: int) -> int:
        """Return the id of `<extra_id_{index}>`, counting down from the last one of the model."""
        if not 0 <= index < self.num_sentinels:
            raise ValueError(
                f"a sentinel's index must be in [0, {self.num_sentinels}) (extra_ids), got {index}"
            )
        return self._num_pieces - 1 - index

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, without EOS."""
        [ids] = self.encode_batch([text])
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return `encode` of each text, computed in threads."""
        if self._special is None:
            return self._processor.EncodeAsIds(list(texts))
        if self._fast is not None and self.layout == "hf":
            return [one.ids for one in encoded(self._fast, texts, where=self.model_path)]
        if self.legacy:
            return self._special.encode(texts, self._plain)
        return [self._encode_without_spaces(text, self._special) for text in texts]

    def _plain(self, texts: list[str]) -> list[list[int]]:
        """Encode texts without special tokens; normalization may still create an added token."""
        if not self._names:
            return self._processor.EncodeAsIds(texts)
        return [self._ids(pieces) for pieces in self._processor.EncodeAsPieces(texts)]

    def _ids(self, pieces: Sequence[str]) -> list[int]:
        own, to_id = self._ids_of_pieces, self._processor.PieceToId
        return [own[piece] if piece in own else to_id(piece) for piece in pieces]

    def _encode_without_spaces(self, text: str, special: SpecialTokens) -> list[int]:
        """Return the ids that T5Tokenizer with legacy=False gives."""
        if not text:
            return []
        text = text.replace("▁", " ")
        found: list[str | int] = []
        for part in special.split("▁" + text if self.add_prefix_space else text):
            found += self._pieces_of(part) if isinstance(part, str) else [part]
        if len(found) > 1 and found[0] == "▁" and found[1] in self._special_ids:
            found = found[1:]
        return [i if isinstance(i, int) else self._ids([i])[0] for i in found]

    def _pieces_of(self, part: str) -> list[str]:
        bare: Any = self._bare
        if not part.startswith(("▁", " ")):
            return bare.EncodeAsPieces(part)
        # A prefix keeps the space that SentencePiece would strip.
        prefix = len(bare.EncodeAsPieces("<unk>"))
        return bare.EncodeAsPieces("<unk>" + part)[prefix:]

    @property
    def _special_ids(self) -> set[int | None]:
        sentinels = {self._num_pieces - 1 - i for i in range(self.num_sentinels)}
        return {0, 1, 2, *sentinels, *(token.id for token in self.added if token.special)}

    def decode(self, ids: Iterable[int]) -> str:
        """Decode `ids` up to the first EOS; padding is dropped, ids above `size` are unknown.

        Added tokens are written unchanged. The form of the files decides about spaces around them:
        one on both sides, as in transformers' Python tokenizers, or none, as in its fast ones.
        """
        known = [int(i) if i < self.size else UNK_ID for i in ids]
        known = known[: [*known, EOS_ID].index(EOS_ID)]
        if self._names.keys().isdisjoint(known):
            return self._decode_plain(known)
        known = [i for i in known if i != PAD_ID]
        if self._fast is not None and self.layout == "hf":
            return self._fast.decode(known, skip_special_tokens=False)
        parts: list[str] = []
        start = 0
        for place, number in enumerate([*known, -1]):
            if number in self._names or number < 0:
                parts += [self._decode_plain(known[start:place]), self._names.get(number, "")]
                start = place + 1
        return " ".join(part for part in parts if part)

    def _decode_plain(self, ids: Sequence[int]) -> str:
        text = self._processor.DecodeIds([i if i < self._num_pieces else UNK_ID for i in ids])
        return text.strip() if self._names else text

    def pieces(self) -> list[str]:
        """Return the piece of each id; "" for an id without a piece."""
        pieces = [self._processor.IdToPiece(number) for number in range(self._num_pieces)]
        pieces += [""] * (self.size - self._num_pieces)
        for number, content in self._names.items():
            pieces[number] = content
        return pieces

    def files(self) -> dict[str, bytes]:
        """Return the files for `load_vocabulary`: file name -> content."""
        files = {MODEL_NAME: self.model_bytes}
        if self.layout != "seqio" or self._reading():
            said = {"layout": self.layout, **self._reading()}
            files[LAYOUT_NAME] = json.dumps(said).encode() + b"\n"
        if self.fast:
            files[FAST_NAME] = self.fast
        return files

    def save(self, directory: str | os.PathLike[str]) -> Path:
        """Write `files` to a directory, each completely or not at all; return the model's path."""
        for name, content in reversed(self.files().items()):
            path = write_file(content, Path(directory) / name)
        return path


def _load_processor(model_bytes: bytes, *, extra_ids: int, where: str) -> Any:
    """Return a SentencePieceProcessor of the model with seqio's sentinel pieces appended."""
    import sentencepiece
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2

    model_pb2: Any = sentencepiece_model_pb2  # generated code that type checkers cannot read
    processor = sentencepiece.SentencePieceProcessor()
    try:
        model = model_pb2.ModelProto.FromString(model_bytes)
        user_defined = model_pb2.ModelProto.SentencePiece.USER_DEFINED
        names = {piece.piece for piece in model.pieces}
        for i in reversed(range(extra_ids)):
            name = f"▁<extra_id_{i}>"
            if name in names:
                raise InputError(
                    f"vocabulary {where}: the model already holds {name}; set data.extra_ids to 0"
                )
            model.pieces.add(piece=name, score=0.0, type=user_defined)
        processor.LoadFromSerializedProto(model.SerializeToString())
    except (DecodeError, RuntimeError) as error:
        raise InputError(
            f"vocabulary {where}: not a SentencePiece model; train one with `t5x-lite vocab`"
        ) from error
    got = (processor.pad_id(), processor.eos_id(), processor.unk_id())
    if got != (PAD_ID, EOS_ID, UNK_ID):
        raise InputError(
            f"vocabulary {where}: the ids of pad, eos and unk must be (0, 1, 2), got {got}; "
            f"train one with `t5x-lite vocab`"
        )
    return processor


def _without_prefix(processor: Any) -> Any:
    """Return the same model without the space piece that begins a text."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2

    kinds: Any = sentencepiece_model_pb2
    model = kinds.ModelProto.FromString(processor.serialized_model_proto())
    model.normalizer_spec.add_dummy_prefix = False
    bare = sentencepiece.SentencePieceProcessor()
    bare.LoadFromSerializedProto(model.SerializeToString())
    return bare


Vocabulary: TypeAlias = SentencePiece | Bytes | Tokenizer
"""Any vocabulary; all have the same methods."""


def _num_sentinels(processor: Any) -> int:
    """Count the last pieces that are sentinels, `<extra_id_0>` the last."""
    size = processor.GetPieceSize()
    numbers = itertools.takewhile(
        lambda i: processor.IdToPiece(size - 1 - i) == f"▁<extra_id_{i}>", range(size)
    )
    return sum(1 for _ in numbers)


ENCODER_FORMS: Mapping[str, Callable[[DataPath], Tokenizer]] = {
    TOKENIZER_NAME: Tokenizer,
    WORDPIECE_NAME: Tokenizer,
    SPM_NAME: read_spm,
    XLM_NAME: read_xlm_spm,
    BPE_NAME: read_byte_level,
}
"""File name to reader of an encoder's vocabulary; if there are several, the first is read."""


def load_vocabulary(path: str | os.PathLike[str], *, extra_ids: int = 100) -> Vocabulary:
    """Load the vocabulary in a file or a directory, or the byte vocabulary of a name.

    Args:
      path: local or in a bucket: a SentencePiece model, a bytes.json, a tokenizer.json (any name in
        .json), WordPiece's vocab.txt (any name in .txt), DeBERTa's spm.model, XLM-R's
        sentencepiece.bpe.model or RoBERTa's vocab.json next to merges.txt (by these names), a
        directory that holds one of them under these names (another SentencePiece model is
        sentencepiece.model; if special tokens are read as in transformers, special_tokens.json is
        next to it), or "bytes" or "bytes-hf" (a directory of that name is "./bytes").
      extra_ids: number of sentinels in addition to a SentencePiece model's own pieces or bytes.

    Raises:
      InputError: as `SentencePiece`, `Bytes`, `Tokenizer` and the readers of `ENCODER_FORMS` do.
    """
    if str(path) in NAMES:
        return Bytes(layout=NAMES[str(path)], extra_ids=extra_ids)
    where = data_path(path)
    options: Mapping[str, Any] = {}
    if where.is_dir():
        options = _read_options(where)
        known = (BYTES_NAME, MODEL_NAME, *ENCODER_FORMS)
        where = where / next((name for name in known if (where / name).is_file()), MODEL_NAME)
    if where.name == BYTES_NAME:
        return read_bytes_vocabulary(where, extra_ids=extra_ids)
    if where.name in ENCODER_FORMS or where.suffix in (".json", ".txt"):
        return ENCODER_FORMS.get(where.name, Tokenizer)(where)
    return SentencePiece(where, extra_ids=extra_ids, **options)


def _read_options(directory: DataPath) -> dict[str, Any]:
    """Read the options for reading text from the special_tokens.json of a directory."""
    path, options = directory / LAYOUT_NAME, dict[str, Any]()
    if not path.is_file():
        return options
    options["layout"] = read_layout(path)
    options |= read_added(path)
    if (directory / FAST_NAME).is_file():
        try:
            options["fast"] = (directory / FAST_NAME).read_bytes()
        except OSError as error:
            raise InputError(f"vocabulary {directory / FAST_NAME}: {reason(error)}") from error
    return options


_T5_PIECES: dict[str, Any] = {"pad_id": PAD_ID, "eos_id": EOS_ID, "unk_id": UNK_ID, "bos_id": -1}
_ENCODER_PIECES: dict[str, Any] = {
    "pad_id": 0,
    "bos_id": 1,
    "eos_id": 2,
    "unk_id": 3,
    "pad_piece": "[PAD]",
    "bos_piece": "[CLS]",
    "eos_piece": "[SEP]",
    "unk_piece": "[UNK]",
}
"""SentencePiece's options for the special pieces of T5's models, and of DeBERTa's."""


def train_sentencepiece(
    lines: Iterable[str],
    *,
    size: int,
    output_dir: str | os.PathLike[str],
    character_coverage: float = 0.9995,
    required: str = "",
    max_lines: int = 2_000_000,
    encoder: bool = False,
    seed: int = 0,
) -> Path:
    """Train a unigram model with T5's settings, and write `output_dir`/sentencepiece.model.

    T5's settings, read from its model: nmt_nfkc normalization, character coverage 0.9995, a maximum
    of 16 characters per piece, split at whitespace, numbers and scripts, pad 0, eos 1, unk 2, no
    bos, no byte fallback. The same lines and settings give the same bytes.

    Args:
      lines: text, streamed; lines longer than `MAX_LINE_BYTES` are split at whitespace.
      size: number of pieces, including special pieces but not the extra ids.
      output_dir: created if missing; nothing is written unless the training succeeds.
      character_coverage: the fraction of the text's characters that get a piece.
      required: characters that always get a piece, such as `ASCII`.
      max_lines: maximum number of lines, which bounds the memory; a longer text is sampled
        uniformly.
      encoder: if True, the special pieces are [PAD] [CLS] [SEP] [UNK], as in DeBERTa's models, and
        the file is spm.model; [MASK] is added after the last piece when it is read
        (`data.vocabularies.spm`).
      seed: seed of the sample of lines.

    Returns:
      The model's path.

    Raises:
      InputError: if the text is empty or does not allow the size; and errors that reading `lines`
        raises.
    """
    import sentencepiece

    if size < 4:
        raise InputError(f"a vocabulary needs at least 4 pieces, got --size {size}")
    if os.path.exists(output_dir) and not os.path.isdir(output_dir):
        raise InputError(f"{output_dir}: {os.strerror(errno.ENOTDIR)}; give --output a directory")
    reading: list[Exception] = []
    pieces = _training_lines(lines, failure=reading)
    # Text that normalization empties (zero-width spaces) ends the process in C++.
    make_normalizer: Any = sentencepiece.SentencePieceNormalizer
    normalize = make_normalizer(rule_name=_NORMALIZATION).Normalize
    first = next((piece for piece in pieces if normalize(piece).strip()), None)
    if reading:
        raise reading[0]
    if first is None:
        raise InputError("a vocabulary cannot be trained on empty text; give --input some lines")
    options: dict[str, Any] = {
        "model_type": "unigram",
        "vocab_size": size,
        "character_coverage": character_coverage,
        "required_chars": required,
        "normalization_rule_name": _NORMALIZATION,
        "input_sentence_size": max_lines,
        "shuffle_input_sentence": True,
        "max_sentence_length": MAX_LINE_BYTES,
        **(_ENCODER_PIECES if encoder else _T5_PIECES),
        "byte_fallback": False,
        # Sums over threads depend on their number, so it is T5's on every machine.
        "num_threads": 16,
        "minloglevel": 2,
    }
    made = _train_apart(itertools.chain([first], pieces), reading, options=options, seed=seed)
    if isinstance(made, str):
        raise _training_error(made, size, required)
    name = SPM_NAME if encoder else MODEL_NAME
    return write_file(made, Path(output_dir) / name)


_LINES_AT_A_TIME = 1000


def _train_apart(
    lines: Iterator[str], reading: list[Exception], *, options: Mapping[str, Any], seed: int
) -> bytes | str:
    """Train in a separate process, which can be stopped: SentencePiece holds Python's lock."""
    context = WorkerContext()
    pipe: Any = context.Pipe()
    ours, theirs = pipe
    process: Any = context.Process(
        target=_train_in_worker, args=(theirs, dict(options), seed), daemon=True
    )
    process.start()
    theirs.close()
    try:
        with counting("reading text", unit="lines") as advance:
            while some := list(itertools.islice(lines, _LINES_AT_A_TIME)):
                if ours.poll():
                    break  # the worker has failed
                ours.send(some)
                advance(len(some))
        if reading:
            raise reading[0]
        with waiting(f"training a vocabulary of {options['vocab_size']:,} pieces"):
            ours.send(None)
            return ours.recv()
    except (EOFError, OSError) as error:
        if reading:
            raise reading[0] from error
        raise RuntimeError(f"training the vocabulary: {context.why_broken()}") from error
    finally:
        process.kill()
        process.join()
        ours.close()


def _train_in_worker(pipe: Any, options: Mapping[str, Any], seed: int) -> None:
    """Train on the lines that come through a pipe, and send back the model or the error."""
    import sentencepiece

    sentencepiece.set_random_generator_seed(seed)
    writer = io.BytesIO()
    lines = itertools.chain.from_iterable(iter(pipe.recv, None))
    try:
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=lines, model_writer=writer, **options
        )
    except (RuntimeError, OSError) as error:
        pipe.send(str(error))
        return
    pipe.send(writer.getvalue())


FREQUENT = 100
"""Minimum occurrences of a character in a long text to get a piece."""
_FREQUENT_SHARE, _FREQUENT_MINIMUM = 1e-5, 3


def frequent_characters(lines: Iterable[str], *, limit: int) -> tuple[str, str]:
    """Count the characters of normalized text, and select those that need a piece.

    A character is frequent if it occurs `FREQUENT` times, or, in a text of less than ten million
    characters, if it is at least one in 100,000 (and occurs three times).

    Args:
      lines: the text.
      limit: maximum number of characters to select; the most frequent are selected.

    Returns:
      The selected characters and the frequent characters beyond the limit, both in descending
      order of frequency.
    """
    import sentencepiece

    make_normalizer: Any = sentencepiece.SentencePieceNormalizer
    normalizer = make_normalizer(rule_name=_NORMALIZATION)
    counts: collections.Counter[str] = collections.Counter()
    reading: list[Exception] = []
    batches = iter(_training_lines(lines, failure=reading))
    with counting("counting characters", unit="lines") as advance:
        while batch := list(itertools.islice(batches, 1000)):
            counts.update("".join(normalizer.Normalize(batch)))
            advance(len(batch))
    if reading:
        raise reading[0]
    for space in " \u2581":  # SentencePiece's mark of a space always has a piece
        counts.pop(space, None)
    minimum = max(_FREQUENT_MINIMUM, min(FREQUENT, math.ceil(_FREQUENT_SHARE * counts.total())))
    frequent = [
        character
        for character, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        if count >= minimum
    ]
    return "".join(frequent[:limit]), "".join(frequent[limit:])


def _training_error(error: str, size: int, required: str) -> InputError:
    """Return SentencePiece's error about the size, reworded for users."""
    message = " ".join(error.split())
    largest = re.search(r"value <= (\d+)", message)
    if largest:
        return InputError(
            f"too little text for {size} pieces; set --size to at most {largest[1]} or add text"
        )
    needed = re.search(r"smaller than required_chars\. \d+ vs (\d+)", message)
    if needed:
        kept = " and the ASCII characters that it keeps (--no-ascii drops them)" if required else ""
        return InputError(
            f"{size} pieces cannot hold the text's characters{kept}; set --size to at least "
            f"{needed[1]}"
        )
    return InputError(f"training a vocabulary of {size} pieces failed: {message}")


def _training_lines(lines: Iterable[str], *, failure: list[Exception]) -> Iterator[str]:
    """Yield lines that the trainer accepts; an error in reading is added to `failure` and ends it.

    An exception cannot pass through SentencePiece's C++; the caller raises it afterwards.
    """
    try:
        for line in lines:
            yield from split_line(line.replace(_RESERVED, " "), max_bytes=MAX_LINE_BYTES)
    except Exception as error:
        failure.append(error)


def split_line(line: str, *, max_bytes: int) -> Iterator[str]:
    """Yield the stripped line if it fits `max_bytes` of UTF-8, else parts split at whitespace.

    A blank line yields nothing. Only a word that is too long by itself is split. In a line that is
    split, runs of whitespace become one space, as they do in normalization.
    """
    line = line.strip()
    if len(line.encode()) <= max_bytes:
        if line:
            yield line
        return
    part: list[str] = []
    used = 0
    for word in line.split():
        for piece in _split_word(word, max_bytes=max_bytes):
            num_bytes = len(piece.encode())
            if part and used + 1 + num_bytes > max_bytes:
                yield " ".join(part)
                part, used = [], 0
            used += num_bytes + bool(part)
            part.append(piece)
    if part:
        yield " ".join(part)


def _split_word(word: str, *, max_bytes: int) -> Iterator[str]:
    # A character takes at most four bytes.
    num_chars = len(word) if len(word.encode()) <= max_bytes else max(1, max_bytes // 4)
    yield from (word[i : i + num_chars] for i in range(0, len(word), num_chars))
