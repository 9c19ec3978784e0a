r"""Output files of C4: shards, manifest, work files, and the lock of the output directory.

The output consists of shards and a manifest that describes the shards:

    c4-train.00000-of-01024.json.gz      one object per line: text, timestamp, url, content-length,
                                         content-type, as in Hugging Face's release of C4
    c4-train.array_record-00000-of-01024 the same as tf.train.Example, if requested
    manifest.json                        counts, sizes and SHA-256, config; written last

The MD5 of a page's normalized URL selects its shard and its position within the shard, so both
drivers write the same bytes.

The output directory of an unfinished run also contains its work files:

    OUTPUT/.work/run.json          description of the run: rules, inputs, shards
    OUTPUT/.work/<stage>/...       parts; each is either complete or absent
    OUTPUT/.work/<stage>.json      counts of a finished stage
    OUTPUT/c4-*, manifest.json     the output

The same command resumes a killed run. `.work` is removed when the manifest is complete. Only one
process at a time can lock `.work/lock`.

Work files contain records in groups, compressed in blocks, with a table of the blocks at the end:

    with PartWriter(path) as part:
        part.add(3, ("http://...", "text"))
        part.extra = {"pages": 1}
    Part(path).records(3)

Records are msgpack. A part is either complete or absent. A writer keeps at most `flush_bytes` of
records in memory, and a reader one block.
"""

import contextlib
import dataclasses
import fcntl
import functools
import gzip
import hashlib
import io
import json
import os
import shutil
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal

import msgpack

from t5x_lite.c4.config import Cleaning
from t5x_lite.c4.pages import Input, Page, Tally, normalize_url, page_rank, url_digest
from t5x_lite.core.errors import InputError, install_command
from t5x_lite.core.files import open_atomically, write_atomically

MANIFEST_NAME = "manifest.json"
FORMAT = 1
"""Version of the output format, which changes if the same input gives a different output."""
Kind = Literal["json", "array_record"]
_LEVEL = 6
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard:
    """Description of one output file of a C4 build.

    Attributes:
      name: file name in the output directory.
      split: name of the split.
      pages: number of pages.
      size: size in bytes.
      sha256: SHA-256 of the content, in hex.
    """

    name: str
    split: str
    pages: int
    size: int
    sha256: str


def order_key(page: Page) -> bytes:
    """Return the 64-byte key by which pages are sorted and divided into output shards."""
    return url_digest(normalize_url(page.url)) + page_rank(page)


def shard_of(key: bytes, num_shards: int) -> int:
    """Return the index of the shard that contains a page with this sort key."""
    return int.from_bytes(key[:4], "big") * num_shards >> 32


def shards_in(split: str, num_shards: int) -> int:
    """Return the number of output shards of a split, fewer for validation than for training."""
    return max(1, num_shards // 128) if split.endswith("validation") else num_shards


def shard_name(split: str, shard: int, num_shards: int, kind: Kind = "json") -> str:
    """Return the file name of an output shard, as in TensorFlow Datasets."""
    number = f"{shard:05d}-of-{num_shards:05d}"
    return f"c4-{split}.{number}.json.gz" if kind == "json" else f"c4-{split}.array_record-{number}"


def json_line(page: Page) -> bytes:
    """Return a page as a line of JSON in UTF-8."""
    record = {
        "text": page.text,
        "timestamp": page.timestamp,
        "url": page.url,
        "content-length": page.content_length,
        "content-type": page.content_type,
    }
    return _encode(record).encode("utf-8", "replace") + b"\n"


def example(page: Page) -> bytes:
    """Return a page as a serialized tf.train.Example of bytes features, without TensorFlow."""
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
    size, head = len(value), bytearray([number << 3 | 2])
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    return bytes([*head, size]) + value


class _Hashed(io.RawIOBase):
    """File that computes the SHA-256 of its written content."""

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
    """Write the pages of an output shard in all formats, and return descriptions of the files."""
    wanted = tuple(kinds)
    if wanted == ("json",):
        return [_write_json(directory, split, shard_name(split, shard, num_shards), pages)]
    held = list(pages)  # the pages of one shard
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
        # One record per group, so that pages can be read one by one, in any order.
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
    """Return all settings that the output of a C4 build depends on, as JSON data."""
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
    content = hashlib.sha256()
    try:
        if not path.is_dir():
            return hashlib.sha256(path.read_bytes()).hexdigest()
        for file in sorted(path.iterdir()):
            if file.is_file():
                content.update(f"{file.name}\0".encode())
                content.update(hashlib.sha256(file.read_bytes()).digest())
    except OSError as error:
        raise InputError(
            f"cannot read the list {path} of cleaning.{field}: {error.strerror}"
        ) from error
    return content.hexdigest()


def manifest(run: Mapping[str, Any], shards: Iterable[Shard], tally: Tally) -> bytes:
    """Return the content of manifest.json."""
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
    """Write manifest.json atomically; call this function after all other files are written."""
    write_atomically(directory / MANIFEST_NAME, content)


def read_manifest(directory: Path) -> dict[str, Any] | None:
    """Return the manifest of an output directory, or None if it does not exist."""
    path = directory / MANIFEST_NAME
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path} is not a valid manifest ({error}); give another output directory"
        ) from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise InputError(
            f"manifest {path} was written by another version of t5x-lite; give another directory"
        )
    return found


