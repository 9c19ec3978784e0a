"""Vectors of a corpus in one file or several, read a block at a time.

    shards = VectorShards.open(["part-0.npy", "part-1.npy"], ids=["corpus.jsonl"])
    for block in shards.blocks(rows=65536):
        block.first, block.vectors          # 0, float32 [65536, D]
    shards.ids[7]                           # "d7"

What `embed` writes is read: .npy is mapped, so that a corpus may be larger than memory, and of
.parquet a row group is read at a time. A .parquet file has its ids; those of .npy files come from
files of passages (`records.passages`), one after another, or are the rows' numbers from 0.
"""

import abc
import contextlib
import importlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from t5x_lite.errors import InputError
from t5x_lite.files import reason
from t5x_lite.records.passages import read_passages
from t5x_lite.records.string_table import StringTable, open_array

_DTYPES = (np.float16, np.float32, np.float64)


class Block(NamedTuple):
    """Vectors that stand one after another.

    Attributes:
      first: the number of the first in the corpus.
      vectors: float32 [n, D].
    """

    first: int
    vectors: Float[np.ndarray, "n D"]


class _Shard(abc.ABC):
    """A file of vectors."""

    rows: int
    size: int

    @abc.abstractmethod
    def read(self, first: int, end: int) -> np.ndarray:
        """The rows from one number to before another, float32 [end - first, D]."""


def identity_of(files: Sequence[str]) -> dict[str, Any]:
    """What tells the files of a corpus from others: paths, sizes, times of the last change."""
    stats = [os.stat(file) for file in files]
    return {
        "vectors": [os.path.abspath(file) for file in files],
        "sizes": [stat.st_size for stat in stats],
        "changed": [stat.st_mtime_ns for stat in stats],
    }


class VectorShards:
    """The vectors of a corpus.

    Attributes:
      ids: of the vectors; None are numbers.
      size: D, of each.
    """

    def __init__(self, shards: Sequence[_Shard], ids: StringTable | None):
        self._shards, self.ids = shards, ids
        self._ends = np.cumsum([shard.rows for shard in shards])
        self.size = shards[0].size

    @classmethod
    def open(cls, paths: Sequence[str], *, ids: Sequence[str] = ()) -> "VectorShards":
        """Opens files without reading vectors.

        Args:
          paths: .npy and .parquet files, in the order of the corpus.
          ids: files of passages whose ids are those of the vectors, in the same order; of .parquet
            files none are needed.

        Raises:
          InputError: a file is missing or holds no vectors, sizes differ, or there are more ids, or
            fewer, than vectors, or one of them twice.
        """
        if not paths:
            raise InputError("no file of vectors was given")
        shards = [_opened(path) for path in paths]
        for path, shard in zip(paths, shards, strict=True):
            if shard.size != shards[0].size:
                raise InputError(
                    f"{path}: vectors of {shard.size} numbers, and those of {paths[0]} have "
                    f"{shards[0].size}: one encoder must have made both"
                )
        return cls(shards, _ids(paths, shards, ids))

    def __len__(self) -> int:
        return int(self._ends[-1])

    def name(self, row: int) -> str:
        """The id of a row."""
        return str(row) if self.ids is None else self.ids[row]

    def names(self, first: int, end: int) -> list[str]:
        """The ids of rows."""
        if self.ids is None:
            return [str(row) for row in range(first, min(end, len(self)))]
        return self.ids.part(first, end)

    def rows(self, first: int, end: int) -> Float[np.ndarray, "n D"]:
        """The vectors from one number to before another; those of one .npy file are no copy."""
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

    def blocks(self, *, rows: int, first: int = 0, end: int | None = None) -> Iterator[Block]:
        """All vectors in order, so many at a time.

        Args:
          rows: of a block but the last.
          first: where to begin.
          end: where to end; None is the last.
        """
        end = len(self) if end is None else end
        for start in range(first, end, rows):
            yield Block(start, self.rows(start, min(start + rows, end)))


class _Npy(_Shard):
    def __init__(self, path: str):
        self._array = open_array(path)
        shape, dtype = self._array.shape, self._array.dtype
        if len(shape) != 2 or dtype not in _DTYPES or not shape[1]:
            raise InputError(
                f"{path}: must be an array [N, D] of float32 (or float16, float64), got {dtype} "
                f"{list(shape)}"
            )
        self.rows, self.size = shape

    def read(self, first: int, end: int) -> np.ndarray:
        return np.asarray(self._array[first:end], np.float32)


class _Parquet(_Shard):
    def __init__(self, path: str):
        parquet = _pyarrow_parquet()
        self._path, self._kept = path, (-1, np.zeros((0, 0), np.float32))
        with self._naming_damage():
            self._file = parquet.ParquetFile(path, memory_map=True, page_checksum_verification=True)
            schema, metadata = self._file.schema_arrow, self._file.metadata
            groups = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        if "id" not in schema.names or "vector" not in schema.names:
            raise InputError(f"{path}: must have the columns id and vector, and has {schema.names}")
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
        """Names the file in errors of pyarrow, which has many kinds of them."""
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
        return InputError(f"{self._path}: no file of Parquet, or cut off ({what}): make it again")

    def _column(self, group: int, name: str) -> Any:
        """A column of a row group, valid at every level and without nulls."""
        with self._naming_damage():
            column = self._file.read_row_group(group, columns=[name]).column(name)
            column = column.combine_chunks()
            column.validate(full=True)
            rows = int(self._ends[group + 1] - self._ends[group])
            if len(column) != rows or column.null_count:
                raise self._damaged(
                    f"row group {group} has {len(column)} of {rows} entries of {name}"
                )
            return column

    def _group(self, number: int) -> np.ndarray:
        """The vectors of a row group; the last one that was read is kept."""
        if self._kept[0] != number:
            column = self._column(number, "vector")
            with self._naming_damage():
                flat = column.flatten().to_numpy(zero_copy_only=False)
                flat = flat.astype(np.float32, copy=False)
            size = self.size if number else len(flat) // max(1, len(column))
            if not _of_one_size(column, size) or len(flat) != len(column) * size:
                raise InputError(f"{self._path}: its vectors are not all of one size")
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
    """Whether every list of a column has so many numbers."""
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
    raise InputError(f"{path}: vectors are in .npy or .parquet files, as `embed` writes them")


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
                f"{files[0]}: {len(table)} ids, and {paths[0]} has {rows} vectors: give the files "
                "that the vectors were made of, in the same order"
            )
    elif len(inside) == len(shards):
        table = StringTable.of(name for names in inside for name in names)
    elif inside:
        raise InputError(
            f"{paths[0]}: some files of vectors have ids (.parquet) and some have none: give the "
            "files of texts by --ids"
        )
    else:
        return None
    table.check_distinct(files[0] if files else paths[0])
    return table
