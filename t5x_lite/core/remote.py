"""Paths of this machine and of a bucket, such as gs://bucket/run.

    open_path("work/run")                                   # pathlib.Path
    open_path("gs://bucket/run")                            # etils.epath.Path, the same methods
    local_path("gs://bucket/run", what="checkpoint")        # InputError: asks for a mount

These may be in a bucket: the work directory of `train`, every `--checkpoint` and `--init`, and all
data (`core.object_store`). Files read by a library with its own file access may not. A mounted
bucket, by gcsfuse for example, counts as a local directory.

fsspec's file systems cache listings without expiry, so one host would not see files that another
has written; here the cache is off (`use_listings_cache`, fsspec.config).
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
"""A local path or a path in a bucket, both with pathlib's methods."""

_SCHEMES = ("gs", "s3")
_FSSPEC_NAMES = (*_SCHEMES, "gcs")
_URL = re.compile(r"([a-z][a-z0-9+.-]+)://")


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Return True if a path is a URL, such as "gs://bucket/run"."""
    return _URL.match(os.fspath(path)) is not None


def open_path(path: str | os.PathLike[str]) -> AnyPath:
    """Return the path of a file or directory, wherever it is."""
    if isinstance(path, Path | epath.Path):
        return path
    text = os.fspath(path)
    url = _URL.match(text)
    if url is None:
        return Path(text)
    if url.group(1) not in _SCHEMES:
        raise InputError(f"{text}: only {' and '.join(f'{s}://' for s in _SCHEMES)} are known")
    found = epath.Path(text)
    _list_afresh()
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


def absolute(path: str | os.PathLike[str]) -> epath.Path:
    """Return a path that does not depend on the current directory; a URL as it is.

    epath's own `absolute` makes a directory `gs:` of this machine of it.
    """
    return epath.Path(path) if is_remote(path) else epath.Path(path).absolute()


def local_path(path: str | os.PathLike[str], *, what: str) -> Path:
    """Return the path of something that can be read on this machine only."""
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
    """Write a file atomically; writes of objects to a bucket always are."""
    if is_remote(path):
        path.write_bytes(content)
    else:
        write_atomically(path, content)


def size_of(path: AnyPath) -> int:
    """Return bytes of a file."""
    return epath.Path(path).stat().length if is_remote(path) else os.stat(path).st_size


class StoredObject(NamedTuple):
    """A bucket's metadata of an object; its bytes are not read for it.

    Attributes:
      size: bytes.
      crc32c: CRC-32C of its content, as Google Cloud Storage gives it (base64); None if unknown.
    """

    size: int
    crc32c: str | None


def objects_below(directory: AnyPath) -> dict[str, StoredObject]:
    """Return the objects below a directory of a bucket, as they are now, by relative path.

    This takes one request for every thousand objects with gcsfs or s3fs, and one request for each
    object with only TensorFlow.
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
    """Disable the cache of listings in file systems that are created from now on."""
    from fsspec.config import conf

    for name in _FSSPEC_NAMES:
        conf.setdefault(name, {}).setdefault("use_listings_cache", False)


def files_below(directory: AnyPath) -> Iterator[str]:
    """Yield the files below a directory as relative paths "a/b", sorted within each directory."""
    yield from objects_below(directory) if is_remote(directory) else _walk(directory)


def _walk(directory: AnyPath) -> Iterator[str]:
    """Yield the files below a local directory, one directory after the other."""
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
