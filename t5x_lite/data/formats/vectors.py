"""Readers and writers of files of vectors, and compact tables of strings such as their ids.

Compact tables of strings: the concatenated bytes of the strings, and the end of each string.

    table = StringTable.of(["d7", "d12"])
    table[1], len(table)                # "d12", 2
    table.save("index/ids")             # index/ids.bytes.npy, index/ids.ends.npy
    StringTable.open("index/ids")       # memory-mapped, not read

A million ids of MS MARCO take 15 MB, instead of 60 MB as Python strings.

Readers and writers of files of vectors.

Files of vectors are written incrementally and appear atomically:

    with vector_writer("vectors.npy") as file:
        file.write(["a", "b"], vectors)             # float32 [2, D]

    .npy        float32 [N, D], row i the vector of text i; np.load(path, mmap_mode="r") reads it
    .parquet    columns id (string) and vector (a list of D float32); needs pyarrow

N is unknown until the end, so the header of a .npy file reserves space for N and is rewritten.

Vectors with the precision int8 have their ranges next to them, which later files can share:

    corpus.npy          int8 [N, D]: 256 steps from the minimum to the maximum of each dimension
    corpus.npy.ranges   float32 [2, D]: minimum and maximum of each dimension, in .npy format

Vectors of a corpus in one or several files, read in blocks:

    shards = VectorShards.open(["part-0.npy", "part-1.npy"], ids=["corpus.jsonl"])
    for block in shards.blocks(rows=65536):
        block.first, block.vectors          # 0, float32 [65536, D]
    shards.ids[7]                           # "d7"

The files are outputs of `embed`. A .npy file is mapped, so that a corpus may be larger than memory;
a .parquet file is read one row group at a time. A .parquet file has its ids. The ids of .npy files
are read in sequence from files of passages (`data.formats.passages`), or are row numbers from 0.

A directory with the outputs of a model's dense, lexical and multi-vector heads:

    DIR/ids.txt                    an id per line, as JSON
    DIR/dense.npy                  float32 [N, D], or another precision as above
    DIR/lexical.jsonl              {"5": 0.7, "9": 0.4} for each text: token -> weight
    DIR/multi_vector.npy           vectors of the tokens of all texts, concatenated [T, K]
    DIR/multi_vector_ends.npy      int64 [N], end of each text in multi_vector.npy
    DIR/multi_vector_scale.npy     float32 [T], only for int8: the factor of each vector

Token vectors are float16 or float32, or int8 with one scale per vector, which is a quarter of the
size of float32. Only the files of the requested heads exist.
"""

import abc
import array
import contextlib
import errno
import importlib
import json
import logging
import math
import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, Protocol

import numpy as np
from jaxtyping import Float, Int8

from t5x_lite.core.errors import InputError
from t5x_lite.core.files import open_atomically, reason, writing
from t5x_lite.core.jobs import (
    AppendedFiles,
    ResumableArray,
    identity_of_file,
    is_resumable,
    resumable_array,
)
from t5x_lite.data.formats.lines import parse_json, read_lines
from t5x_lite.data.formats.pairs import read_passages

_logger = logging.getLogger(__name__)


