"""What the readers of damaged files have in common."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

LINES = [
    "The dog runs.",
    "A novel of 1815, and a long one.",
    "Der Hund läuft. 犬",
    "x <extra_id_0> y",
]


@dataclasses.dataclass(frozen=True)
class Reader:
    """What reads some files.

    Attributes:
      make: writes whole files into an empty directory.
      read: reads them.
      forms: which files are damaged, by pattern, and how.
      sign: makes checksums of the damaged files fit, half of the time.
    """

    make: Callable[[Path], None]
    read: Callable[[Path], object]
    forms: dict[str, str]
    sign: Callable[[Path], None] | None = None
