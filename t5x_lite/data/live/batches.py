"""Training batches whose position can be saved, and gone back to in another process.

    batches = Batches(dataset, identity={"task": "tasks.text:span_corruption", "seed": 0})
    batch = next(batches)                          # {"decoder_target_tokens": int32 [B, T], ...}
    position = batches.state()                     # bytes for the checkpoint: after that batch
    Batches(dataset, identity=...).restore(position)     # goes on with the next one

A position is what tf.data saves of its iterator, buffers included, in one string of bytes that says
whose it is.
"""

import json
import logging
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from t5x_lite.buckets.asking import BucketError
from t5x_lite.data import elements
from t5x_lite.data.live import epochs
from t5x_lite.data.open_iterators import closed_at_exit
from t5x_lite.data.positions import (
    FORMER_LAYOUTS,
    ON_THE_FLY,
    ON_THE_FLY_1,
    check_identity,
    seal,
    unseal,
)
from t5x_lite.data.quiet_tensorflow import tf
from t5x_lite.errors import InputError

_logger = logging.getLogger(__name__)


class Batches(Iterator[dict[str, np.ndarray]]):
    """An endless iterator of batches whose position can be saved.

    Nothing is prefetched in Python: what tf.data holds in its buffers is part of the saved state,
    so the position is that after the last batch which next() handed out.

    Attributes:
      epoch: how often all data were read before the latest example that was handed out; None where
        that is not known.
    """

    def __init__(
        self,
        dataset: tf.data.Dataset,
        *,
        identity: dict[str, Any],
        epoch: int | None = None,
        tells: str | None = None,
    ):
        """Starts at the first batch.

        Args:
          dataset: batches as dicts of tensors.
          identity: what must be equal for a saved position to fit, as JSON.
          epoch: 0 where tokens are marked with the epochs of their examples (`epochs.mark`).
          tells: what the data are called when it is told that they repeat; None does not tell it.
        """
        self.epoch = epoch
        self._tells = tells
        self._identity = json.loads(json.dumps(identity))
        self._iterator: Any = iter(dataset)
        self._checkpoint: Any = tf.train.Checkpoint(iterator=self._iterator)
        closed_at_exit(self)

    def close(self) -> None:
        """Lets go of what is read ahead; no batch comes after it."""
        self._iterator, self._checkpoint = iter(()), None

    def __next__(self) -> dict[str, np.ndarray]:
        try:
            batch = next(self._iterator)
        except tf.errors.OpError as error:
            found = elements.let_go(error)
            if isinstance(found, BucketError):
                self.close()
            raise found from error
        batch = {name: value.numpy() for name, value in batch.items()}
        if self.epoch is None:
            return batch
        batch, epoch = epochs.unmark(batch)
        if self._tells is not None and epoch > self.epoch == 0:
            _logger.warning("epoch 2 begins: the data repeats (%s)", self._tells)
        self.epoch = max(epoch, self.epoch)
        return batch

    def state(self) -> bytes:
        """The position after the last batch that next() handed out."""
        with tempfile.TemporaryDirectory() as directory:
            self._checkpoint.write(f"{directory}/position")
            files = {path.name: path.read_bytes() for path in sorted(Path(directory).iterdir())}
        sizes = {name: len(content) for name, content in files.items()}
        saved = {"identity": self._identity, "epoch": self.epoch, "files": sizes}
        header = json.dumps(saved).encode() + b"\n"
        return seal(ON_THE_FLY, zlib.compress(header + b"".join(files.values()), level=1))

    def restore(self, state: bytes) -> None:
        """Goes to a position that `state` gave, in this process or another.

        Of what an earlier version saved, in an order that is not made any more, nothing is used:
        the batches stay where they are, at their beginning, and a warning says so.

        Raises:
          InputError: if the state is damaged, or is that of other data (which ones is said).
        """
        kind = ON_THE_FLY_1 if state.startswith(ON_THE_FLY_1) else ON_THE_FLY
        saved = _header(kind, state)[0]["identity"]
        layout = saved.get("layout")
        without_scores = "scores" in self._identity and "scores" not in saved
        if kind == ON_THE_FLY_1 or layout in FORMER_LAYOUTS or without_scores:
            self._stay_at_the_beginning({**saved, "layout": FORMER_LAYOUTS.get(layout, layout)})
            return
        epoch, files = self._unpack(state)
        with tempfile.TemporaryDirectory() as directory:
            for name, content in files.items():
                Path(directory, name).write_bytes(content)
            try:
                self._checkpoint.read(f"{directory}/position").assert_consumed()
            except (tf.errors.OpError, AssertionError) as error:
                raise InputError(
                    f"the saved data position does not fit this task: {str(error).splitlines()[0]}"
                ) from error
        self.epoch = epoch

    def _stay_at_the_beginning(self, saved: dict[str, Any]) -> None:
        """Of an earlier version's position, when its identity is of these data."""
        check_identity(saved, {name: self._identity.get(name) for name in saved})
        if not self._identity.get("process_index"):
            _logger.warning(
                "the position in the data was saved by an earlier version, whose order is not made "
                "any more: the data start over, in the new order"
            )

    def _unpack(self, state: bytes) -> tuple[int | None, dict[str, bytes]]:
        """The epoch and the checkpoint files in a state, which must be whole and ours."""
        saved, content = _header(ON_THE_FLY, state)
        check_identity(_with_size(saved["identity"], self._identity), self._identity)
        files = {}
        for name, size in saved["files"].items():
            files[name], content = content[:size], content[size:]
        return saved["epoch"], files


def _with_size(saved: dict[str, Any], current: dict[str, Any]) -> dict[str, Any]:
    """An identity with the size of files, which earlier versions did not know of a bucket's."""
    if saved.get("size", 0) is None and isinstance(current.get("size"), str):
        return {**saved, "size": current["size"]}
    return saved


def _header(kind: bytes, state: bytes) -> tuple[dict[str, Any], bytes]:
    """What a state says of itself, and the files behind it."""
    header, _, content = zlib.decompress(unseal(kind, state)).partition(b"\n")
    return json.loads(header), content