class StringTable:
    """List of strings stored in two arrays, with access by index.

    Args:
      content: concatenated UTF-8 bytes of the strings, uint8.
      ends: end offset of each string in `content`, int64.
      where: path of the file or index with the strings, for messages.
    """

    def __init__(self, content: np.ndarray, ends: np.ndarray, where: str = "a table of strings"):
        self._content, self._ends, self._where = content, ends, where

    @classmethod
    def of(cls, strings: Iterable[str]) -> "StringTable":
        """Create a `StringTable` from an iterable of strings."""
        content, ends = bytearray(), array.array("q")
        for string in strings:
            content += string.encode()
            ends.append(len(content))
        return cls(np.frombuffer(bytes(content), np.uint8), np.asarray(ends, np.int64))

    @classmethod
    def open(cls, path: str | Path) -> "StringTable":
        """Open the files that `save` wrote, without reading the strings."""
        content_file, ends_file = _files(path)
        content = open_array(content_file, dtypes=(np.uint8,), dims=1)
        ends = open_array(ends_file, dtypes=(np.int64,), dims=1)
        check_ends(ends, len(content), where=ends_file)
        return cls(content, ends, str(path))

    def save(self, path: str | Path) -> None:
        """Write the strings to the two files PATH.bytes.npy and PATH.ends.npy."""
        for file, values in zip(_files(path), (self._content, self._ends), strict=True):
            save_array(file, values)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the two arrays that store the strings, by name: "bytes" and "ends"."""
        return {"bytes": self._content, "ends": self._ends}

    def check_distinct(self, where: str) -> None:
        """Raise InputError if a string occurs twice in the table."""
        hashes = np.fromiter((hash(name) for name in self), np.int64, len(self))
        values, counts = np.unique(hashes, return_counts=True)
        if (counts == 1).all():
            return
        seen: set[str] = set()
        for number in np.flatnonzero(np.isin(hashes, values[counts > 1])):
            name = self[int(number)]
            if name in seen:
                raise InputError(f"{where}: the id {name!r} comes twice")
            seen.add(name)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, number: int) -> str:
        start = int(self._ends[number - 1]) if number else 0
        content = self._content[start : int(self._ends[number])].tobytes()
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise InputError(
                f"{self._where}: damaged (string {number} is not UTF-8); build it again"
            ) from error

    def __iter__(self) -> Iterator[str]:
        return (self[number] for number in range(len(self)))

    def part(self, first: int, end: int) -> list[str]:
        """Return the strings with indices from `first` to `end`, excluding `end`."""
        return [self[number] for number in range(first, min(end, len(self)))]


def open_array(
    path: str | Path, *, dtypes: Sequence[Any] | None = None, dims: int | None = None
) -> np.ndarray:
    """Check the header and size of a .npy file, and map the array into memory."""
    try:
        with open(path, "rb") as file:
            shape, in_columns, dtype = _read_header(file, path)
            start, size = file.tell(), file.seek(0, os.SEEK_END)
        what = f"{dtype} {list(shape)}"
        wrong = dtypes is not None and dtype not in [np.dtype(one) for one in dtypes]
        if wrong or dims not in (None, len(shape)):
            names = " or ".join(np.dtype(one).name for one in dtypes or ()) or "any type"
            raise InputError(
                f"{path}: must be an array of {names} with {dims} axes, got {what[:80]}; make it "
                "again"
            )
        if dtype.hasobject or math.prod(shape) * dtype.itemsize > size - start:
            raise InputError(
                f"{path}: not an array of NumPy, or cut off ({what[:80]} in {size} bytes); make it "
                "again"
            )
        if math.prod(shape) * dtype.itemsize < size - start:
            raise InputError(
                f"{path}: not an array of NumPy, or damaged ({what[:80]} in {size} bytes, more "
                "than it needs); make it again"
            )
        order = "F" if in_columns else "C"
        if not math.prod(shape) or not dtype.itemsize:  # nothing to map
            return np.zeros(shape, dtype, order)
        # As a plain array: each element that is read from a memmap makes another memmap.
        return np.asarray(np.memmap(path, dtype, "r", start, shape, order))
    except OSError as error:
        raise InputError(f"{path}: {reason(error)}") from error
    except (ValueError, OverflowError, MemoryError, TypeError) as error:  # invalid sizes
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: not an array of NumPy, or cut off: make it again") from error


def create_array(path: str | Path, dtype: Any, shape: tuple[int, ...]) -> np.memmap:
    """Create a .npy file of a given shape, and map the file into memory for writing.

    Disk space is reserved at once, because writing to mapped memory on a full disk ends the
    process.
    """
    array = np.lib.format.open_memmap(path, "w+", dtype, shape)
    with open(path, "rb+") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, file.seek(0, os.SEEK_END))
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
                error.filename = os.fspath(path)
                raise
        except AttributeError:  # not on this system
            pass
    return array


_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def _read_header(file: BinaryIO, path: str | Path) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return the shape, the Fortran-order flag and the dtype of a .npy file."""
    try:
        shape, in_columns, dtype = _HEADERS[np.lib.format.read_magic(file)](file)
        if all(type(size) is int and size >= 0 for size in shape):
            return shape, in_columns, dtype
    except OSError:
        raise
    except Exception as error:  # parsing the header, a Python literal, may raise anything
        raise InputError(f"{path}: not an array of NumPy, or cut off: make it again") from error
    raise InputError(f"{path}: not an array of NumPy (its shape is {str(shape)[:60]})")


def check_ends(ends: np.ndarray, size: int, *, where: str | Path) -> None:
    """Raise InputError unless end offsets of strings are ascending, and the last equals `size`."""
    rises = not len(ends) or (int(ends[0]) >= 0 and bool((ends[1:] >= ends[:-1]).all()))
    if not rises or (int(ends[-1]) if len(ends) else 0) != size:
        raise InputError(
            f"{where}: damaged (the end offsets do not match {size} entries); build it again"
        )


def save_array(path: str | Path, values: np.ndarray) -> None:
    """Write an array as a .npy file, atomically."""
    with open_atomically(path) as file:
        np.lib.format.write_array(file, np.asarray(values), allow_pickle=False)


_LARGEST_RECORD = 1 << 20
"""Maximum size of an index.json, in bytes."""


def read_record(
    path: Path, fields: Mapping[str, type], *, kind: str = "index", made_by: str
) -> dict[str, Any]:
    """Read index.json of a search index, and check that the fields have the expected types."""
    remedy = f"build the index again with t5x-lite {made_by}"
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_RECORD + 1)
    except OSError as error:
        raise InputError(
            f"{path.parent} has no {kind} ({reason(error)}); build one with t5x-lite {made_by}"
        ) from error
    try:
        record = json.loads(content) if len(content) <= _LARGEST_RECORD else None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON; {remedy}") from error
    if not isinstance(record, dict):
        raise InputError(
            f"{path}: must be a JSON object of at most {_LARGEST_RECORD} bytes; {remedy}"
        )
    for name, expected in fields.items():
        value: Any = record.get(name)
        right = type(value) is expected or (expected is float and type(value) is int)
        if not right or (expected is int and not 0 <= value < 1 << 62):
            what = f'"{name}" must be {_KINDS[expected]}, got {str(value)[:40]}'
            raise InputError(f"{path}: damaged ({what}); {remedy}")
    return record


