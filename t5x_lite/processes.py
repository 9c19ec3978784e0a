"""What the processes of one run tell each other, and the threads of one process."""

import hashlib
import threading

import jax
import numpy as np

_BYTES = 400

ending = threading.Event()
"""Whether a signal asks this process to end, where it is alone: what waits for long gives up."""


class Ended(Exception):
    """What was waited for did not come before `ending`."""


def first_told(text: str) -> str:
    """The first text that is not empty, of all processes in the order of their index.

    All processes call it, each with its own text, and all get the same one; it is a barrier as
    well. With one process it is the text as given.

    Args:
      text: about 400 bytes of it are told.
    """
    if jax.process_count() == 1:
        return text
    mine = np.zeros(_BYTES, np.uint8)
    encoded = np.frombuffer(text.encode()[:_BYTES], np.uint8)
    mine[: encoded.size] = encoded
    every = _gathered(mine)
    told = [bytes(row).rstrip(b"\0").decode(errors="ignore") for row in every]
    return next((text for text in told if text), "")


def all_told(text: str) -> list[str]:
    """Return the texts of all processes, in the order of their index.

    All processes call it, each with its own text, and all get the same list; it is a barrier as
    well. Only digests travel if all texts are equal.
    """
    if jax.process_count() == 1:
        return [text]
    own = np.frombuffer(text.encode(), np.uint8)
    head = np.frombuffer(
        hashlib.sha256(own.tobytes()).digest() + own.size.to_bytes(8, "little"), np.uint8
    )
    heads = _gathered(head)
    if (heads == head).all():
        return [text] * len(heads)
    sizes = [int.from_bytes(bytes(row[-8:]), "little") for row in heads]
    rows = _gathered(np.pad(own, (0, max(sizes) - own.size)))
    return [bytes(row[:size]).decode() for row, size in zip(rows, sizes, strict=True)]


def _gathered(own: np.ndarray) -> np.ndarray:
    """The bytes of all processes, a row each."""
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(own)).reshape(-1, own.size)
