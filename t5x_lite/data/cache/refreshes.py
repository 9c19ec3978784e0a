"""Files of `data.refresh`: passages as tokens, and the nearest passages of each example.

DIR/passages/tokens.npy, ends.npy       int32, concatenated tokens of the passages; int64
DIR/passages/keys.npy                   uint64 [N, 4], keys that identify a passage as a positive
                                        ([N, 2] in an earlier version)
DIR/20000/negatives.npy                 int32 [n, top], the passages of each example of the
                                        cache, nearest first; -1 is padding
DIR/20000/refresh.json                  written last: settings, and SHA-256 of negatives.npy
"""

import hashlib
import json
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, UInt64

from t5x_lite.core.errors import InputError
from t5x_lite.core.files import open_atomically, write_atomically
from t5x_lite.core.sharding import Ended, ending
from t5x_lite.data.config import Refresh

POLL_SECONDS = 1.0
_TELL_SECONDS = 60.0
_PASSAGES = "passages"

_logger = logging.getLogger(__name__)


class Passages:
    """Tokens of the passages of a collection, memory-mapped and numbered from 0.

    Args:
      content: int32, concatenated tokens of all passages.
      ends: int64, end of each passage in `content`.
      keys: hashes that identify each passage; None if unknown.

    Attributes:
      keys: uint64 [passages, hashes], hashes of the id and of the text that identify each passage;
        0 if unknown.
    """

    def __init__(self, content: np.ndarray, ends: np.ndarray, keys: np.ndarray | None = None):
        self._content, self._ends = content, ends
        self.keys = np.zeros((len(ends), 2), np.uint64) if keys is None else keys

    def __len__(self) -> int:
        return len(self._ends)

    def tokens(self, number: int) -> Int[np.ndarray, " _"]:
        """Return the tokens of a passage, including its first and last special tokens."""
        start = int(self._ends[number - 1]) if number else 0
        return np.asarray(self._content[start : int(self._ends[number])], np.int32)

    def joined(self, numbers: Sequence[int]) -> Int[np.ndarray, " _"]:
        """Return the concatenated tokens of several passages."""
        return np.concatenate([np.zeros(0, np.int32), *map(self.tokens, numbers)])

    @classmethod
    def open(cls, directory: str | Path) -> "Passages":
        """Open a directory of passages that `write` created."""
        folder = Path(directory) / _PASSAGES
        ends, path = _array(folder / "ends.npy"), folder / "keys.npy"
        keys = _array(path) if path.is_file() else None
        if keys is not None and (
            keys.dtype != np.uint64 or keys.shape not in ((len(ends), 2), (len(ends), 4))
        ):
            raise InputError(f"{path} is missing or damaged; run `t5x-lite refresh`")
        return cls(_array(folder / "tokens.npy"), ends, keys)

    @staticmethod
    def has_keys(directory: str | Path) -> bool:
        """Return True if a directory contains passages and the hashes that identify them."""
        folder = Path(directory) / _PASSAGES
        return all((folder / name).is_file() for name in ("ends.npy", "keys.npy"))

    @classmethod
    def write(
        cls,
        directory: str | Path,
        rows: Sequence[np.ndarray],
        keys: UInt64[np.ndarray, "n K"] | None = None,
    ) -> None:
        """Write the tokens of all passages, and the hashes that identify them, to a directory."""
        folder = Path(directory) / _PASSAGES
        folder.mkdir(parents=True, exist_ok=True)
        content = np.concatenate([np.zeros(0, np.int32), *rows])
        if (folder / "ends.npy").is_file():
            known = cls.open(directory)
            if len(known) != len(rows) or not np.array_equal(known._content, content):
                raise InputError(
                    f"{folder} has other passages than --passages; delete {directory} and train "
                    "from the beginning, or give the --passages of the first call"
                )
        if keys is not None:
            _save(folder / "keys.npy", keys)
        _save(folder / "tokens.npy", content)
        _save(folder / "ends.npy", np.cumsum([len(row) for row in rows], dtype=np.int64))