WORK = ".work"
_RUN = "run.json"
_LOCK = "lock"
_UNFINISHED = (".c4-*", ".manifest.json.*", ".stats.json.*", ".report.html.*")


class Workdir:
    """Output directory of a C4 build, with temporary files and a lock.

    Attributes:
      output: directory of the shards.
      work: directory of temporary files.
    """

    def __init__(self, output: Path):
        self.output = output
        self.work = output / WORK
        self._lock: BinaryIO | None = None

    def open(self, run: Mapping[str, Any]) -> None:
        """Lock the output directory for a new or unfinished build."""
        self._refuse_strangers()
        self.work.mkdir(parents=True, exist_ok=True)
        self._take_lock()
        try:
            self._refuse_other(run)
        except InputError:
            self.close()
            raise
        self._remove_unfinished()

    def _remove_unfinished(self) -> None:
        left = [path for pattern in _UNFINISHED for path in self.output.glob(pattern)]
        for path in [*left, *self.work.glob("*/.*")]:
            path.unlink(missing_ok=True)

    def _refuse_other(self, run: Mapping[str, Any]) -> None:
        path = self.work / _RUN
        content = json.dumps(run, indent=1, sort_keys=True)
        if not path.exists():
            write_atomically(path, content.encode())
            return
        try:
            before = json.loads(path.read_bytes())
        except ValueError as error:
            raise InputError(f"file {path} is damaged; remove the directory {self.work}") from error
        refuse_other(self.output, before, json.loads(content))

    def _refuse_strangers(self) -> None:
        if not self.output.exists():
            return
        if not self.output.is_dir():
            raise InputError(f"--output {self.output} is a file, but must be a directory")
        others = [path.name for path in self.output.iterdir() if path.name != WORK]
        if others and not (self.work / _RUN).exists():
            raise InputError(
                f"--output {self.output} is not empty ({min(others)}) and has no unfinished run; "
                "give a new directory"
            )

    def _take_lock(self) -> None:
        self._lock = (self.work / _LOCK).open("ab")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InputError(
                f"--output {self.output} is locked by another process that writes to it; wait "
                "until that process ends"
            ) from error

    def close(self) -> None:
        """Release the lock of the output directory."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def directory(self, stage: str) -> Path:
        """Create the directory of a stage's temporary files, and return its path."""
        path = self.work / stage
        path.mkdir(exist_ok=True)
        return path

    def finished(self, stage: str) -> Any | None:
        """Return the data that a finished stage stored; None if the stage is unfinished."""
        try:
            return json.loads((self.work / f"{stage}.json").read_bytes())
        except FileNotFoundError:
            return None

    def finish(self, stage: str, found: Mapping[str, Any]) -> None:
        """Mark a stage as finished, and store its data, such as page counts."""
        content = json.dumps(found, ensure_ascii=False).encode("utf-8", "surrogatepass")
        write_atomically(self.work / f"{stage}.json", content)

    def discard(self, stage: str) -> None:
        """Remove the temporary files of a stage."""
        shutil.rmtree(self.work / stage, ignore_errors=True)

    def remove(self) -> None:
        """Remove all temporary files, and release the lock."""
        self.close()
        shutil.rmtree(self.work, ignore_errors=True)


