"""An object store that several processes share: gs://bucket/... is files below a directory.

As gcsfs does, it remembers what it has listed unless it is told not to, has directories only where
there are objects, and tells size and CRC32C of an object. It counts requests and bytes.

    EPATH_USE_TF=0 FAKE_STORE=/tmp/x python program.py      # which calls fake_store.use() first
"""

import base64
import collections
import io
import os
import threading
import time
import zlib
from pathlib import Path

import fsspec
import pytest
from etils.epath import backend, gpath
from fsspec.config import conf
from fsspec.registry import _registry
from fsspec.spec import AbstractFileSystem

from t5x_lite.core import object_store

PAGE = 1000
"""Objects that one request lists."""

_lock = threading.Lock()
counts = collections.Counter()
"""Of this process: "list", "get" and "put" requests, and by "read PATH" the bytes of an object."""


def use():
    """Makes this process read gs:// from the store; arrays are written below it by TensorStore."""
    from orbax.checkpoint._src.path import gcs_utils

    for name in ("gs", "gcs"):
        fsspec.register_implementation(name, Store, clobber=True)

    def below(path):
        where = Path(os.environ["FAKE_STORE"], os.fspath(path).removeprefix("gs://"))
        # Arrays are below a directory; "_sharding" is an object.
        return {"driver": "file", "path": str(where) if where.name[0] == "_" else f"{where}/"}

    gcs_utils.get_kvstore_for_gcs = below


@pytest.fixture
def store(tmp_path, monkeypatch):
    """The directory that gs://bucket is, in this process alone; nothing is counted yet."""
    monkeypatch.setenv("FAKE_STORE", str(tmp_path / "store"))
    monkeypatch.setattr(gpath, "_is_tf_installed", lambda: False)
    for name in ("gs", "gcs", "s3"):
        monkeypatch.delitem(conf, name, raising=False)
    for name in ("gs", "gcs"):
        monkeypatch.setitem(_registry, name, Store)
    backend._FileSystemSpecBackend._get_filesystem.cache_clear()
    Store.clear_instance_cache()
    counts.clear()
    _forget()
    (tmp_path / "store" / "bucket").mkdir(parents=True)
    yield tmp_path / "store" / "bucket"
    _forget()
    backend._FileSystemSpecBackend._get_filesystem.cache_clear()
    for name in ("gs", "gcs", "s3"):
        conf.pop(name, None)


def _forget():
    trouble.errors, trouble.always = [], None
    object_store._store.cache_clear()
    object_store._sizes.clear()
    object_store._given_up.clear()


def array_bytes_read():
    """Bytes that TensorStore has read in this process."""
    import tensorstore

    found = tensorstore.experimental_collect_matching_metrics(
        "/tensorstore/kvstore/file/bytes_read"
    )
    return sum(value["value"] for metric in found for value in metric["values"])


class Trouble:
    """What a store does with the next requests for bytes, sizes and listings.

    Attributes:
      errors: raised one after another, each once; a number of seconds waits instead.
      always: raised by every request.
    """

    def __init__(self):
        self.errors: list[Exception | float] = []
        self.always: Exception | None = None

    def meet(self):
        with _lock:
            error = self.errors.pop(0) if self.errors else self.always
        if isinstance(error, int | float):
            time.sleep(error)
        elif error is not None:
            count("failed")
            raise error


trouble = Trouble()


def count(what, number=1):
    with _lock:
        counts[what] += number


