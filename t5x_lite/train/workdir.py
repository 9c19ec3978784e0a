"""Work directory of a run.

    config.json  run.json  vocabulary/  checkpoints/  metrics.jsonl  samples.jsonl  tensorboard/

Objects in a bucket (gs://bucket/run) cannot be appended to. So growing files (metrics.jsonl,
samples.jsonl, classes.jsonl, TensorBoard's events) are written to a temporary local directory, and
copied to the bucket at every checkpoint and at the end.
"""

import contextlib
import dataclasses
import fcntl
import json
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import jax

from t5x_lite import config as configs
from t5x_lite.checkpoints import reading as checkpointing
from t5x_lite.config import Experiment
from t5x_lite.config.file import from_json, to_json
from t5x_lite.core import remote
from t5x_lite.core.errors import InputError
from t5x_lite.core.remote import AnyPath
from t5x_lite.core.run_history import RUN_FILE, add_start
from t5x_lite.data.vocabularies.added_tokens import (
    BYTES_NAME,
    LAYOUT_NAME,
    MODEL_NAME,
    SPM_NAME,
    TOKENIZER_CONFIG_NAME,
    TOKENIZER_NAME,
    WORDPIECE_NAME,
)
from t5x_lite.data.vocabularies.loading import Vocabulary
from t5x_lite.data.vocabularies.spm import read_spm
from t5x_lite.data.vocabularies.tokenizer import Tokenizer

_logger = logging.getLogger(__name__)

PHASES = "phases"
"""Directory name for the work directories of earlier phases (`train.phases`)."""

_APPENDED = ("metrics.jsonl", "samples.jsonl", "classes.jsonl")
_VOCABULARY_FILES = (
    MODEL_NAME,
    BYTES_NAME,
    WORDPIECE_NAME,
    TOKENIZER_NAME,
    TOKENIZER_CONFIG_NAME,
)