_KINDS = {int: "a whole number from 0", str: "a string", bool: "true or false", float: "a number"}


def _files(path: str | Path) -> tuple[Path, Path]:
    name = Path(path)
    return tuple(name.with_name(f"{name.name}.{part}.npy") for part in ("bytes", "ends"))  # pyright: ignore


class VectorWriter(Protocol):
    """Protocol of a writer that appends vectors to a file."""

    @property
    def done(self) -> int:
        """Number of written vectors, including vectors that an earlier process wrote."""
        ...

    def write(self, ids: Sequence[str], vectors: Float[np.ndarray, "n D"]) -> None:
        """Append vectors of one common size, with their ids."""
        ...

    def close(self) -> None:
        """Complete the file, and record the number of vectors in it."""
        ...


def check_vector_file(path: str) -> None:
    """Raise InputError if vectors cannot be written to a path; call it before computing vectors."""
    suffix = Path(path).suffix
    if suffix not in _SUFFIXES:
        raise InputError(
            f"--output {path}: must end in {' or '.join(_SUFFIXES)}, which select the format"
        )
    if suffix == ".parquet":
        _pyarrow()


Precision = Literal["float32", "float16", "int8", "binary"]


@contextlib.contextmanager
def vector_writer(
    path: str,
    *,
    identity: Mapping[str, Any] | None = None,
    chunk: int = 1,
    precision: Precision = "float32",
    ranges: Float[np.ndarray, "2 D"] | None = None,
) -> Iterator[VectorWriter]:
    """Open a file of vectors for writing; the file appears at its path when complete."""
    check_vector_file(path)
    if precision != "float32" and Path(path).suffix != ".npy":
        raise InputError(f"--output {path}: must end in .npy to store vectors as {precision}")
    if precision == "int8" and ranges is None:
        if not is_resumable(path):
            raise InputError(f"{path}: cannot be written (not a regular file)")
        unquantized = f"{path}.float32"
        try:
            with _file_writer(unquantized, identity, chunk) as writer:
                yield writer
                if identity is not None and writer.done:  # before the end, so that a kill resumes
                    writer.close()
                    quantize_file(f"{unquantized}.partial", path)
            if identity is None and writer.done:
                quantize_file(unquantized, path)
        finally:
            Path(unquantized).unlink(missing_ok=True)
        return
    with _file_writer(path, identity, chunk, precision, ranges) as writer:
        yield writer
        if ranges is not None:
            save_array(f"{path}{_RANGES}", ranges)


@contextlib.contextmanager
def _file_writer(
    path: str,
    identity: Mapping[str, Any] | None,
    chunk: int,
    precision: Precision = "float32",
    ranges: np.ndarray | None = None,
) -> Iterator[VectorWriter]:
    is_parquet = Path(path).suffix == ".parquet"
    if identity is not None and not is_parquet and is_resumable(path):
        with resumable_array(path, identity=identity, chunk=chunk) as array:
            yield NpyWriter(array, precision, ranges)
        return
    with contextlib.ExitStack() as stack:
        with writing(path):
            file = stack.enter_context(open_atomically(path))
        if not file.seekable():
            raise InputError(f"{path}: cannot be written (not a regular file)")
        writer: VectorWriter
        if is_parquet:
            writer = ParquetWriter(file, path)
        else:
            writer = NpyWriter(ResumableArray(file, path=path), precision, ranges)
        try:
            yield writer
        except BaseException:
            with contextlib.suppress(Exception):  # else pyarrow would close it after its file
                writer.close()
            raise
        with writing(path):
            writer.close()
            stack.close()


class NpyWriter:
    """Writer of vectors to a .npy file without ids; row numbers serve as ids."""

    def __init__(
        self,
        array: ResumableArray,
        precision: Precision = "float32",
        ranges: Float[np.ndarray, "2 D"] | None = None,
    ):
        self._array, self._ranges = array, ranges
        self._precision: Precision = precision

    @property
    def done(self) -> int:
        return self._array.done

    def write(self, ids: Sequence[str], vectors: Float[np.ndarray, "n D"]) -> None:
        del ids
        self._array.write(stored(vectors, self._precision, ranges=self._ranges))

    def close(self) -> None:
        self._array.finish()


def stored(
    vectors: Float[np.ndarray, "n D"],
    precision: Precision,
    *,
    ranges: Float[np.ndarray, "2 R"] | None = None,
) -> np.ndarray:
    """Convert vectors to a precision: an array [n, D], but uint8 [n, D / 8] for "binary".

    For "binary", a bit is 1 for a number above 0, and bits are packed as by np.packbits. For
    "int8", see `quantized`.

    Raises:
      InputError: if `precision` is "binary" and D is not a multiple of 8, or "int8" and `ranges`
        has another number of dimensions.
    """
    if precision == "int8":
        assert ranges is not None
        if ranges.shape[1] != vectors.shape[1]:
            raise InputError(
                f"--ranges has {ranges.shape[1]} dimensions, but vectors have {vectors.shape[1]}; "
                "give vectors of the same encoder"
            )
        return quantized(vectors, ranges)
    if precision == "binary":
        if vectors.shape[1] % 8:
            raise InputError(
                f"binary vectors need a multiple of 8 dimensions, got {vectors.shape[1]}"
            )
        return np.packbits(vectors > 0, axis=1)
    return np.ascontiguousarray(vectors, {"float32": "<f4", "float16": "<f2"}[precision])


