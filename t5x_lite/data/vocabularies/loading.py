"""Loading of vocabularies without TensorFlow, and training of SentencePiece models.

The ids are the same as in `seqio.SentencePieceVocabulary(path, extra_ids=100)`: first the model's
pieces, then the sentinels, with `<extra_id_0>` last (T5, Raffel et al. 2020, section 3.1.4). With
T5's model of 32000 pieces:

    vocabulary = load_vocabulary("t5_spiece.model")
    vocabulary.size             -> 32100
    vocabulary.sentinel(0)      -> 32099
    vocabulary.encode("Thank you <extra_id_0> me")  -> [1562, 25, 32099, 140]
    vocabulary.decode([1562, 25, 1])                -> "Thank you"

As in seqio, a sentinel in text is found only at the start of a word. With layout "hf", sentinels,
`</s>`, `<pad>` and `<unk>` are found anywhere, as in transformers. A model with sentinels, such as
mT5's, is loaded with extra_ids=0. `load_vocabulary` also loads byte vocabularies (`byte_level`) and
vocabularies of encoders (`tokenizer` and `spm`).
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
from t5x_lite.core.workers import WorkerContext, counting, waiting
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
    read_spm,
    read_xlm_spm,
)
from t5x_lite.data.vocabularies.tokenizer import Tokenizer, encoded, load_tokenizer, read_byte_level

MAX_LINE_BYTES = 4192
"""Maximum bytes of a line for training, as in T5; longer lines are split before training."""
ASCII = string.digits + string.ascii_letters + string.punctuation
"""Characters of labels, numbers and the prefixes of tasks."""
_NORMALIZATION = "nmt_nfkc"
_OVER_A_SPACE = re.compile(r"[^▁\s][▁\s]")
_RESERVED = "\u2585"
"""SentencePiece's mark of an unknown byte; SentencePiece ignores all lines with this mark."""


