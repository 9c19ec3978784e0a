"""The I-th of N parts of a file's records, for so many hosts that each do one.

    share = Share.of_text("2/3")
    share.bounds(1000, whole=64, what="texts")      # (320, 640): whole blocks of 64

A part is a run of whole blocks, so that each block is what it is where one host does all: results
of the parts, one behind the other, are those of one host to the last bit.
"""

import re
from typing import NamedTuple

from t5x_lite.errors import InputError


class Share(NamedTuple):
    """One part of several.

    Attributes:
      number: from 1.
      of: how many parts there are.
    """

    number: int
    of: int

    @classmethod
    def of_text(cls, text: str) -> "Share":
        """Reads "I/N".

        Raises:
          InputError: it is none, or I is not from 1 to N.
        """
        found = re.fullmatch(r"(\d+)/(\d+)", text)
        share = cls(*map(int, found.groups())) if found else None
        if share is None or not 1 <= share.number <= share.of:
            raise InputError(f"--part must be I/N, such as 1/4 and 4/4: got {text!r}")
        return share

    def bounds(self, total: int, *, whole: int, what: str) -> tuple[int, int]:
        """The first record of the part, and the one behind its last.

        Args:
          total: records of all parts.
          whole: records of a block.
          what: the records, for the error.

        Raises:
          InputError: there are fewer blocks than parts.
        """
        blocks = -(-total // whole)
        if blocks < self.of:
            raise InputError(
                f"--part {self.number}/{self.of}: {total} {what} are {blocks} blocks of {whole}, "
                f"and a part has at least one: divide them into {blocks} parts or fewer"
            )
        first, end = (
            blocks * number // self.of * whole for number in (self.number - 1, self.number)
        )
        return first, min(end, total)