def quantized(
    vectors: Float[np.ndarray, "n D"], ranges: Float[np.ndarray, "2 D"]
) -> Int8[np.ndarray, "n D"]:
    """Convert vectors to int8, with 255 equal steps between each dimension's minimum and maximum.

    A value x becomes floor((x - minimum) / step) - 128, clipped to [-128, 127].
    Source: sentence_transformers.util.quantization.quantize_embeddings, which gives equal values.

    Args:
      vectors: vectors in float32.
      ranges: minimum and maximum of each dimension.
    """
    low, steps = steps_of(ranges)
    return (np.clip(np.floor((vectors - low) / steps), 0, 255) - 128).astype(np.int8)


def dequantized(
    codes: Int8[np.ndarray, "n D"], ranges: Float[np.ndarray, "2 D"]
) -> Float[np.ndarray, "n D"]:
    """Convert int8 codes to float32 values, minimum + step * (code + 128)."""
    low, steps = steps_of(ranges)
    found = codes.astype(np.float32)
    found += 128
    found *= steps
    found += low
    return found


def steps_of(
    ranges: Float[np.ndarray, "2 D"],
) -> tuple[Float[np.ndarray, " D"], Float[np.ndarray, " D"]]:
    """Return each dimension's minimum and the width of its 255 int8 steps; 1 if it is constant."""
    steps = (ranges[1] - ranges[0]) / np.float32(255)
    return ranges[0], np.where(steps == 0, np.float32(1), steps)


def ranges_of(path: str) -> Float[np.ndarray, "2 D"]:
    """Return the minimum and maximum of each dimension, for the conversion of vectors to int8.

    Args:
      path: .npy or .parquet file of vectors; for int8 vectors, the stored ranges are returned.

    Raises:
      InputError: if the file is invalid, contains binary vectors, or has fewer than 2 vectors.
    """
    shards = VectorShards.open([path])
    if shards.ranges is not None:
        return shards.ranges
    if Path(path).suffix == ".npy" and open_array(path).dtype == np.uint8:
        raise InputError(f"{path}: binary vectors have no ranges; give float32 or int8 vectors")
    return _range_of_blocks(shards, path)


def _range_of_blocks(shards: "VectorShards", where: str) -> np.ndarray:
    if len(shards) < 2:
        raise InputError(
            f"{where}: ranges for int8 need at least 2 vectors, got {len(shards)}; give a file "
            "with more vectors by --ranges"
        )
    if len(shards) < _FEW_VECTORS:
        _logger.warning(
            "the ranges for int8 are computed from only %d vectors; use --ranges FILE with at "
            "least %d",
            len(shards),
            _FEW_VECTORS,
        )
    low = np.full(shards.size, np.inf, np.float32)
    high = -low
    for block in shards.blocks(rows=_BLOCK_ROWS):
        low = np.minimum(low, block.vectors.min(axis=0))
        high = np.maximum(high, block.vectors.max(axis=0))
    ranges = np.stack([low, high])
    _check_ranges(ranges, where)
    return ranges


def _check_ranges(ranges: np.ndarray, where: str) -> None:
    with np.errstate(all="ignore"):
        right = np.isfinite(ranges[1] - ranges[0]).all() and (ranges[0] <= ranges[1]).all()
    if not right:
        raise InputError(
            f"{where}: the int8 range of a dimension is not finite, or its minimum is above its "
            "maximum; embed the texts again"
        )


def quantize_file(source: str, path: str) -> None:
    """Convert a .npy file from float32 to int8, and store each dimension's range next to it."""
    shards = VectorShards([_Npy(source)], None)
    ranges = _range_of_blocks(shards, path)
    save_array(f"{path}{_RANGES}", ranges)
    with writing(path), open_atomically(path) as file:
        writer = NpyWriter(ResumableArray(file, path=path), "int8", ranges)
        for block in shards.blocks(rows=_BLOCK_ROWS):
            writer.write([], block.vectors)
        writer.close()


_RANGES = ".ranges"
"""Suffix that the file with an int8 file's ranges adds to its name."""
_FEW_VECTORS = 100
"""Number of vectors below which computed ranges cause a warning, as in sentence-transformers."""
_BLOCK_ROWS = 1 << 14


class ParquetWriter:
    """Writer of vectors to a Parquet table with the columns id and vector.

    Args:
      file: file open for writing bytes, at its beginning.
      path: path of the file, for messages.

    Attributes:
      done: number of written vectors.
    """

    def __init__(self, file: BinaryIO, path: str):
        self.done = 0
        self._file, self._path, self._arrow = file, path, _pyarrow()
        self._writer: Any = None

    def write(self, ids: Sequence[str], vectors: Float[np.ndarray, "n D"]) -> None:
        arrow, size = self._arrow, vectors.shape[1]
        schema = arrow.schema({"id": arrow.string(), "vector": arrow.list_(arrow.float32(), size)})
        if self._writer is None:
            parquet = importlib.import_module("pyarrow.parquet")
            with writing(self._path):
                self._writer = parquet.ParquetWriter(self._file, schema, write_page_checksum=True)
        numbers = arrow.array(np.ascontiguousarray(vectors, np.float32).ravel())
        lists = arrow.FixedSizeListArray.from_arrays(numbers, size)
        names = arrow.array(list(ids), arrow.string())
        with writing(self._path):
            self._writer.write_table(arrow.Table.from_arrays([names, lists], schema=schema))
        self.done += len(ids)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def _pyarrow() -> Any:
    try:
        return importlib.import_module("pyarrow")
    except ImportError as error:
        raise InputError(
            "a .parquet file needs the package pyarrow: pip install pyarrow, or write .npy"
        ) from error