class SentencePiece:
    """Vocabulary of a SentencePiece model with appended sentinels.

    Attributes:
      model_path: path of the model file.
      model_bytes: content of the model file, without sentinels.
      extra_ids: number of appended sentinels.
      layout: library with the same rule for finding special tokens in text: "seqio" or "hf"
        (transformers). It does not change the ids of special tokens.
      size: number of ids, including sentinels and added tokens.
      num_sentinels: number of sentinels, appended or in the model.
      added: added tokens, and special tokens with flags that differ from the default.
      legacy: True to insert a space piece after a special token (`legacy` of T5Tokenizer).
      add_prefix_space: True to begin a text with a space piece; only used if `legacy` is False.
      fast: content of a tokenizer.json that encodes the text; b"" if unused.
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
        """Read a SentencePiece model.

        Args:
          model_path: path of a SentencePiece model with the ids pad 0, eos 1 and unk 2.
          extra_ids: number of sentinels to append.
          layout: rule for finding special tokens in text, as in "seqio" or "hf" (transformers).
          added: added tokens, each with an id.
          legacy: True to insert a space piece after a special token.
          add_prefix_space: True to begin a text with a space piece if `legacy` is False.
          fast: content of a tokenizer.json that encodes the text; b"" if unused.
        """
        if extra_ids < 0:
            raise InputError(f"data.extra_ids must be at least 0, but is {extra_ids}")
        if extra_ids > MOST_EXTRA_IDS:
            raise InputError(f"data.extra_ids must not exceed {MOST_EXTRA_IDS}, but is {extra_ids}")
        self.model_path = data_path(model_path)
        self.extra_ids = extra_ids
        self.layout: Layout = layout
        try:
            self.model_bytes = self.model_path.read_bytes()
        except OSError as error:
            raise InputError(
                f"cannot read vocabulary {model_path}: {reason(error)}; give a SentencePiece "
                ".model file or train one with `t5x-lite vocab`"
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
        """Added tokens other than padding, EOS, the unknown token and sentinels."""
        known = {PAD_ID, EOS_ID, UNK_ID}
        known |= {self._num_pieces - 1 - i for i in range(self.num_sentinels)}
        return tuple(token for token in self.added if token.id not in known)

    @property
    def reads_as_seqio(self) -> bool:
        """True if seqio's vocabulary of the same model encodes every text as the same ids."""
        return not self._names and self.legacy

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the model and `extra_ids`; equal digests imply equal ids."""
        content = self.model_bytes + b"\n%d" % self.extra_ids
        if not self.reads_as_seqio:
            said = {**self._reading(), "added_tokens": [t.to_json() for t in self.own_added]}
            content += b"\n" + json.dumps(said, sort_keys=True).encode()
        return hashlib.sha256(content).hexdigest()

    def _reading(self) -> dict[str, Any]:
        said: dict[str, Any] = {}
        if self.added:
            said["added_tokens"] = [token.to_json() for token in self.added]
        if not self.legacy:
            said |= {"legacy": False, "add_prefix_space": self.add_prefix_space}
        return said

    @property
    def divides_words(self) -> bool:
        """True if no token contains a space between two letters."""
        if not self.legacy or any(c.isspace() for name in self._names.values() for c in name):
            return False
        pieces = self.pieces()
        # Without a piece for the space, unknown characters on both sides become one with it.
        return "▁" in pieces and not any(_OVER_A_SPACE.search(piece) for piece in pieces)

    @property
    def sentinel_start(self) -> int:
        """Id of the first sentinel for span corruption; the next sentinels have descending ids."""
        return self._num_pieces - 1

    def sentinel(self, index: int) -> int:
        """Return the id of `<extra_id_{index}>`; `<extra_id_0>` has the model's last id."""
        if not 0 <= index < self.num_sentinels:
            raise ValueError(
                "the index of a sentinel must be at least 0 and less than extra_ids "
                f"({self.num_sentinels}), but is {index}"
            )
        return self._num_pieces - 1 - index

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`, without EOS."""
        [ids] = self.encode_batch([text])
        return ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, without EOS; texts are encoded in parallel threads."""
        if self._special is None:
            return self._processor.EncodeAsIds(list(texts))
        if self._fast is not None and self.layout == "hf":
            return [one.ids for one in encoded(self._fast, texts, where=self.model_path)]
        if self.legacy:
            return self._special.encode(texts, self._plain)
        return [self._encode_without_spaces(text, self._special) for text in texts]

    def _plain(self, texts: list[str]) -> list[list[int]]:
        """Return the ids of texts that contain no special tokens."""
        if not self._names:
            return self._processor.EncodeAsIds(texts)
        return [self._ids(pieces) for pieces in self._processor.EncodeAsPieces(texts)]

    def _ids(self, pieces: Sequence[str]) -> list[int]:
        own, to_id = self._ids_of_pieces, self._processor.PieceToId
        return [own[piece] if piece in own else to_id(piece) for piece in pieces]

    def _encode_without_spaces(self, text: str, special: SpecialTokens) -> list[int]:
        """Return the ids of a text as in T5Tokenizer with legacy=False."""
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
        """Decode ids up to the first EOS; padding is dropped.

        Added tokens are written with spaces around them, unless the vocabulary has a
        tokenizer.json.
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
        """Return the text of each id's token; "" for an id without a token."""
        pieces = [self._processor.IdToPiece(number) for number in range(self._num_pieces)]
        pieces += [""] * (self.size - self._num_pieces)
        for number, content in self._names.items():
            pieces[number] = content
        return pieces

    def files(self) -> dict[str, bytes]:
        """Return the contents of the vocabulary's files, by file name."""
        files = {MODEL_NAME: self.model_bytes}
        if self.layout != "seqio" or self._reading():
            said = {"layout": self.layout, **self._reading()}
            files[LAYOUT_NAME] = json.dumps(said).encode() + b"\n"
        if self.fast:
            files[FAST_NAME] = self.fast
        return files

    def save(self, directory: str | os.PathLike[str]) -> Path:
        """Write the vocabulary's files to a directory atomically, and return the model's path."""
        for name, content in reversed(self.files().items()):
            path = write_file(content, Path(directory) / name)
        return path


def _load_processor(model_bytes: bytes, *, extra_ids: int, where: str) -> Any:
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
                    f"vocabulary {where} already contains {name}; set data.extra_ids to 0"
                )
            model.pieces.add(piece=name, score=0.0, type=user_defined)
        processor.LoadFromSerializedProto(model.SerializeToString())
    except (DecodeError, RuntimeError) as error:
        raise InputError(
            f"vocabulary {where} is not a SentencePiece model; train a model with `t5x-lite vocab`"
        ) from error
    got = (processor.pad_id(), processor.eos_id(), processor.unk_id())
    if got != (PAD_ID, EOS_ID, UNK_ID):
        raise InputError(
            f"vocabulary {where}: the ids of pad, eos and unk must be (0, 1, 2), but are {got}; "
            "train a model with `t5x-lite vocab`"
        )
    return processor


def _without_prefix(processor: Any) -> Any:
    """Return a processor of the same model that does not add a space piece before a text."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2

    kinds: Any = sentencepiece_model_pb2
    model = kinds.ModelProto.FromString(processor.serialized_model_proto())
    model.normalizer_spec.add_dummy_prefix = False
    bare = sentencepiece.SentencePieceProcessor()
    bare.LoadFromSerializedProto(model.SerializeToString())
    return bare


Vocabulary: TypeAlias = SentencePiece | Bytes | Tokenizer
"""Type of any vocabulary; all vocabularies have the same methods."""


def _num_sentinels(processor: Any) -> int:
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
"""Functions that read an encoder's vocabulary, by file name, in the order of preference."""


def load_vocabulary(path: str | os.PathLike[str], *, extra_ids: int = 100) -> Vocabulary:
    """Load a vocabulary from a file or a directory, or a byte vocabulary by its name.

    Args:
      path: local or bucket path of a file, or of a directory that contains it; or the name "bytes"
        or "bytes-hf". Files are bytes.json, tokenizer.json, WordPiece's vocab.txt, DeBERTa's
        spm.model, XLM-R's sentencepiece.bpe.model, RoBERTa's vocab.json next to merges.txt, and
        sentencepiece.model. A single file may have another name if it is a tokenizer (.json), a
        WordPiece vocabulary (.txt) or a SentencePiece model. In a directory, special_tokens.json
        sets how special tokens are found. Write "./bytes" for a directory of this name.
      extra_ids: number of sentinels that are appended to a SentencePiece model or to bytes.

    Raises:
      InputError: if the vocabulary is missing, unreadable or malformed.
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
    """Return the options for encoding text from the special_tokens.json in a directory."""
    path, options = directory / LAYOUT_NAME, dict[str, Any]()
    if not path.is_file():
        return options
    options["layout"] = read_layout(path)
    options |= read_added(path)
    if (directory / FAST_NAME).is_file():
        try:
            options["fast"] = (directory / FAST_NAME).read_bytes()
        except OSError as error:
            raise InputError(
                f"cannot read vocabulary {directory / FAST_NAME}: {reason(error)}"
            ) from error
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
"""SentencePiece's options for the special pieces of DeBERTa's models."""


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
    """Train a unigram SentencePiece model with T5's settings, and write sentencepiece.model.

    T5's settings, read from its model: nmt_nfkc normalization, character coverage 0.9995, a maximum
    of 16 characters per piece, split at whitespace, numbers and scripts, pad 0, eos 1, unk 2, no
    bos, no byte fallback. The same lines and settings give the same file.

    Args:
      lines: lines of text; lines longer than `MAX_LINE_BYTES` are split at whitespace.
      size: number of pieces, including special pieces but without extra ids.
      output_dir: directory of the model, created if missing. Nothing is written if the training
        fails.
      character_coverage: fraction of the text's characters that have a piece.
      required: characters that always have a piece, such as `ASCII`.
      max_lines: maximum number of lines, which limits the memory; lines of a longer text are
        sampled uniformly.
      encoder: True to train with the special pieces [PAD] [CLS] [SEP] [UNK], as in DeBERTa's
        models, and to write spm.model; [MASK] is added when the file is read.
      seed: random seed for sampling lines.

    Returns:
      Path of the model.

    Raises:
      InputError: if the text is empty or does not allow the size.
    """
    import sentencepiece

    if size < 4:
        raise InputError(f"a vocabulary needs at least 4 pieces, but --size is {size}")
    if os.path.exists(output_dir) and not os.path.isdir(output_dir):
        raise InputError(
            f"--output {output_dir} is not a directory ({os.strerror(errno.ENOTDIR)}); give a "
            "directory"
        )
    reading: list[Exception] = []
    pieces = _training_lines(lines, failure=reading)
    # Text that normalization empties (zero-width spaces) ends the process in C++.
    make_normalizer: Any = sentencepiece.SentencePieceNormalizer
    normalize = make_normalizer(rule_name=_NORMALIZATION).Normalize
    first = next((piece for piece in pieces if normalize(piece).strip()), None)
    if reading:
        raise reading[0]
    if first is None:
        raise InputError(
            "a vocabulary cannot be trained on empty text; give --input files with text"
        )
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
    """Train in a separate process that can be stopped, because SentencePiece keeps the GIL."""
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
        raise RuntimeError(f"training the vocabulary failed: {context.why_broken()}") from error
    finally:
        process.kill()
        process.join()
        ours.close()


def _train_in_worker(pipe: Any, options: Mapping[str, Any], seed: int) -> None:
    """Train on the lines from a pipe, and send the model or the error back."""
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
"""Minimum number of occurrences with which a character of a long text has a piece."""
_FREQUENT_SHARE, _FREQUENT_MINIMUM = 1e-5, 3


def frequent_characters(lines: Iterable[str], *, limit: int) -> tuple[str, str]:
    """Return the characters of a text that are so frequent that they need a token.

    A character is frequent if it is at least one in 100,000 characters of the text. However, fewer
    than 3 occurrences never suffice, and `FREQUENT` occurrences always suffice.

    Args:
      lines: lines of text.
      limit: maximum number of characters to select, most frequent first.

    Returns:
      (selected characters, frequent characters beyond the limit), both in descending order of
      frequency.
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
    message = " ".join(error.split())
    largest = re.search(r"value <= (\d+)", message)
    if largest:
        return InputError(
            f"too little text for {size} pieces; set --size to at most {largest[1]} or add text"
        )
    needed = re.search(r"smaller than required_chars\. \d+ vs (\d+)", message)
    if needed:
        kept = " and ASCII (--no-ascii excludes unused ASCII characters)" if required else ""
        return InputError(
            f"{size} pieces are fewer than the text's characters{kept}; set --size to at least "
            f"{needed[1]}"
        )
    return InputError(f"training a vocabulary of {size} pieces failed: {message}")


def _training_lines(lines: Iterable[str], *, failure: list[Exception]) -> Iterator[str]:
    """Yield lines for the trainer; append an error to `failure` instead of raising it.

    An exception cannot pass through SentencePiece's C++ code, so the caller raises the error later.
    """
    try:
        for line in lines:
            yield from split_line(line.replace(_RESERVED, " "), max_bytes=MAX_LINE_BYTES)
    except Exception as error:
        failure.append(error)


def split_line(line: str, *, max_bytes: int) -> Iterator[str]:
    """Yield the stripped line, or its parts split at whitespace if it is longer than `max_bytes`.

    A blank line yields nothing. A word is split only if it is too long by itself. In a split line,
    repeated whitespace becomes one space, as in normalization.
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