def tokens_key(tokens: np.ndarray) -> int:
    """Return a 64-bit hash of token ids."""
    content = np.asarray(tokens, "<i4").tobytes()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def name_key(name: str) -> int:
    """Return a 64-bit hash of the id of a passage."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


class Negatives:
    """Hard negatives of all training examples, found by one search during training.

    Attributes:
      digest: SHA-256 of the search results.
    """

    def __init__(self, numbers: np.ndarray, passages: Passages, digest: str):
        self._numbers, self._passages, self.digest = numbers, passages, digest

    def tokens(self, index: int) -> Int[np.ndarray, " _"]:
        """Return the concatenated tokens of all hard negatives of one example."""
        numbers = self._numbers[index]
        return self._passages.joined(numbers[numbers >= 0].tolist())


def is_whole(directory: str | Path, step: int) -> bool:
    """Return True if the search for hard negatives at a training step is finished."""
    return (Path(directory) / str(step) / "refresh.json").is_file()


def write(
    directory: str | Path,
    step: int,
    numbers: Int[np.ndarray, "n top"],
    *,
    settings: Mapping[str, Any],
) -> None:
    """Write the hard negatives that a search with the checkpoint of a training step found."""
    folder = Path(directory) / str(step)
    folder.mkdir(parents=True, exist_ok=True)
    _save(folder / "negatives.npy", numbers.astype(np.int32))
    content = (folder / "negatives.npy").read_bytes()
    node = {**settings, "step": step, "sha256": hashlib.sha256(content).hexdigest()}
    write_atomically(folder / "refresh.json", json.dumps(node, indent=1).encode() + b"\n")


def read(directory: str | Path, step: int, *, num_examples: int) -> Negatives:
    """Read the hard negatives that a search with the checkpoint of a training step found."""
    folder = Path(directory) / str(step)
    try:
        digest = json.loads((folder / "refresh.json").read_text())["sha256"]
        content = (folder / "negatives.npy").read_bytes()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{folder}: the search results of step {step} are missing or damaged; run "
            "`t5x-lite refresh`, or restore the directory"
        ) from error
    if hashlib.sha256(content).hexdigest() != digest:
        raise InputError(
            f"{folder}/negatives.npy does not fit its checksum; run `t5x-lite refresh` again"
        )
    numbers = _array(folder / "negatives.npy")
    if len(numbers) != num_examples:
        raise InputError(
            f"the search results {folder} are for {len(numbers)} examples, but the cache has "
            f"{num_examples}; they belong to another cache"
        )
    return Negatives(numbers, Passages.open(directory), digest)


class Refreshes:
    """Hard negatives of a training run, which repeated searches replace during training.

    Attributes:
      used: SHA-256 of the search results used so far, by training step.
    """

    def __init__(self, refresh: Refresh, *, num_examples: int):
        self._refresh, self._num_examples = refresh, num_examples
        self.used: dict[str, str] = {}

    def left(self, number: int) -> int:
        """Return how many batches, from batch `number` on, use the same hard negatives."""
        return self._refresh.period - number % self._refresh.period

    def negatives(self, number: int) -> Negatives | None:
        """Return the hard negatives for a training batch; None for the hard negatives in the cache.

        If the search for these negatives is not finished, wait for it.
        """
        step, where = self._refresh.searched_by(number), self._refresh.directory
        if not step:
            return None
        known = self.used.get(str(step))
        told = time.monotonic() - _TELL_SECONDS
        while known is None and not is_whole(where, step):
            if time.monotonic() - told >= _TELL_SECONDS:
                _logger.info(
                    "batch %d is waiting for the negatives of step %d, which `t5x-lite refresh` "
                    "writes to %s/%d",
                    number,
                    step,
                    where,
                    step,
                )
                told = time.monotonic()
            if ending.wait(POLL_SECONDS):
                raise Ended(f"the run ended while it waited for the search results {where}/{step}")
        found = read(where, step, num_examples=self._num_examples)
        if known not in (None, found.digest):
            raise InputError(
                f"the search results {where}/{step} have changed since this run used them; restore "
                "the earlier directory, or start a new run"
            )
        self.used[str(step)] = found.digest
        return found


def _array(path: Path) -> np.ndarray:
    try:
        if np.load(path, mmap_mode="r", allow_pickle=False).size:
            return np.load(path, mmap_mode="r", allow_pickle=False)
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path} is missing or damaged; run `t5x-lite refresh`") from error


def _save(path: Path, values: np.ndarray) -> None:
    with open_atomically(path) as file:
        np.lib.format.write_array(file, values, allow_pickle=False)
