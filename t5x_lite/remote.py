"""Paths of this machine and of a bucket, such as gs://bucket/run.

    open_path("work/run")                                   # pathlib.Path
    open_path("gs://bucket/run")                            # etils.epath.Path, the same methods
    local_path("gs://bucket/prose", what="data.directory")  # InputError: says what to mount

What takes a bucket: the work directory of `train` and every `--checkpoint` and `--init`. Files that
are read by a library with its own file access (texts, vocabularies, TensorBoard) do not; a bucket
that is mounted, by gcsfuse for example, is a directory of this machine for everything here.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from etils import epath

from t5x_lite.errors import InputError
from t5x_lite.files import write_atomically

AnyPath: TypeAlias = Path | epath.Path
"""A path that is read and written by pathlib's methods, wherever it is."""

_SCHEMES = ("gs", "s3")
_URL = re.compile(r"([a-z][a-z0-9+.-]+)://")


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a URL, such as "gs://bucket/run"."""
    return _URL.match(os.fspath(path)) is not None


def open_path(path: str | os.PathLike[str]) -> AnyPath:
    """The path of a file or directory, wherever it is.

    Args:
      path: a local path, gs://... or s3://...

    Raises:
      InputError: a URL of another kind, or one that cannot be reached from here.
    """
    if isinstance(path, Path | epath.Path):
        return path
    text = os.fspath(path)
    url = _URL.match(text)
    if url is None:
        return Path(text)
    if url.group(1) not in _SCHEMES:
        raise InputError(f"{text}: only {' and '.join(f'{s}://' for s in _SCHEMES)} are known")
    found = epath.Path(text)
    try:
        found.exists()
    except ImportError as error:
        package = {"gs": "gcsfs", "s3": "s3fs"}[url.group(1)]
        raise InputError(
            f"{text}: a bucket is read by the package {package}, which is not installed; "
            "install it, or mount the bucket and give the mounted path"
        ) from error
    except Exception as error:  # whatever the store's client raises: credentials, network
        reason = str(error).partition("\n")[0][:200]
        raise InputError(f"{text} cannot be reached ({type(error).__name__}: {reason})") from error
    return found


def local_path(path: str | os.PathLike[str], *, what: str) -> Path:
    """The path of something that can be read on this machine only.

    Args:
      path: a path.
      what: the option or field that names it, for the error.

    Raises:
      InputError: it is in a bucket.
    """
    text = os.fspath(path)
    url = _URL.match(text)
    if url is None:
        return Path(text)
    bucket = text[url.end() :].partition("/")[0]
    mount = f"gcsfuse {bucket} DIR" if url.group(1) == "gs" else f"mount {bucket} at DIR"
    raise InputError(
        f"{what} {text}: only files of this machine can be read here; mount the bucket "
        f"({mount}) and give the path below DIR"
    )


def write_whole(path: AnyPath, content: bytes) -> None:
    """Writes a file that is there whole or as it was before; an object of a bucket always is.

    Raises:
      OSError: it cannot be written.
    """
    if is_remote(path):
        path.write_bytes(content)
    else:
        write_atomically(path, content)


def size_of(path: AnyPath) -> int:
    """Bytes of a file.

    Raises:
      OSError: there is none.
    """
    return epath.Path(path).stat().length if is_remote(path) else os.stat(path).st_size


def files_below(directory: AnyPath) -> Iterator[str]:
    """The files below a directory as relative paths "a/b", sorted within each directory."""
    for path in sorted(directory.iterdir(), key=lambda path: path.name):
        if path.is_dir():
            for below in files_below(path):
                yield f"{path.name}/{below}"
        else:
            yield path.name


def remove_tree(directory: AnyPath) -> None:
    """Removes a directory and all that is in it; nothing where it does not exist.

    Of a symbolic link the link alone goes.
    """
    if os.path.islink(directory):
        os.unlink(directory)
        return
    if not directory.exists():
        return
    epath.Path(directory).rmtree()
