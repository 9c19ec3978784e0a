"""What `--input` names: files, globs, directories, lists of paths, a crawl's paths file.

    expand_inputs(["crawl/*.warc.wet.gz", "gs://crawl/2019-18"])
    expand_inputs(["wet.paths.gz"], base="s3://commoncrawl")

A file named *.paths, *.txt or *.list (or these with .gz) holds a path on each line, relative to
`base`, or to its own directory where none is given. A directory stands for the *.warc and *.wet
files, .gz or not, that are in it or below it.
"""

import glob
import gzip
import io
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from t5x_lite.errors import InputError
from t5x_lite.records.compressed import LARGEST_WHOLE
from t5x_lite.remote import AnyPath, files_below, is_remote, open_path, size_of

_LISTS = (".paths", ".txt", ".list")
_ARCHIVES = (".warc", ".wet", ".warc.gz", ".wet.gz")
_GLOB = re.compile(r"[*?\[]")
_LONGEST_LINE = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Input:
    """A file to read.

    Attributes:
      path: absolute, or gs://, s3://.
      size: bytes.
    """

    path: str
    size: int


def expand_inputs(inputs: Sequence[str], *, base: str = "") -> list[Input]:
    """All files that inputs name, each once, sorted by path: their order does not matter.

    Args:
      inputs: as the user gave them.
      base: where relative paths of lists begin; "" is the list's own directory.

    Raises:
      InputError: one is not there, or names no file.
    """
    if not inputs:
        raise InputError("no input: give WET or WARC files, globs, directories or lists of paths")
    paths: set[str] = set()
    for given in inputs:
        paths.update(_expand(given, base))
    return [_input(path) for path in sorted(paths)]


def _expand(given: str, base: str) -> Iterator[str]:
    if not given.strip():
        raise InputError("an input is empty: give a file, a glob, a directory or a list of paths")
    path = open_path(given)
    if not path.exists():
        if _GLOB.search(given) is None:
            raise InputError(f"input {given}: no such file or directory")
        found = sorted(_glob(given))
        if not found:
            raise InputError(f"input {given}: no file matches")
        yield from found
    elif path.is_dir():
        found = [name for name in files_below(path) if name.endswith(_ARCHIVES)]
        if not found:
            raise InputError(f"input {given}: no file in it ends in {', '.join(_ARCHIVES)}")
        yield from (_absolute(f"{str(path).rstrip('/')}/{name}") for name in found)
    elif given.removesuffix(".gz").endswith(_LISTS):
        yield from _listed(path, given, base)
    else:
        yield _absolute(given)


def _absolute(path: str) -> str:
    return path if is_remote(path) else os.path.abspath(path)


def _glob(pattern: str) -> Iterator[str]:
    """The files that match; `**` stands for any directories."""
    if not is_remote(pattern):
        found = glob.glob(pattern, recursive=True)
        yield from (_absolute(path) for path in found if os.path.isfile(path))
        return
    first = _GLOB.search(pattern)
    assert first is not None
    root, _, _ = pattern[: first.start()].rpartition("/")
    below = pattern[len(root) + 1 :]
    yield from (str(path) for path in open_path(root).glob(below) if not path.is_dir())


def _listed(path: AnyPath, given: str, base: str) -> Iterator[str]:
    """The files that a list names; each must be there."""
    root = (base or _absolute(given).rpartition("/")[0]).rstrip("/")
    count = 0
    for number, line in enumerate(_lines(path, given), start=1):
        if not line or line.startswith("#"):
            continue
        count += 1
        named = line if is_remote(line) or line.startswith("/") else f"{root}/{line}"
        if not open_path(named).exists():
            raise InputError(
                f"{given}:{number}: no file {named}"
                + ("" if base else "; paths of a list are relative to it, or to --base")
            )
        yield _absolute(named)
    if not count:
        raise InputError(f"input {given}: the list names no file")


def _lines(path: AnyPath, given: str) -> Iterator[str]:
    try:
        content = path.read_bytes()
        if content.startswith(b"\x1f\x8b"):
            with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
                content = file.read(LARGEST_WHOLE + 1)
        if len(content) > LARGEST_WHOLE:
            raise InputError(
                f"input {given}: a list of paths has at most {LARGEST_WHOLE} bytes; divide it"
            )
        lines = content.decode("utf-8").splitlines()
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"input {given}: cannot be read ({error})") from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"input {given}: is not a list of paths; a WET or WARC file must not end in .txt"
        ) from error
    for number, line in enumerate(lines, start=1):
        if len(line) > _LONGEST_LINE or line.startswith("WARC/"):
            raise InputError(
                f"{given}:{number}: is not a path; rename WET and WARC files to *.warc"
            )
        yield line.strip()


def _input(path: str) -> Input:
    try:
        return Input(path=path, size=size_of(open_path(path)))
    except OSError as error:
        raise InputError(f"input {path}: cannot be read ({error.strerror or error})") from error
