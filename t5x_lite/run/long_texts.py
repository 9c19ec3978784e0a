"""Inputs and targets that are longer than a command allows: cut with a warning, or refused.

The first that is cut is named at once and the number of all at the end, however many there are.
"""

import logging
from collections.abc import Sequence
from typing import Literal

import numpy as np

from t5x_lite.errors import InputError
from t5x_lite.inference.checkpoint import Checkpoint
from t5x_lite.records.json_lines import Line

_logger = logging.getLogger(__name__)

LongInputs = Literal["cut", "refuse"]


class InputReader:
    """Tokens of the lines' inputs; says which were too long."""

    def __init__(self, long_inputs: LongInputs):
        self._long_inputs = long_inputs
        self._num_cut = 0

    def tokens(self, model: Checkpoint, lines: Sequence[Line]) -> list[np.ndarray]:
        """int32 tokens of each line's "inputs".

        Raises:
          InputError: one is too long, and such are refused.
        """
        rows, cut = model.inputs([line.record["inputs"] for line in lines])
        self.tell(lines, cut, length=model.inputs_length)
        return rows

    def tell(self, lines: Sequence[Line], cut: Sequence[int], *, length: int) -> None:
        """Warn about the first line that is truncated, or refuse it.

        Args:
          lines: of the file.
          cut: indices of those that are too long.
          length: maximum tokens of an input.

        Raises:
          InputError: if a line is too long, and such are refused.
        """
        if cut and self._long_inputs == "refuse":
            raise InputError(
                f"{lines[cut[0]].where}: the input is longer than {length} tokens; "
                "shorten it, raise --inputs-length, or have it cut by --long-inputs cut"
            )
        if cut and not self._num_cut:
            _logger.warning(
                "%s: the input is cut to %d tokens, as all longer ones are (--inputs-length)",
                lines[cut[0]].where,
                length,
            )
        self._num_cut += len(cut)

    def report(self) -> None:
        """Says how many, where it is more than the one that was named."""
        if self._num_cut > 1:
            _logger.warning("%d inputs were cut", self._num_cut)


class TargetReader:
    """Tokens of targets; says which were too long."""

    def __init__(self, long_targets: LongInputs, length: int | None):
        self._long_targets = long_targets
        self._length = length
        self._num_cut = 0

    def tokens(
        self, model: Checkpoint, texts: Sequence[str], *, names: Sequence[str]
    ) -> list[np.ndarray]:
        """int32 tokens of each text with its end.

        Args:
          model: whose vocabulary it is.
          texts: the targets.
          names: of each, for the error.

        Raises:
          InputError: one is too long, and such are refused.
        """
        rows = model.targets(texts, length=self._length)
        if self._length is None:
            return rows
        for name, ids in zip(names, rows, strict=True):
            if len(ids) <= self._length:
                continue
            if self._long_targets == "refuse":
                raise InputError(
                    f"{name} is longer than {self._length} tokens; shorten it, raise "
                    "--targets-length, or have it cut by --long-inputs cut"
                )
            if not self._num_cut:
                _logger.warning(
                    "%s is cut to %d tokens, as all longer ones are (--targets-length): its "
                    "log-likelihood is that of its beginning",
                    name,
                    self._length,
                )
            self._num_cut += 1
        return [ids[: self._length] for ids in rows]

    def report(self) -> None:
        """Says how many, where it is more than the one that was named."""
        if self._num_cut > 1:
            _logger.warning("%d targets were cut", self._num_cut)
