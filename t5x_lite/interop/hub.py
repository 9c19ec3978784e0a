"""Models of the Hugging Face Hub by name, downloaded or read from the hub's local cache.

    find_source("google/flan-t5-small")         # .../snapshots/0fc9ddf78a1e988dac52e2dac...
    find_source("google/flan-t5-small", revision="v1.0")
    find_source("work/flan")                    # an existing local directory has priority

huggingface_hub (extra `hub`) downloads the files into its cache and handles the login. If the hub
cannot be reached or the extra is not installed, the files are read from the cache:

    $HF_HUB_CACHE/models--ORG--NAME/refs/main          the commit of the snapshot
    $HF_HUB_CACHE/models--ORG--NAME/snapshots/SHA/     the files, links to blobs/

Formats that t5x_lite does not read (TensorFlow, ONNX, ...) are not downloaded. If a repository has
weights in several formats, only one is downloaded.
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
"""Timeout of a connection to the hub, in seconds."""
_GENERATOR = "pytorch_model.generator.bin"
_BY_PREFERENCE = (
    ("model*.safetensors", "adapter_model.safetensors"),
    ("pytorch_model*.bin", "adapter_model.bin"),
    ("flax_model*.msgpack",),
)
"""File patterns of the weights, best first; only the first format that exists is downloaded."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """Local directory of a model, with its name and commit at the Hugging Face Hub.

    Attributes:
      directory: directory of the files.
      repository: name of the repository at the hub, or "" for a local directory.
      revision: commit, or "" if unknown.
    """

    directory: Path
    repository: str = ""
    revision: str = ""


def is_hub_id(source: str) -> bool:
    """Return True if a name has the form of a hub repository, ORG/NAME or NAME."""
    return _ID.fullmatch(source) is not None and "--" not in source and ".." not in source


def find_source(
    source: str | Path, *, revision: str | None = None, generator: bool = False
) -> Found:
    """Return the local directory of a model; download it from the Hugging Face Hub if necessary."""
    name = str(source)
    if Path(source).exists() or not is_hub_id(name):
        if revision is not None:
            raise InputError(
                f"--revision applies only to models of the hub, but {source} is a path; remove "
                "--revision"
            )
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
        _logger.info(
            "%s: using the cached copy %s, because the hub is not available (%s)",
            name,
            cached,
            reason,
        )
        return Found(directory=cached, repository=name, revision=cached.name)
    raise InputError(
        f"{name}: no such directory, and no copy in the hub's cache ({reason}); {remedy}run "
        f"`{download_command(name, revision)}` on a machine with access to the hub, and pass "
        "the downloaded directory"
    )


def download_command(repository: str, revision: str | None = None) -> str:
    """Return the shell command that downloads a model from the Hugging Face Hub."""
    words = ["hf", "download", repository]
    words += [] if revision is None else ["--revision", revision]
    return shlex.join([*words, "--local-dir", repository.rpartition("/")[2]])


def cache_directory() -> Path:
    """Return the cache directory of huggingface_hub, from its environment variables."""
    if own := os.environ.get("HF_HUB_CACHE"):
        return Path(own).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    home = os.environ.get("HF_HOME", f"{cache}/huggingface")
    return Path(home).expanduser() / "hub"


def find_cached(repository: str, revision: str | None = None) -> Path | None:
    """Return the directory of a model in the local cache of the Hugging Face Hub, or None."""
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
    """Return the names of a model's files to download, with weights in only one format."""
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
    """Return the reason why a server cannot be reached, or "" if a test connection succeeds."""
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
    import huggingface_hub
    from huggingface_hub import constants, errors

    hub: Any = huggingface_hub
    if unreachable := why_unreachable(constants.ENDPOINT):
        return unreachable  # at once: huggingface_hub would retry for half a minute
    try:
        names = wanted_files(
            hub.HfApi().list_repo_files(repository, revision=revision), generator=generator
        )
        return Path(hub.snapshot_download(repository, revision=revision, allow_patterns=names))
    except errors.GatedRepoError as error:
        raise InputError(
            f"{repository} is gated: request access on its page at the hub, then run `hf auth "
            "login`"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise InputError(f"{repository} has no revision {revision} at the hub") from error
    except errors.RepositoryNotFoundError as error:
        raise InputError(
            f"{repository}: no such directory, and no such model at the hub; run `hf auth "
            "login` if the model is private"
        ) from error
    except InputError:
        raise
    except Exception as error:  # whatever the transport raises
        return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