_SUFFIXES = (".npy", ".parquet")
_DTYPES = (np.float16, np.float32, np.float64)


class Block(NamedTuple):
    """Block of consecutive vectors from a corpus of vectors.

    Attributes:
      first: index of the block's first vector in the corpus.
      vectors: vectors of the block, float32 [n, D].
    """

    first: int
    vectors: Float[np.ndarray, "n D"]


class _Shard(abc.ABC):
    rows: int
    size: int
    ranges: np.ndarray | None = None

    @abc.abstractmethod
    def read(self, first: int, end: int) -> np.ndarray:
        """Return the vectors from row `first` to `end`, excluding `end`, float32 [rows, D]."""

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Return the vectors in the given rows, float32 [n, D]."""
        return np.concatenate([self.read(row, row + 1) for row in rows.tolist()])


def identity_of(files: Sequence[str]) -> dict[str, Any]:
    """Return the paths, sizes and modification times of vector files, to detect changes."""
    names, sizes, changed = zip(*map(identity_of_file, files), strict=True)
    return {"vectors": [*names], "sizes": [*sizes], "changed": [*changed]}


class VectorShards:
    """Corpus of vectors in one or several files, read on demand.

    Attributes:
      ids: ids of the vectors; None if the ids are row numbers.
      size: number of dimensions D of each vector.
      ranges: minimum and maximum of each dimension of int8 vectors, float32 [2, D]; None for
        vectors of another precision.
    """

    def __init__(self, shards: Sequence[_Shard], ids: StringTable | None):
        self._shards, self.ids = shards, ids
        self._ends = np.cumsum([shard.rows for shard in shards])
        self.size, self.ranges = shards[0].size, shards[0].ranges

    @classmethod
    def open(cls, paths: Sequence[str], *, ids: Sequence[str] = ()) -> "VectorShards":
        """Open files of vectors without reading the vectors."""
        if not paths:
            raise InputError(
                "no file of vectors was given; name .npy or .parquet files that `embed` wrote"
            )
        shards = [_opened(path) for path in paths]
        for path, shard in zip(paths, shards, strict=True):
            if shard.size != shards[0].size:
                raise InputError(
                    f"{path}: vectors have {shard.size} dimensions, but {paths[0]} has "
                    f"{shards[0].size}; all files must come from the same encoder"
                )
            if not _same_ranges(shard.ranges, shards[0].ranges):
                raise InputError(
                    f"{path}: vectors must have the same int8 ranges as {paths[0]}, or no ranges; "
                    f"embed the texts again with --precision int8 --ranges {paths[0]}"
                )
        return cls(shards, _ids(paths, shards, ids))

    def __len__(self) -> int:
        return int(self._ends[-1])

    def name(self, row: int) -> str:
        """Return the id of the vector in a row."""
        return str(row) if self.ids is None else self.ids[row]

    def names(self, first: int, end: int) -> list[str]:
        """Return the ids of the vectors from row `first` to `end`, excluding `end`."""
        if self.ids is None:
            return [str(row) for row in range(first, min(end, len(self)))]
        return self.ids.part(first, end)

    def rows(self, first: int, end: int) -> Float[np.ndarray, "n D"]:
        """Return the vectors from row `first` to `end`, excluding `end`, as a view if possible."""
        end, pieces = min(end, len(self)), []
        while first < end:
            shard = int(np.searchsorted(self._ends, first, side="right"))
            start = int(self._ends[shard]) - self._shards[shard].rows
            last = min(end, int(self._ends[shard]))
            pieces.append(self._shards[shard].read(first - start, last - start))
            first = last
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces) if pieces else np.zeros((0, self.size), np.float32)

    def take(self, rows: np.ndarray) -> Float[np.ndarray, "n D"]:
        """Return the vectors in the given rows, in the given order."""
        found = np.empty((len(rows), self.size), np.float32)
        of_shard = np.searchsorted(self._ends, rows, side="right")
        for number in np.unique(of_shard):
            own, shard = of_shard == number, self._shards[number]
            found[own] = shard.take(rows[own] - (int(self._ends[number]) - shard.rows))
        return found

    def blocks(self, *, rows: int, first: int = 0, end: int | None = None) -> Iterator[Block]:
        """Yield the vectors from row `first` to `end` in order, in blocks of `rows` vectors."""
        end = len(self) if end is None else end
        for start in range(first, end, rows):
            yield Block(start, self.rows(start, min(start + rows, end)))


def _same_ranges(one: np.ndarray | None, other: np.ndarray | None) -> bool:
    if one is None or other is None:
        return one is other
    return np.array_equal(one, other)


class _Npy(_Shard):
    def __init__(self, path: str):
        self._array = open_array(path)
        shape, dtype = self._array.shape, self._array.dtype
        if len(shape) != 2 or dtype not in (*_DTYPES, np.int8, np.uint8) or not shape[1]:
            raise InputError(
                f"{path}: must be an array [N, D] of float32 (or float16, float64, int8, or of "
                f"signs as uint8), got {dtype} {list(shape)}"
            )
        self.rows, self.size = shape
        self._is_binary = dtype == np.uint8
        if self._is_binary:
            self.size *= 8
        if dtype == np.int8:
            self.ranges = self._read_ranges(f"{path}{_RANGES}", path)

    def _read_ranges(self, file: str, path: str) -> np.ndarray:
        if not Path(file).is_file():
            raise InputError(
                f"{path}: int8 vectors need the file {file}, which is missing; copy it together "
                "with the vectors"
            )
        ranges = open_array(file, dtypes=(np.float32,), dims=2)
        if ranges.shape != (2, self.size):
            raise InputError(
                f"{file}: must be an array [2, {self.size}], got {list(ranges.shape)}; copy the "
                "file that belongs to the vectors"
            )
        _check_ranges(ranges, file)
        return ranges

    def read(self, first: int, end: int) -> np.ndarray:
        return self._numbers(self._array[first:end])

    def take(self, rows: np.ndarray) -> np.ndarray:
        return self._numbers(self._array[rows])

    def _numbers(self, stored: np.ndarray) -> np.ndarray:
        """Return stored values as float32; the bits of binary vectors become -1 and 1."""
        if self._is_binary:
            return np.unpackbits(stored, axis=1).astype(np.float32) * 2 - 1
        if self.ranges is not None:
            return dequantized(stored, self.ranges)
        return np.asarray(stored, np.float32)


class _Parquet(_Shard):
    def __init__(self, path: str):
        parquet = _pyarrow_parquet()
        self._path, self._kept = path, (-1, np.zeros((0, 0), np.float32))
        with self._naming_damage():
            self._file = parquet.ParquetFile(path, memory_map=True, page_checksum_verification=True)
            schema, metadata = self._file.schema_arrow, self._file.metadata
            groups = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        if "id" not in schema.names or "vector" not in schema.names:
            raise InputError(f"{path}: must have the columns id and vector, but has {schema.names}")
        self._check_types(schema)
        if any(rows < 0 for rows in groups) or sum(groups) > _MOST_ROWS:
            raise InputError(f"{path}: damaged (it declares {sum(groups)} rows); make it again")
        self._ends, self.rows = np.cumsum([0, *groups]), sum(groups)
        self.size = self._group(0).shape[1] if groups else 0

    def _check_types(self, schema: Any) -> None:
        import pyarrow.types as types

        name, vector = schema.field("id").type, schema.field("vector").type
        is_text = types.is_string(name) or types.is_large_string(name)
        lists = (types.is_list, types.is_large_list, types.is_fixed_size_list)
        is_list = any(test(vector) for test in lists) and types.is_floating(vector.value_type)
        if not is_list or not (is_text or types.is_integer(name)):
            raise InputError(
                f"{self._path}: must have ids that are strings or whole numbers and vectors that "
                f"are lists of floats, got {str(name)[:40]} and {str(vector)[:40]}"
            )

    @contextlib.contextmanager
    def _naming_damage(self) -> Iterator[None]:
        """Convert errors of pyarrow, which have many types, to InputError with the file's path."""
        try:
            yield
        except InputError:
            raise
        except OSError as error:
            if error.errno is not None:
                raise InputError(f"{self._path}: {reason(error)}") from error
            raise self._damaged(error) from error
        except Exception as error:
            raise self._damaged(error) from error

    def _damaged(self, error: object) -> InputError:
        what = " ".join(str(error).split())[:120]
        return InputError(f"{self._path}: not a Parquet file, or cut off ({what}): make it again")

    def _column(self, group: int, name: str) -> Any:
        """Return a column of a row group, after checking that it is valid and has no nulls."""
        with self._naming_damage():
            column = self._file.read_row_group(group, columns=[name]).column(name)
            column = column.combine_chunks()
            column.validate(full=True)
            rows = int(self._ends[group + 1] - self._ends[group])
            if len(column) != rows or column.null_count:
                raise self._damaged(
                    f"row group {group} has {len(column)} of {rows} entries in column {name}"
                )
            return column

    def _group(self, number: int) -> np.ndarray:
        """Return the vectors of a row group."""
        if self._kept[0] != number:
            column = self._column(number, "vector")
            with self._naming_damage():
                flat = column.flatten().to_numpy(zero_copy_only=False)
                flat = flat.astype(np.float32, copy=False)
            size = self.size if number else len(flat) // max(1, len(column))
            if not _of_one_size(column, size) or len(flat) != len(column) * size:
                raise InputError(
                    f"{self._path}: the vectors have different sizes; all vectors must come from "
                    "the same encoder"
                )
            self._kept = number, flat.reshape(len(column), size)
        return self._kept[1]

    def read(self, first: int, end: int) -> np.ndarray:
        pieces = []
        while first < end:
            group = int(np.searchsorted(self._ends, first, side="right")) - 1
            start, last = int(self._ends[group]), min(end, int(self._ends[group + 1]))
            pieces.append(self._group(group)[first - start : last - start])
            first = last
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def ids(self) -> Iterator[str]:
        for group in range(len(self._ends) - 1):
            yield from map(str, self._column(group, "id").to_pylist())


