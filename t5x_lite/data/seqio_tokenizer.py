"""A `tokenizer_vocabulary.Tokenizer` as seqio wants a vocabulary: for tasks that read text fields.

The class is made when it is asked for, as seqio takes seconds to import.
"""

import functools
from collections.abc import Iterable
from typing import Any

import numpy as np


def seqio_vocabulary(tokenizer: Any) -> Any:
    """The same ids as a seqio.Vocabulary, whose EOS is the tokenizer's.

    Args:
      tokenizer: a `tokenizer_vocabulary.Tokenizer`.
    """
    return _class()(tokenizer)


@functools.cache
def _class() -> Any:
    from t5x_lite.data.quiet_tensorflow import seqio, tf

    class Tokenized(seqio.Vocabulary):
        """Encodes in Python, by a pure function: a saved iterator goes on as it was."""

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
            """Ids of a string, int32 [_], or of n strings, ragged [n, _]."""

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
