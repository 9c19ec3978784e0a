"""A bucket that is a directory: gs://bucket/... is read and written below it."""

from pathlib import Path

import pytest
from etils.epath import backend, gpath


class _Below:
    """The local backend, with gs://NAME for root/NAME; what it appends to is refused."""

    def __init__(self, root: Path):
        self._root = root

    def __getattr__(self, name):
        method = getattr(backend.os_backend, name)

        def call(*args, **kwargs):
            if name == "open":
                mode = args[1]
                assert "a" not in mode, "nothing can be appended to an object"
                if "w" in mode:
                    self._path(args[0]).parent.mkdir(parents=True, exist_ok=True)
            return method(*map(self._path, args), **kwargs)

        return call

    def _path(self, arg):
        if isinstance(arg, str) and arg.startswith("gs://"):
            return self._root / arg.removeprefix("gs://")
        return arg


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    """The directory that gs://bucket is."""
    root = tmp_path / "cloud"
    (root / "bucket").mkdir(parents=True)
    monkeypatch.setitem(gpath._PREFIX_TO_BACKEND, "gs", _Below(root))
    monkeypatch.setattr(gpath, "_is_tf_installed", lambda: False)
    return root / "bucket"
