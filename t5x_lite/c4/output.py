r"""The shards that C4 is, and the manifest that says what they are.

    c4-train.00000-of-01024.json.gz      one object a line: text, timestamp, url, content-length,
                                         content-type, as Hugging Face's release of C4 has them
    c4-train.array_record-00000-of-01024 the same as tf.train.Example, where it is asked for
    manifest.json                        counts, sizes and SHA-256, config; written last

Which shard a page is in follows from the MD5 of its normalized URL, and within a shard pages stand
in that order: both drivers write the same bytes.
"""

import dataclasses
import gzip
import hashlib
import io
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from t5x_lite.c4.config import Cleaning
from t5x_lite.c4.inputs import Input
from t5x_lite.c4.pages import Page, Tally, page_rank
from t5x_lite.c4.urls import normalize_url, url_digest
from t5x_lite.errors import InputError
from t5x_lite.files import open_atomically, write_atomically

MANIFEST_NAME = "manifest.json"
FORMAT = 1
"""Of the output; another one where any rule or file comes out differently than before."""
Kind = Literal["json", "array_record"]
_LEVEL = 6
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True, kw_only=True)
class Shard:
    """A file of a split.

    Attributes:
      name: in the output directory.
      split: its split.
      pages: in it.
      size: bytes.
      sha256: of its content, in hex.
    """

    name: str
    split: str
    pages: int
    size: int
    sha256: str


def order_key(page: Page) -> bytes:
    """64 bytes by which pages are ordered; the first 4 give the shard, see `shard_of`."""
    return url_digest(normalize_url(page.url)) + page_rank(page)


def shard_of(key: bytes, num_shards: int) -> int:
    """The shard of a page: shards divide the MD5 of normalized URLs into ranges.

    Args:
      key: `order_key` of the page, or the MD5 of its normalized URL.
      num_shards: of its split.
    """
    return int.from_bytes(key[:4], "big") * num_shards >> 32