class Store(AbstractFileSystem):
    """fsspec's view of it, with fsspec's own cache of listings."""

    protocol = ("gs", "gcs")

    def ls(self, path, detail=True, refresh=False, **kwargs):
        trouble.meet()
        path = self._strip_protocol(path)
        found = None if refresh else self._ls_from_cache(path)
        if found is None:
            count("list")
            found = []
            for name in sorted(os.listdir(_at(path))) if os.path.isdir(_at(path)) else []:
                found += self._entry(f"{path}/{name}")
            if not found:
                found = self._entry(path)
            if not found:
                raise FileNotFoundError(path)
            self.dircache[path] = found
        return found if detail else [entry["name"] for entry in found]

    def find(self, path, maxdepth=None, withdirs=False, detail=False, **kwargs):
        path = self._strip_protocol(path).rstrip("/")
        names = {_name(os.path.join(folder, n)) for folder, _, ns in os.walk(_at(path)) for n in ns}
        names = names or ({path} if os.path.isfile(_at(path)) else set())
        count("list", 1 + len(names) // PAGE)
        if withdirs:
            names |= {str(above) for name in names for above in Path(name).parents}
            names = {name for name in names if name.startswith(f"{path}/")}
        depth = len(Path(path).parts)
        entries = [
            entry
            for name in sorted(names)
            if maxdepth is None or len(Path(name).parts) <= depth + maxdepth
            for entry in self._entry(name)
        ]
        return {e["name"]: e for e in entries} if detail else [e["name"] for e in entries]

    def info(self, path, **kwargs):
        trouble.meet()
        path = self._strip_protocol(path)
        for entry in self._ls_from_cache(self._parent(path)) or []:
            if entry["name"] == path:
                return entry
        count("get")
        entries = self._entry(path)
        if not entries:
            raise FileNotFoundError(path)
        return entries[0]

    def exists(self, path, **kwargs):
        try:
            self.info(path)
        except FileNotFoundError:
            return False
        return True

    def invalidate_cache(self, path=None):
        self.dircache.clear()

    def cat_file(self, path, start=None, end=None, **kwargs):
        """A range of bytes: of what is read, no more is counted."""
        trouble.meet()
        path = self._strip_protocol(path)
        if not os.path.isfile(_at(path)):
            raise FileNotFoundError(path)
        count("get")
        if start is not None:
            count("range")
        content = Path(_at(path)).read_bytes()[start:end]
        count(f"read {path}", len(content))
        return content

    def _entry(self, path):
        """[what is told of an object or a directory]; nothing where there is none."""
        where = _at(path)
        if where.endswith("__lock"):
            return []
        if os.path.isdir(where):
            full = any(files for _, _, files in os.walk(where))
            return [{"name": path, "size": 0, "type": "directory"}] if full else []
        try:
            content = Path(where).read_bytes()
        except FileNotFoundError:
            return []
        except IsADirectoryError:  # another process made it since
            return self._entry(path)
        digest = base64.b64encode(zlib.crc32(content).to_bytes(4, "big")).decode()
        return [{"name": path, "size": len(content), "type": "file", "crc32c": digest}]

    def _open(self, path, mode="rb", **kwargs):
        assert mode in ("rb", "wb"), "nothing can be appended to an object"
        path = self._strip_protocol(path)
        return _reading(path) if mode == "rb" else _Writing(self, path)

    def open(self, path, mode="rb", **kwargs):
        if "b" in mode:
            return self._open(path, mode)
        return io.TextIOWrapper(self._open(path, mode.replace("t", "") + "b"), encoding="utf-8")

    def makedirs(self, path, exist_ok=False):
        pass

    mkdir = makedirs

    def rmdir(self, path):
        pass

    def cp_file(self, path1, path2, **kwargs):
        """In the store: no byte comes here."""
        if os.path.isdir(_at(self._strip_protocol(path1))):
            return
        count("copy")
        content = Path(_at(self._strip_protocol(path1))).read_bytes()
        where = Path(_at(self._strip_protocol(path2)))
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_bytes(content)
        self.invalidate_cache()

    def rm_file(self, path):
        count("delete")
        os.unlink(_at(self._strip_protocol(path)))
        self.invalidate_cache()

    def rm(self, path, recursive=False, maxdepth=None):
        names = self.find(path) if recursive else [path]
        if not names or not (recursive or os.path.isfile(_at(self._strip_protocol(path)))):
            raise FileNotFoundError(path)
        for name in names:
            self.rm_file(name)


def _at(path):
    return os.path.join(os.environ["FAKE_STORE"], path)


def _name(where):
    return os.path.relpath(where, os.environ["FAKE_STORE"])


def _reading(path):
    count("get")
    content = Path(_at(path)).read_bytes()
    count(f"read {path}", len(content))
    return io.BytesIO(content)


class _Writing(io.BytesIO):
    """An object that appears when it is closed."""

    def __init__(self, store, path):
        super().__init__()
        self._store, self._path = store, path

    def close(self):
        if not self.closed:
            count("put")
            os.makedirs(os.path.dirname(_at(self._path)), exist_ok=True)
            hidden = f"{_at(self._path)}.{os.getpid()}.{threading.get_ident()}__lock"
            Path(hidden).write_bytes(self.getvalue())
            os.replace(hidden, _at(self._path))
            self._store.invalidate_cache()
        super().close()