_MOST_ROWS = 1 << 40


def _of_one_size(column: Any, size: int) -> bool:
    compute: Any = importlib.import_module("pyarrow.compute")
    if not len(column):
        return True
    least_most = compute.min_max(compute.list_value_length(column)).as_py()
    return least_most["min"] == least_most["max"] == size


def _opened(path: str) -> _Shard:
    suffix = Path(path).suffix
    if suffix == ".npy":
        return _Npy(path)
    if suffix == ".parquet":
        return _Parquet(path)
    raise InputError(
        f"{path}: not a file of vectors; give a .npy or .parquet file that `t5x-lite embed` wrote"
    )


def _pyarrow_parquet() -> Any:
    try:
        return importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise InputError(
            "a .parquet file needs the package pyarrow: pip install pyarrow"
        ) from error


def _ids(
    paths: Sequence[str], shards: Sequence[_Shard], files: Sequence[str]
) -> StringTable | None:
    rows = sum(shard.rows for shard in shards)
    inside = [shard.ids() for shard in shards if isinstance(shard, _Parquet)]
    if files:
        table = StringTable.of(record.id for file in files for record in read_passages(file))
        if len(table) != rows:
            raise InputError(
                f"{files[0]}: the text files have {len(table)} ids, but the vector files such as "
                f"{paths[0]} have {rows} vectors; give the files of the embedded texts, in the "
                "same order"
            )
    elif len(inside) == len(shards):
        table = StringTable.of(name for names in inside for name in names)
    elif inside:
        raise InputError(
            f"{paths[0]}: some files of vectors have ids (.parquet), but others have none; give "
            "the files of the texts by --ids"
        )
    else:
        return None
    table.check_distinct(files[0] if files else paths[0])
    return table