def shards_in(split: str, num_shards: int) -> int:
    """How many shards a split has: as many as asked for; for validation one of 128 of them."""
    return max(1, num_shards // 128) if split.endswith("validation") else num_shards


def shard_name(split: str, shard: int, num_shards: int, kind: Kind = "json") -> str:
    """The name of a shard, as the release of C4 and TensorFlow Datasets have them.

    Args:
      split: its split.
      shard: its number.
      num_shards: of this split.
      kind: what it holds.
    """
    number = f"{shard:05d}-of-{num_shards:05d}"
    return f"c4-{split}.{number}.json.gz" if kind == "json" else f"c4-{split}.array_record-{number}"


def json_line(page: Page) -> bytes:
    """A page as a line of JSON, in UTF-8."""
    record = {
        "text": page.text,
        "timestamp": page.timestamp,
        "url": page.url,
        "content-length": page.content_length,
        "content-type": page.content_type,
    }
    return _encode(record).encode("utf-8", "replace") + b"\n"


def example(page: Page) -> bytes:
    """A page as a serialized tf.train.Example of bytes features, written without TensorFlow."""
    features = {
        "content-length": page.content_length,
        "content-type": page.content_type,
        "text": page.text,
        "timestamp": page.timestamp,
        "url": page.url,
    }
    entries = b""
    for name, value in features.items():
        feature = _field(_field(value.encode("utf-8", "replace")))  # bytes_list.value
        entries += _field(_field(name.encode()) + _field(feature, number=2))
    return _field(entries)


def _field(value: bytes, *, number: int = 1) -> bytes:
    """A length-delimited field of a protocol buffer."""
    size, head = len(value), bytearray([number << 3 | 2])
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    return bytes([*head, size]) + value


class _Hashed(io.RawIOBase):
    """A file that hashes what is written to it."""

    def __init__(self, file: BinaryIO):
        self._file = file
        self._hash = hashlib.sha256()
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        self._hash.update(content)
        self.size += len(content)
        return self._file.write(content)

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


def write_shard(
    directory: Path,
    split: str,
    shard: int,
    num_shards: int,
    pages: Iterable[Page],
    *,
    kinds: Iterable[Kind] = ("json",),
) -> list[Shard]:
    """Writes a shard; each file is there whole or not at all.

    Args:
      directory: the output.
      split: the shard's split.
      shard: its number.
      num_shards: of the split.
      pages: those of the shard, by `order_key`.
      kinds: a file is written of each.

    Returns:
      What was written.

    Raises:
      OSError: it cannot be written.
    """
    wanted = tuple(kinds)
    if wanted == ("json",):
        return [_write_json(directory, split, shard_name(split, shard, num_shards), pages)]
    held = list(pages)  # of one shard
    written = []
    for kind in wanted:
        write = _write_json if kind == "json" else _write_array_record
        written.append(write(directory, split, shard_name(split, shard, num_shards, kind), held))
    return written


def _write_json(directory: Path, split: str, name: str, pages: Iterable[Page]) -> Shard:
    count = 0
    with open_atomically(directory / name) as file:
        hashed = _Hashed(file)
        with gzip.GzipFile("", "wb", _LEVEL, hashed, mtime=0) as lines:  # pyright: ignore[reportArgumentType]
            for page in pages:
                lines.write(json_line(page))
                count += 1
    return Shard(name=name, split=split, pages=count, size=hashed.size, sha256=hashed.sha256)


def _write_array_record(directory: Path, split: str, name: str, pages: Iterable[Page]) -> Shard:
    from array_record.python.array_record_module import ArrayRecordWriter

    count = 0
    temporary = directory / f".{name}.writing"
    try:
        # One record a group: pages are read one by one, in any order.
        writer = ArrayRecordWriter(str(temporary), "group_size:1")
        for page in pages:
            writer.write(example(page))
            count += 1
        writer.close()
        with temporary.open("rb") as file:
            content = hashlib.file_digest(file, "sha256")
            size = file.tell()
            os.fsync(file.fileno())
        temporary.replace(directory / name)
    finally:
        temporary.unlink(missing_ok=True)
    return Shard(name=name, split=split, pages=count, size=size, sha256=content.hexdigest())


def describe_run(
    *,
    cleaning: Cleaning,
    inputs: Iterable[Input],
    sentences: str,
    num_shards: int,
    kinds: Iterable[Kind] = ("json",),
) -> dict[str, Any]:
    """All that the output depends on, for the manifest and for going on with a run.

    Args:
      cleaning: the rules.
      inputs: the files.
      sentences: the name of the counter of sentences.
      num_shards: of the training split.
      kinds: of files.

    Raises:
      InputError: a list that the rules name cannot be read.
    """
    lists = {name: getattr(cleaning, name) for name in ("domains", "urls", "bad_words")}
    run = {
        "format": FORMAT,
        "cleaning": dataclasses.asdict(cleaning),
        "lists": {name: _digest(name, Path(path)) for name, path in lists.items() if path},
        "sentences": sentences,
        "inputs": [dataclasses.asdict(file) for file in inputs],
        "num_shards": num_shards,
        "kinds": list(kinds),
    }
    return json.loads(json.dumps(run))


def _digest(field: str, path: Path) -> str:
    """SHA-256 of a file, or of the names and contents of a folder's files."""
    content = hashlib.sha256()
    try:
        if not path.is_dir():
            return hashlib.sha256(path.read_bytes()).hexdigest()
        for file in sorted(path.iterdir()):
            if file.is_file():
                content.update(f"{file.name}\0".encode())
                content.update(hashlib.sha256(file.read_bytes()).digest())
    except OSError as error:
        raise InputError(f"cleaning.{field}: cannot read {path}: {error.strerror}") from error
    return content.hexdigest()


def manifest(run: Mapping[str, Any], shards: Iterable[Shard], tally: Tally) -> bytes:
    """The content of manifest.json.

    Args:
      run: what `describe_run` gave.
      shards: all files.
      tally: of the whole run; it goes in without its samples and domains, which are many.
    """
    counts = tally.to_json() | {"samples": [], "kept": [], "domains": {}}
    content = {
        "format": FORMAT,
        "pages": {split: found["pages"] for split, found in counts["splits"].items()},
        "run": run,
        "tally": counts,
        "files": sorted(map(dataclasses.asdict, shards), key=lambda file: file["name"]),
    }
    return json.dumps(content, indent=1, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def write_manifest(directory: Path, content: bytes) -> None:
    """Writes manifest.json, whole or not at all; call it when all else is on the disk."""
    write_atomically(directory / MANIFEST_NAME, content)


def read_manifest(directory: Path) -> dict[str, Any] | None:
    """The manifest of an output; None where it has none.

    Raises:
      InputError: it is no manifest, or of another format.
    """
    path = directory / MANIFEST_NAME
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is not a manifest ({error}); give another directory") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise InputError(f"{path} is of another version: give another directory")
    return found