@dataclasses.dataclass(frozen=True)
class WorkDirectory:
    """Work directory of a run.

    Attributes:
      path: directory of --workdir, local or in a bucket.
      local: local directory; equals `path` unless that is in a bucket.
      sizes: file name -> size in bytes when the local file was last copied to the bucket.
      locks: file descriptors of the lock that excludes other runs.
    """

    path: AnyPath
    local: Path
    sizes: dict[str, int] = dataclasses.field(default_factory=dict)
    locks: list[int] = dataclasses.field(default_factory=list)

    @classmethod
    @contextlib.contextmanager
    def open(cls, workdir: str) -> "Iterator[WorkDirectory]":
        """Open a work directory for the `with` block; it need not exist yet."""
        if not workdir:
            raise InputError("no work directory is set; pass --workdir DIR")
        path = remote.open_path(workdir)
        if isinstance(path, Path):
            found = cls(path, path)
            try:
                yield found
            finally:
                for descriptor in found.locks:
                    os.close(descriptor)
            return
        with tempfile.TemporaryDirectory(prefix="t5x_lite-") as directory:
            found = cls(path, Path(directory))
            for name in _APPENDED:
                if (path / name).exists():
                    (found.local / name).write_bytes((path / name).read_bytes())
            try:
                yield found
            except BaseException:
                found.copy()
                raise
            found.copy(last=True)

    def copy(self, *, last: bool = False) -> None:
        """Copy changed files to the bucket; do nothing for a local work directory.

        If a file cannot be written, a warning is logged, and the next checkpoint copies it again.
        """
        if self.path == self.local or jax.process_index():
            return
        for name in remote.files_below(self.local):
            content = (self.local / name).read_bytes()
            if self.sizes.get(name) == len(content):
                continue
            try:
                (self.path / name).parent.mkdir(parents=True, exist_ok=True)
                (self.path / name).write_bytes(content)
            except Exception as error:  # the store's client can raise any exception
                said = f"{self.path / name} could not be written ({' '.join(str(error).split())})"
                if last:
                    raise RuntimeError(f"{said}; checkpoints that were saved are kept") from error
                _logger.warning("%s; retrying at the next checkpoint", said)
                continue
            self.sizes[name] = len(content)

    def check(self, experiment: Experiment) -> None:
        """Raise InputError unless the directory is new or has a run of the same experiment."""
        self._lock()
        saved = self.path / checkpointing.CONFIG_FILE
        earlier = self.earlier()
        if earlier is not None:
            configs.check_same_experiment(earlier, experiment, str(self.path))
        elif self.path.exists() and not self.path.is_dir():
            raise InputError(f"workdir {self.path} is not a directory")
        # A run that was killed while writing its first file leaves a hidden temporary file.
        elif self.path.exists() and any(
            p.name[:1] != "." and p.name != PHASES for p in self.path.iterdir()
        ):
            raise InputError(
                f"workdir {self.path} has other files but no {saved.name}; use an empty directory"
            )

    def earlier(self) -> Experiment | None:
        """Return the experiment of the run in this directory, or None for a new directory."""
        saved = self.path / checkpointing.CONFIG_FILE
        if not saved.exists():
            return None
        # Not loaded as a config, which would make the project around it importable.
        try:
            text = saved.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{saved} cannot be read: {error}") from error
        return from_json(text, source=str(saved))

    def check_vocabulary(self, vocabulary: Vocabulary) -> Vocabulary:
        """Return the vocabulary of the run; raise InputError if its file has changed."""
        saved = self.path / checkpointing.VOCABULARY_DIRECTORY
        if not holds_another(saved, vocabulary):
            return vocabulary
        if vocabulary.model_path.name == SPM_NAME:
            earlier = read_spm(vocabulary.model_path, compose=False)
            if not holds_another(saved, earlier):
                return earlier
        raise InputError(
            f"workdir {self.path} was created with a vocabulary that differs from "
            f"{vocabulary.model_path}; restore the old one ({saved} is a copy) or use "
            "another --workdir"
        )

    def write(self, experiment: Experiment, vocabulary: Vocabulary) -> None:
        """Create the directory, and write its config and vocabulary."""
        if jax.process_index():
            return
        files = {
            f"{checkpointing.VOCABULARY_DIRECTORY}/{n}": c for n, c in vocabulary.files().items()
        }
        content = {checkpointing.CONFIG_FILE: to_json(experiment).encode(), **files}
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock()
            for name, data in content.items():
                (self.path / name).parent.mkdir(parents=True, exist_ok=True)
                remote.write_whole(self.path / name, data)
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            raise InputError(f"workdir {self.path} cannot be written ({reason})") from error

    def add_start(self, *, step: int, devices: str) -> None:
        """Record this start of the run in run.json; only warn if that fails."""
        if jax.process_index():
            return
        try:
            content = add_start(self.path, step=step, devices=devices)
            remote.write_whole(self.path / RUN_FILE, content)
        except OSError as error:
            _logger.warning("%s cannot be written (%s)", self.path / RUN_FILE, error)

    def _lock(self) -> None:
        if self.locks or jax.process_index() or self.path != self.local or not self.path.is_dir():
            return
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise InputError(
                f"workdir {self.path} is in use by another training process; wait until it ends, "
                "or use another --workdir"
            ) from error
        except OSError as error:
            _logger.debug("using %s without a lock, because locking failed: %s", self.path, error)
        self.locks.append(descriptor)


def holds_another(directory: AnyPath, vocabulary: Vocabulary) -> bool:
    """Return True if a directory has a vocabulary that differs from `vocabulary`."""
    paths = [directory / name for name in _VOCABULARY_FILES]
    there = {path.name: path.read_bytes() for path in paths if path.exists()}
    own = {name: content for name, content in vocabulary.files().items() if name != LAYOUT_NAME}
    if not there:
        return False
    if there != own:
        is_same_file = there.get(WORDPIECE_NAME) == getattr(vocabulary, "model_bytes", None)
        if not isinstance(vocabulary, Tokenizer) or not is_same_file:
            return True
        return not vocabulary.has_the_ids_of(Tokenizer(str(directory / WORDPIECE_NAME)))
    # Added tokens have ids; the layout only affects how special tokens are read.
    saved = directory / LAYOUT_NAME
    saved_reading = _reading(saved.read_bytes() if saved.exists() else b"{}")
    return saved_reading != _reading(vocabulary.files().get(LAYOUT_NAME, b"{}"))


def _reading(content: bytes) -> object:
    """Return the content of special_tokens.json without its field "layout"."""
    try:
        return {name: value for name, value in json.loads(content).items() if name != "layout"}
    except (ValueError, AttributeError, RecursionError):
        return content
