"""Lines of several files in given shares: "10 parts English, 1 part German".

    sources = weighted_files(["en.txt=10", "de/*.txt=1"])
    sources                              # two, or None where no weight is given
    weighted_lines(sources, seed=0)      # an iterator of lines

A weight is a share of the text in bytes: of UTF-8, blank lines and white space at the ends of lines
left out. No line is repeated, so the scarcest source says how much text there is: all of its lines
are kept, and of every other source each line is kept with one and the same probability, drawn by
the seed. With 50 MB of English and 2 MB of German, 10 to 1, all of the German is read and 40 % of
the English. The shares are exact on average; of a few hundred lines they may be off by some
percent.

The files are read twice, line by line: once to count, once to draw.
"""

import dataclasses
import glob
import logging
import math
import random
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from t5x_lite.errors import InputError
from t5x_lite.records.lines import read_lines

_logger = logging.getLogger(__name__)

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?|nan|inf")


Read = Callable[[Sequence[str]], Iterator[str]]
"""From the names of files to their lines."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """Files that share a weight.

    Attributes:
      name: as it was given, without the weight.
      files: their paths, sorted where the name is a pattern.
      weight: above 0; only the ratios of weights count.
    """

    name: str
    files: tuple[str, ...]
    weight: float


def weighted_files(
    inputs: Sequence[str], *, is_place: Callable[[str], bool] = lambda name: False
) -> list[Source] | None:
    """Reads "FILE=WEIGHT", where FILE may be a pattern such as de/*.txt.

    Args:
      inputs: all with a weight, or all without one. A file whose own name ends in =NUMBER is taken
        whole if it exists.
      is_place: whether a name is left as it is, as of a directory that the reader knows.

    Returns:
      The sources in the order given; None where there are no weights.

    Raises:
      InputError: some have no weight, a weight is no number above 0, a file is missing, cannot be
        read twice, or is there twice.
    """
    pairs = [_split(text) for text in inputs]
    if all(weight is None for _, weight in pairs):
        return None
    sources = []
    for name, weight in pairs:
        if weight is None:
            raise InputError(
                f"--input {name} has no weight, and others have: write FILE=WEIGHT, as {name}=1"
            )
        number = float(weight)
        if not 0 < number < math.inf:
            raise InputError(f"--input {name}={weight}: a weight must be a number above 0")
        files = (name,) if is_place(name) else _files(name)
        sources.append(Source(name=name, files=files, weight=number))
    every = [file for source in sources for file in source.files]
    if twice := next((file for file in every if every.count(file) > 1), None):
        raise InputError(f"--input has {twice} twice: add up its weights")
    return sources


def tempered_files(
    inputs: Sequence[str],
    alpha: float,
    *,
    is_place: Callable[[str], bool] = lambda name: False,
    read: Read = read_lines,
) -> list[Source]:
    """Files or patterns, each a source, whose weights are their bytes to the power of alpha.

    q_l ~ p_l^alpha of languages: with 0.3, XLM-R's, 900 MB and 10 MB are drawn as 3.9 to 1.

    Args:
      inputs: files or patterns, without weights.
      alpha: in (0, 1]; 1 is in proportion.
      is_place: as of `weighted_files`.
      read: gives the lines of files.

    Raises:
      InputError: alpha is no such number; or as `weighted_files`.
    """
    if not 0 < alpha <= 1:
        raise InputError(f"--alpha must be above 0 and at most 1: got {alpha}")
    sources = [
        Source(name=name, files=(name,) if is_place(name) else _files(name), weight=1.0)
        for name in inputs
    ]
    weights = [_bytes_of(source, read) ** alpha for source in sources]
    return [
        dataclasses.replace(source, weight=weight)
        for source, weight in zip(sources, weights, strict=True)
    ]


def weighted_lines(
    sources: Sequence[Source], *, seed: int, read: Read = read_lines
) -> Iterator[str]:
    """The lines that are drawn, source by source, each in the order of its files.

    Args:
      sources: from `weighted_files`.
      seed: of the draws; equal files and seeds give equal lines.
      read: gives the lines of files.

    Raises:
      InputError: at the call if a file is not UTF-8, or a source has no text.
    """
    sizes = [_bytes_of(source, read) for source in sources]
    total = math.fsum(source.weight for source in sources)
    most = min(size * total / one.weight for one, size in zip(sources, sizes, strict=True))
    kept = [
        min(most * one.weight / total / size, 1.0) for one, size in zip(sources, sizes, strict=True)
    ]
    for source, size, share in zip(sources, sizes, kept, strict=True):
        _logger.info(
            "%s: %s of %s parts, %.4g %% of %s bytes",
            *(source.name, f"{source.weight:g}", f"{total:g}", 100 * share, f"{size:,}"),
        )
    return _drawn(sources, kept, seed=seed, read=read)


def _drawn(
    sources: Sequence[Source], kept: Sequence[float], *, seed: int, read: Read
) -> Iterator[str]:
    for place, (source, share) in enumerate(zip(sources, kept, strict=True)):
        # The numbers of `random` are the same in every version of Python.
        draw = random.Random(f"{seed} {place}").random
        for line in read(source.files):
            if line.strip() and draw() < share:
                yield line


def _bytes_of(source: Source, read: Read) -> int:
    size = sum(len(line.strip().encode()) for line in read(source.files))
    if not size:
        raise InputError(f"--input {source.name} holds no text: leave it out, or add some")
    return size


def _split(text: str) -> tuple[str, str | None]:
    """("FILE", "WEIGHT") of "FILE=WEIGHT"; None where there is no weight."""
    name, _, weight = text.rpartition("=")
    if name and not Path(text).exists() and _NUMBER.fullmatch(weight):
        return name, weight
    return text, None


def _files(name: str) -> tuple[str, ...]:
    """The files that a name stands for; they must bear being read twice."""
    if name == "-":
        raise InputError("--input - can be read only once, and a weighted input is read twice")
    found = [name] if Path(name).exists() else sorted(glob.glob(name, recursive=True))
    if not found:
        what = "no file matches" if glob.has_magic(name) else "there is no such file"
        raise InputError(f"--input {name}: {what}")
    for file in found:
        if Path(file).is_dir():
            raise InputError(
                f"--input {file} is a directory: name the files in it, as {file}/*.txt"
            )
        if not stat.S_ISREG(Path(file).stat().st_mode):
            raise InputError(
                f"--input {file} can be read only once, and a weighted input is read twice"
            )
    return tuple(found)