Numbers = Literal["float16", "int8", "float32"]

IDS, DENSE, LEXICAL = "ids.txt", "dense.npy", "lexical.jsonl"
_UNQUANTIZED = f"{DENSE}.float32"
VECTORS, ENDS, SCALES = "multi_vector.npy", "multi_vector_ends.npy", "multi_vector_scale.npy"


class Writer:
    """Writer of dense vectors, lexical weights and token vectors of texts to a directory.

    A context manager: the directory is complete when the block ends without an error. If an earlier
    process was interrupted, writing resumes after the last stored text.

    Args:
      directory: output directory, empty or from `jobs.resumable_directory`.
      numbers: dtype of the token vectors: "float16", "int8" or "float32".
      precision: data type of the dense vectors.
      ranges: minimum and maximum of each dimension for the precision int8; None computes them from
        the dense vectors when the files are complete.

    Attributes:
      done: number of written texts, including texts that an interrupted process wrote.
    """

    def __init__(
        self,
        directory: Path,
        *,
        numbers: Numbers = "float16",
        precision: Precision = "float32",
        ranges: Float[np.ndarray, "2 D"] | None = None,
    ):
        self._directory, self._numbers = directory, numbers
        self._calibrates = precision == "int8" and ranges is None
        self._precision: Precision = "float32" if self._calibrates else precision
        self._ranges = ranges
        self._files = AppendedFiles(directory)
        self._arrays: dict[str, ResumableArray] = {}
        self.done = self._files.done

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            self.close()
        else:
            self._files.close(whole=False)

    def write(
        self,
        ids: Sequence[str],
        *,
        dense: np.ndarray | None = None,
        terms: Sequence[Mapping[int, float]] | None = None,
        vectors: Sequence[np.ndarray] | None = None,
    ) -> None:
        """Append the outputs of an encoder's heads for some texts.

        Args:
          ids: ids of the texts.
          dense: dense vectors, float32 [n, D].
          terms: lexical weights of each text, by token id.
          vectors: token vectors of each text, [tokens, K].
        """
        self._lines(IDS, map(json.dumps, ids))
        if dense is not None:
            name = _UNQUANTIZED if self._calibrates else DENSE
            self._rows(name, stored(dense, self._precision, ranges=self._ranges))
        if terms is not None:
            self._lines(LEXICAL, (json.dumps({str(t): w for t, w in one.items()}) for one in terms))
        if vectors is not None:
            before = self._array(VECTORS).done
            self._tokens(np.concatenate(vectors))
            self._rows(ENDS, before + np.cumsum([len(one) for one in vectors], dtype=np.int64))
        self.done += len(ids)
        self._files.commit(self.done)

    def close(self) -> None:
        """Complete the files, and record the number of texts in them."""
        for rows in self._arrays.values():
            rows.finish()
        dense, unquantized = (self._directory / name for name in (DENSE, _UNQUANTIZED))
        if self._ranges is not None:
            save_array(f"{dense}{_RANGES}", self._ranges)
        if self._calibrates:
            quantize_file(str(unquantized), str(dense))
        self._files.close(whole=True)
        unquantized.unlink(missing_ok=True)

    def _tokens(self, vectors: np.ndarray) -> None:
        if self._numbers != "int8":
            self._rows(VECTORS, vectors.astype("<f2" if self._numbers == "float16" else "<f4"))
            return
        scale = np.max(np.abs(vectors), axis=1, initial=0.0) / 127
        safe = np.where(scale > 0, scale, 1.0)
        self._rows(VECTORS, np.round(vectors / safe[:, None]).astype("i1"))
        self._rows(SCALES, scale.astype("<f4"))

    def _lines(self, name: str, lines: Iterable[str]) -> None:
        self._files.open(name).write("".join(line + "\n" for line in lines).encode())

    def _array(self, name: str) -> ResumableArray:
        if name not in self._arrays:
            path = str(self._directory / name)
            self._arrays[name] = ResumableArray(self._files.open(name), path=path)
        return self._arrays[name]

    def _rows(self, name: str, rows: np.ndarray) -> None:
        self._array(name).write(rows, sync=False)