def refuse_other(output: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise InputError if a directory has the output of a build with other settings or inputs."""
    for name, was, wanted in differences(before, now):
        raise InputError(
            f"--output {output} has the output of another run, in which {name} was "
            f"{_short(was)}, but {name} is now {_short(wanted)}; give another directory, or "
            f"remove {output}"
        )


def differences(before: Any, now: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the path, the old value and the new value of each difference between two JSON trees."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in sorted({*before, *now}):
            where = f"{name}.{key}" if name else key
            yield from differences(before.get(key), now.get(key), where)
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for index, (was, wanted) in enumerate(zip(before, now, strict=True)):
            yield from differences(was, wanted, f"{name}[{index}]")
    elif before != now:
        yield name, before, now


def _short(value: Any) -> str:
    if isinstance(value, list):
        return f"{len(value)} entries"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) < 100 else f"{text[:97]}..."


_MAGIC = b"t5xC4p01"
_TAIL = struct.Struct("<Q8s")
_PART_LEVEL = 1
FLUSH_BYTES = 1 << 25
_BLOCK_BYTES = 1 << 20

Group = int | str


@functools.cache
def _zstandard():
    try:
        import zstandard
    except ImportError as error:
        raise InputError(
            f"C4's work files need zstandard, which is not installed; {install_command('c4')}"
        ) from error
    return zstandard


def check_installed() -> None:
    """Raise InputError if zstandard is not installed."""
    _zstandard()


class PartWriter(contextlib.AbstractContextManager["PartWriter"]):
    """Writer of a temporary file that stores records by group.

    Attributes:
      extra: additional JSON data to store in the file.
    """

    def __init__(self, path: Path, *, flush_bytes: int = FLUSH_BYTES):
        self.extra: Any = None
        self._flush_bytes = flush_bytes
        self._blocks: list[tuple[Group, int, int]] = []
        self._waiting: dict[Group, bytearray] = {}
        self._held = self._offset = 0
        self._packer = msgpack.Packer(unicode_errors="surrogatepass")
        self._compress = _zstandard().ZstdCompressor(level=_PART_LEVEL).compress
        self._opened = open_atomically(path)

    def __enter__(self) -> "PartWriter":
        self._file = self._opened.__enter__()
        return self

    def add(self, group: Group, record: tuple[Any, ...]) -> None:
        """Add a record at the end of its group."""
        packed = self._packer.pack(record)
        waiting = self._waiting.get(group)
        if waiting is None:
            waiting = self._waiting[group] = bytearray()
        waiting += packed
        self._held += len(packed)
        if len(waiting) >= _BLOCK_BYTES:
            self._held -= len(waiting)
            self._write(group, self._waiting.pop(group))
        elif self._held >= self._flush_bytes:
            self._flush()

    def _flush(self) -> None:
        for group, waiting in self._waiting.items():
            self._write(group, waiting)
        self._waiting.clear()
        self._held = 0

    def _write(self, group: Group, content: bytearray) -> None:
        block = self._compress(content)
        self._file.write(block)
        self._blocks.append((group, self._offset, len(block)))
        self._offset += len(block)

    def __exit__(self, *error: Any) -> bool | None:
        if error[0] is not None:
            return self._opened.__exit__(*error)
        try:
            self._flush()
            footer = self._compress(self._packer.pack((self._blocks, self.extra)))
            self._file.write(footer)
            self._file.write(_TAIL.pack(len(footer), _MAGIC))
        except BaseException as failed:
            if not self._opened.__exit__(type(failed), failed, failed.__traceback__):
                raise
        return self._opened.__exit__(None, None, None)


class Part:
    """Reader of a temporary file that `PartWriter` wrote, which stores records by group.

    Attributes:
      extra: additional data that the writer stored.
    """

    def __init__(self, path: Path):
        """Open a temporary file, and read the positions of its records."""
        self._path = path
        self._decompress = _zstandard().ZstdDecompressor().decompress
        try:
            with path.open("rb") as file:
                end = file.seek(-_TAIL.size, os.SEEK_END)
                size, magic = _TAIL.unpack(file.read())
                if magic != _MAGIC:
                    raise ValueError("the table of blocks at the end of the file is missing")
                file.seek(end - size)
                blocks, self.extra = msgpack.unpackb(
                    self._decompress(file.read(size)),
                    strict_map_key=False,
                    unicode_errors="surrogatepass",
                )
        except (OSError, ValueError, struct.error, _zstandard().ZstdError) as error:
            raise InputError(
                f"file {path} is damaged ({error}); remove the directory of the file, and run the "
                "command again"
            ) from error
        self._blocks: dict[Group, list[tuple[int, int]]] = {}
        for group, offset, length in blocks:
            self._blocks.setdefault(group, []).append((offset, length))

    @property
    def groups(self) -> list[Group]:
        """Return the groups that have records in this file."""
        return list(self._blocks)

    def records(self, group: Group) -> Iterator[list[Any]]:
        """Yield the records of a group in the order in which they were added."""
        blocks = self._blocks.get(group)
        if not blocks:
            return
        with self._path.open("rb") as file:
            for offset, length in blocks:
                file.seek(offset)
                unpacker = msgpack.Unpacker(max_buffer_size=0, unicode_errors="surrogatepass")
                unpacker.feed(self._decompress(file.read(length)))
                yield from unpacker
