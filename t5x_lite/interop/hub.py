"""Models of the Hugging Face Hub by name: downloaded, or found in the hub's local cache.

    find_source("google/flan-t5-small")         # .../snapshots/0fc9ddf78a1e988dac52e2dac...
    find_source("google/flan-t5-small", revision="v1.0")
    find_source("work/flan")                    # a directory of that name wins: as it is

The download goes through huggingface_hub (extra `hub`), which keeps it in its cache and logs in by
its own rules. Where the hub cannot be reached or the extra is missing, the cache serves alone:

    $HF_HUB_CACHE/models--ORG--NAME/refs/main          the name of the snapshot
    $HF_HUB_CACHE/models--ORG--NAME/snapshots/SHA/     the files, links to blobs/

Formats that are not read (TensorFlow, ONNX, ...) are not downloaded, and of several one is.
"""

import dataclasses
import fnmatch
import importlib.util
import logging
import os
import re
import shlex
import socket
import urllib.parse
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from t5x_lite.core.errors import InputError, install_command

_logger = logging.getLogger(__name__)

_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_NOT_READ = (
    *("*.h5", "*.ot", "*.onnx", "*.onnx_data", "*.gguf", "*.tflite", "*.mlmodel", "*.ckpt*"),
    *("onnx/*", "openvino/*", "coreml/*", "*.md", "*.png", "*.jpg", "*.gif", ".git*"),
)
_SECONDS = 5.0
"""For which a connection to the hub is waited."""
_GENERATOR = "pytorch_model.generator.bin"
_BY_PREFERENCE = (
    ("model*.safetensors", "adapter_model.safetensors"),
    ("pytorch_model*.bin", "adapter_model.bin"),
    ("flax_model*.msgpack",),
)
"""Patterns of the weights, of which the first that a repository has is downloaded."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """Where a source is on this machine.

    Attributes:
      directory: that holds its files.
      repository: its name at the hub; "" of a directory.
      revision: the commit, where that is known; else "".
    """

    directory: Path
    repository: str = ""
    revision: str = ""


def is_hub_id(source: str) -> bool:
    """Whether a name may be one of the hub, ORG/NAME or NAME."""
    return _ID.fullmatch(source) is not None and "--" not in source and ".." not in source


def find_source(
    source: str | Path, *, revision: str | None = None, generator: bool = False
) -> Found:
    """Where the files of a source are, which are downloaded where they have to be."""
    name = str(source)
    if Path(source).exists() or not is_hub_id(name):
        if revision is not None:
            raise InputError(f"--revision is for models of the hub, and {source} is a path")
        return Found(directory=Path(source))
    reason = "the extra is not installed"
    if importlib.util.find_spec("huggingface_hub") is None:
        remedy = f"{install_command('hub')}, or "
    else:
        remedy, downloaded = "", _download(name, revision, generator=generator)
        if isinstance(downloaded, Path):
            return Found(directory=downloaded, repository=name, revision=downloaded.name)
        reason = downloaded
    cached = find_cached(name, revision)
    if cached is not None:
        _logger.info("%s: the cached copy %s is used (%s)", name, cached, reason)
        return Found(directory=cached, repository=name, revision=cached.name)
    raise InputError(
        f"{name}: no such directory, and as a model of the hub it is not here ({reason}): {remedy}"
        f"run `{download_command(name, revision)}` where the hub can be reached, and give that "
        "directory"
    )


def download_command(repository: str, revision: str | None = None) -> str:
    """The command of huggingface_hub that makes a directory of a repository."""
    words = ["hf", "download", repository]
    words += [] if revision is None else ["--revision", revision]
    return shlex.join([*words, "--local-dir", repository.rpartition("/")[2]])


def cache_directory() -> Path:
    """Where huggingface_hub keeps what it downloads, by its environment variables."""
    if own := os.environ.get("HF_HUB_CACHE"):
        return Path(own).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    home = os.environ.get("HF_HOME", f"{cache}/huggingface")
    return Path(home).expanduser() / "hub"


def find_cached(repository: str, revision: str | None = None) -> Path | None:
    """The snapshot of a revision in the cache; None where it has none with files."""
    folder = cache_directory() / f"models--{repository.replace('/', '--')}"
    wanted = revision or "main"
    reference = folder / "refs" / wanted
    try:
        commit = reference.read_text(encoding="utf-8").strip() if reference.is_file() else wanted
        snapshot = folder / "snapshots" / commit
        return snapshot if snapshot.parent.is_dir() and any(snapshot.iterdir()) else None
    except (OSError, UnicodeDecodeError):
        return None


def wanted_files(names: Sequence[str], *, generator: bool = False) -> list[str]:
    """The files of a repository that are read: all but weights of other formats."""
    weights = next(
        (
            patterns
            for patterns in _BY_PREFERENCE
            if any(fnmatch.fnmatchcase(name, one) for name in names for one in patterns)
        ),
        (),
    )
    others = [one for patterns in _BY_PREFERENCE if patterns != weights for one in patterns]
    if generator:
        return [
            n for n in names if n == _GENERATOR or not _matches(n, (*_NOT_READ, *weights, *others))
        ]
    return [n for n in names if n != _GENERATOR and not _matches(n, (*_NOT_READ, *others))]


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def why_unreachable(endpoint: str) -> str:
    """Why a server does not take a connection, "" where it does or a proxy stands between."""
    address = urllib.parse.urlsplit(endpoint)
    if address.scheme in urllib.request.getproxies():
        return ""
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        socket.create_connection((address.hostname or "", port), timeout=_SECONDS).close()
    except OSError as error:
        return f"{address.hostname}: {error.strerror or error}"
    return ""


def _download(repository: str, revision: str | None, *, generator: bool) -> Path | str:
    """The snapshot of a repository, or why it cannot be reached."""
    import huggingface_hub
    from huggingface_hub import constants, errors

    hub: Any = huggingface_hub
    if unreachable := why_unreachable(constants.ENDPOINT):
        return unreachable  # at once: the library would try again for half a minute
    try:
        names = wanted_files(
            hub.HfApi().list_repo_files(repository, revision=revision), generator=generator
        )
        return Path(hub.snapshot_download(repository, revision=revision, allow_patterns=names))
    except errors.GatedRepoError as error:
        raise InputError(
            f"{repository} is gated: ask for access on its page of the hub, and run `hf auth login`"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise InputError(f"{repository} has no revision {revision} at the hub") from error
    except errors.RepositoryNotFoundError as error:
        raise InputError(
            f"{repository}: no such directory, and no such model at the hub; a private one needs "
            "`hf auth login`"
        ) from error
    except InputError:
        raise
    except Exception as error:  # whatever the transport raises
        return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