class M3Texts:
    """Reader of the dense vectors, lexical weights and token vectors of texts in a directory.

    Args:
      directory: directory of the vectors and weights, as written by `Writer`.

    Attributes:
      ids: ids of the texts.
      dense: dense vectors, float32 [texts, dimensions]; None if missing.

    Raises:
      InputError: if the directory has no ids, or a file does not have one entry per text.
    """

    def __init__(self, directory: str | Path):
        self._where = Path(directory)
        if not (self._where / IDS).is_file():
            raise InputError(
                f"{directory}: has no {IDS}; give a directory that `t5x-lite embed --heads ...` "
                "wrote"
            )
        lines = enumerate(read_lines([str(self._where / IDS)]), start=1)
        self.ids: list[str] = [self._id(line, number) for number, line in lines]
        self.dense: np.ndarray | None = None
        if (self._where / DENSE).is_file():
            with _naming_unreadable(self._where / DENSE):
                shards = VectorShards.open([str(self._where / DENSE)])
                self.dense = shards.rows(0, len(shards))
        self._vectors = self._array(VECTORS, (np.float16, np.float32, np.int8), 2)
        self._scales = self._array(SCALES, (np.float32,), 1)
        ends = self._array(ENDS, (np.int64,), 1)
        if (self._vectors is None) != (ends is None):
            raise InputError(
                f"{directory}: must have both {VECTORS} and {ENDS}, but has only one of them; run "
                "`t5x-lite embed` again"
            )
        if ends is not None and self._vectors is not None:
            check_ends(ends, len(self._vectors), where=self._where / ENDS)
            is_scaled = self._vectors.dtype == np.int8
            if is_scaled != (self._scales is not None) or (
                self._scales is not None and len(self._scales) != len(self._vectors)
            ):
                raise InputError(
                    f"{self._where / SCALES}: must have one scale per token vector; run `t5x-lite "
                    "embed` again"
                )
        self._ends = None if ends is None else ends.tolist()
        for name, one in ((DENSE, self.dense), (ENDS, self._ends)):
            self._check(name, None if one is None else len(one))

    def has(self, way: str) -> bool:
        """Return True if outputs of the kind "dense", "lexical" or "multi_vector" exist."""
        return (self._where / {"dense": DENSE, "lexical": LEXICAL}.get(way, VECTORS)).is_file()

    def terms(self) -> Generator[dict[int, float], None, None]:
        """Yield the lexical weights of each text: token id -> weight."""
        count = 0
        for count, line in enumerate(read_lines([str(self._where / LEXICAL)]), 1):
            where = f"{self._where / LEXICAL}:{count}"
            record = parse_json(line.encode(), where=where)
            try:
                yield {int(token): float(weight) for token, weight in record.items()}
            except (ValueError, AttributeError, TypeError, OverflowError) as error:
                raise InputError(
                    f'{where}: must be an object {{"token": weight}} ({error})'
                ) from error
        self._check(LEXICAL, count)

    def vectors(self, number: int) -> np.ndarray:
        """Return the token vectors of the text with index `number`, float32 [tokens, K]."""
        assert self._ends is not None
        assert self._vectors is not None
        place = slice(self._ends[number - 1] if number else 0, self._ends[number])
        found = self._vectors[place].astype(np.float32)
        return found if self._scales is None else found * self._scales[place, None]

    def _id(self, line: str, number: int) -> str:
        where = f"{self._where / IDS}:{number}"
        found = parse_json(line.encode(), where=where)
        if not isinstance(found, str):
            raise InputError(f"{where}: an id must be a string in quotation marks, got {line[:40]}")
        return found

    def _array(self, name: str, dtypes: Sequence[Any], dims: int) -> np.ndarray | None:
        path = self._where / name
        if not path.is_file():
            return None
        with _naming_unreadable(path):
            return open_array(path, dtypes=dtypes, dims=dims)

    def _check(self, name: str, count: int | None) -> None:
        if count is not None and count != len(self.ids):
            raise InputError(
                f"{self._where / name} has {count} texts, but {IDS} has {len(self.ids)}; run "
                "`t5x-lite embed` again"
            )


@contextlib.contextmanager
def _naming_unreadable(path: Path) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        what = str(error).removeprefix(f"{path}: ")
        raise InputError(f"{path}: cannot be read ({what})") from error
