"""Conversion of vocabularies to seqio.Vocabulary, for the preprocessors of tasks.

The classes are created on first use, because seqio takes seconds to import.
"""

import atexit
import functools
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from t5x_lite.core.object_store import BucketPath
from t5x_lite.data.vocabularies.byte_level import FIRST_BYTE, NUM_PLAIN, Bytes
from t5x_lite.data.vocabularies.loading import SentencePiece, Vocabulary
from t5x_lite.data.vocabularies.tokenizer import Tokenizer


def seqio_vocabulary(vocabulary: Vocabulary) -> Any:
    """Return a seqio.Vocabulary with the same ids as a vocabulary.

    Texts are encoded by seqio's classes, or by `vocabulary.encode` if the ids would differ. The EOS
    of a `Tokenizer` is [SEP].
    """
    if not isinstance(vocabulary, Tokenizer) and not vocabulary.reads_as_seqio:
        return _tokenizer_class()(vocabulary)
    if isinstance(vocabulary, SentencePiece):
        from t5x_lite.data.elements import seqio

        path = vocabulary.model_path
        if isinstance(path, BucketPath):
            path = _copy(vocabulary.model_bytes)
        return seqio.SentencePieceVocabulary(str(path), extra_ids=vocabulary.extra_ids)
    if isinstance(vocabulary, Bytes):
        return _bytes_class()(extra_ids=vocabulary.size - NUM_PLAIN)
    return _tokenizer_class()(vocabulary)


@functools.cache
def _copy(model: bytes) -> Path:
    directory = tempfile.TemporaryDirectory(prefix="t5x_lite_")
    atexit.register(directory.cleanup)
    path = Path(directory.name, "sentencepiece.model")
    path.write_bytes(model)
    return path


@functools.cache
def _bytes_class() -> Any:
    from t5x_lite.data.elements import seqio, tf

    class ByteVocabulary(seqio.ByteVocabulary):
        """Byte vocabulary that encodes several texts as a ragged tensor, unlike seqio's."""

        def _encode_tf(self, s: Any) -> Any:
            if s.shape.rank == 0:
                return super()._encode_tf(s)
            split = tf.strings.bytes_split(s)
            values = tf.io.decode_raw(split.flat_values, tf.uint8)[:, 0]
            return split.with_flat_values(tf.cast(values, tf.int32) + FIRST_BYTE)

    return ByteVocabulary


@functools.cache
def _tokenizer_class() -> Any:
    from t5x_lite.data.elements import seqio, tf

    class Tokenized(seqio.Vocabulary):
        """seqio vocabulary that encodes in pure Python, so that tf.data iterators can be saved."""

        def __init__(self, tokenizer: Any):
            super().__init__()
            self.tokenizer = tokenizer

        @property
        def pad_id(self) -> int:
            return self.tokenizer.pad_id

        @property
        def eos_id(self) -> int:
            return self.tokenizer.eos_id

        @property
        def unk_id(self) -> int:
            return self.tokenizer.unk_id

        @property
        def _base_vocab_size(self) -> int:
            return self.tokenizer.size

        def _encode(self, s: str) -> list[int]:
            return self.tokenizer.encode(s)

        def _decode(self, ids: Iterable[int]) -> str:
            return self.tokenizer.decode(ids)

        def _encode_tf(self, s: Any) -> Any:
            """Return the ids of a string, int32 [_], or of n strings, ragged [n, _]."""

            def encode(texts):
                found = self.tokenizer.encode_batch([text.decode() for text in texts])
                sizes = np.array([len(ids) for ids in found], np.int64)
                return np.array([i for ids in found for i in ids], np.int32), sizes

            texts = tf.reshape(s, [-1])
            ids, sizes = tf.numpy_function(encode, [texts], [tf.int32, tf.int64], stateful=False)
            ids, sizes = tf.ensure_shape(ids, [None]), tf.ensure_shape(sizes, [None])
            if s.shape.rank == 0:
                return ids
            ragged: Any = tf.RaggedTensor
            return ragged.from_row_lengths(ids, sizes, validate=False)

        def _decode_tf(self, ids: Any) -> Any:
            raise NotImplementedError("texts are decoded in Python")

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Tokenized) and other.tokenizer.digest == self.tokenizer.digest

        def __hash__(self) -> int:
            return hash(self.tokenizer.digest)

    return Tokenized
