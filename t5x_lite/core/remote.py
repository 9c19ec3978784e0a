"""Paths on this machine or in a bucket, such as gs://bucket/run.

    open_path("work/run")                                   # pathlib.Path
    open_path("gs://bucket/run")                            # etils.epath.Path, the same methods
    local_path("gs://bucket/run", what="checkpoint")        # InputError: asks for a mount

Paths in a bucket are valid for the work directory of `train`, every `--checkpoint` and `--init`,
and all data (`core.object_store`), but not for files that a library opens itself. A mounted bucket,
for example by gcsfuse, counts as a local directory.

fsspec caches directory listings without expiry, so a host could miss files that another host has
written. This module disables that cache (`use_listings_cache`, fsspec.config).
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from etils import epath

from t5x_lite.core.errors import InputError
from t5x_lite.core.files import write_atomically

AnyPath: TypeAlias = Path | epath.Path
"""Local path or path in a bucket, both with pathlib's methods."""

_SCHEMES = ("gs", "s3")
_FSSPEC_NAMES = (*_SCHEMES, "gcs")
_URL = re.compile(r"([a-z][a-z0-9+.-]+)://")


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Return True if a path is a URL, such as "gs://bucket/run"."""
    return _URL.match(os.fspath(path)) is not None


def open_path(path: str | os.PathLike[str]) -> AnyPath:
    """Convert a local path or a bucket URL to a path object, and check access to the bucket."""
    if isinstance(path, Path | epath.Path):
        return path
    text = os.fspath(path)
    url = _URL.match(text)
    if url is None:
        return Path(text)
    if url.group(1) not in _SCHEMES:
        raise InputError(
            f"URL {text} has an unknown scheme; use {' or '.join(f'{s}://' for s in _SCHEMES)}"
        )
    found = epath.Path(text)
    _list_afresh()
    try:
        found.exists()
    except ImportError as error:
        package = {"gs": "gcsfs", "s3": "s3fs"}[url.group(1)]
        raise InputError(
            f"URL {text} needs the package {package}, which is not installed; install it, or "
            "mount the bucket and give the mounted path"
        ) from error
    except Exception as error:  # whatever the store's client raises: credentials, network
        reason = str(error).partition("\n")[0][:200]
        raise InputError(
            f"URL {text} cannot be reached ({type(error).__name__}: {reason})"
        ) from error
    return found


def absolute(path: str | os.PathLike[str]) -> epath.Path:
    """Return the absolute path of a local path; return a URL unchanged.

    epath's `absolute` would turn a URL into a local directory named `gs:`.
    """
    return epath.Path(path) if is_remote(path) else epath.Path(path).absolute()


def local_path(path: str | os.PathLike[str], *, what: str) -> Path:
    """Return a local path, or raise InputError for a URL.

    Args:
      path: local path or URL.
      what: name of the file in the message, such as "checkpoint".
    """
    text = os.fspath(path)
    url = _URL.match(text)
    if url is None:
        return Path(text)
    bucket = text[url.end() :].partition("/")[0]
    mount = f"gcsfuse {bucket} DIR" if url.group(1) == "gs" else f"mount {bucket} at DIR"
    raise InputError(
        f"{what} {text} must be a local path; mount the bucket ({mount}) and give the path inside "
        "the mounted directory DIR"
    )


def write_whole(path: AnyPath, content: bytes) -> None:
    """Write a file atomically, on this machine or in a bucket."""
    if is_remote(path):
        path.write_bytes(content)
    else:
        write_atomically(path, content)


def size_of(path: AnyPath) -> int:
    """Return the size of a file in bytes."""
    return epath.Path(path).stat().length if is_remote(path) else os.stat(path).st_size


class StoredObject(NamedTuple):
    """Metadata of an object in a bucket.

    Attributes:
      size: size in bytes.
      crc32c: base64 CRC-32C of the content, from Google Cloud Storage; None if unknown.
    """

    size: int
    crc32c: str | None


def objects_below(directory: AnyPath) -> dict[str, StoredObject]:
    """Return the metadata of the current objects below a bucket directory, by relative path.

    gcsfs and s3fs need one request for each 1,000 objects, TensorFlow one for each object.
    """
    store = _object_store(directory)
    if store is None:
        if not directory.is_dir():
            return {}
        names = _walk(directory)
        return {name: StoredObject(size_of(directory / name), None) for name in names}
    store.invalidate_cache()
    top = os.fspath(directory).partition("://")[2].rstrip("/") + "/"
    objects = {
        path.removeprefix(top): StoredObject(int(entry["size"]), entry.get("crc32c"))
        for path, entry in store.find(os.fspath(directory), detail=True).items()
        if path.startswith(top) and not path.endswith("/")
    }
    return dict(sorted(objects.items(), key=lambda item: item[0].split("/")))


def _object_store(directory: AnyPath) -> Any:
    import fsspec

    try:
        return fsspec.filesystem(os.fspath(directory).partition("://")[0], use_listings_cache=False)
    except ImportError:
        return None


def _list_afresh() -> None:
    """Disable fsspec's cache of directory listings for file systems created later."""
    from fsspec.config import conf

    for name in _FSSPEC_NAMES:
        conf.setdefault(name, {}).setdefault("use_listings_cache", False)


def files_below(directory: AnyPath) -> Iterator[str]:
    """Yield relative paths "a/b" of the files below a directory, sorted in each directory."""
    yield from objects_below(directory) if is_remote(directory) else _walk(directory)


def _walk(directory: AnyPath) -> Iterator[str]:
    for path in sorted(directory.iterdir(), key=lambda path: path.name):
        if path.is_dir():
            for below in _walk(path):
                yield f"{path.name}/{below}"
        else:
            yield path.name


def remove_tree(directory: AnyPath) -> None:
    """Remove a directory and its content, if it exists.

    If it is a symbolic link, only the link is removed.
    """
    if os.path.islink(directory):
        os.unlink(directory)
        return
    if not directory.exists():
        return
    epath.Path(directory).rmtree()
