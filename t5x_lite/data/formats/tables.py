"""Readers of tables (JSONL, CSV, TSV, Parquet, Arrow, the Hub), and files as splits.

Readers of tables: rows of JSONL, CSV, TSV, Parquet and Arrow files, read lazily.

    for row in read_table(data_path("train.parquet"), columns=("text", "stars")):
        row.where, row.fields            # "train.parquet: row 1", {"text": "Fine.", "stars": 5}

JSONL, CSV and TSV may be compressed, with names that end in .gz or .zst. Parquet and Arrow need
pyarrow (extra `tables`). An Arrow file may have an index at its end or not, as in the files of
Hugging Face's `datasets`. Only a part of a file is in memory at a time. Values have JSON's types:
texts, numbers, truth values, and lists and objects of them.

Columns are validated before a value is read: Arrow trusts the offsets of a file, and a wrong offset
crashes the process. Values are converted to Python one row at a time, and the size of batches is
limited in bytes, so that rows that share a long text do not copy it many times.

Assignment of files to splits, for a directory or a data set of the Hugging Face Hub.

    table_splits("reviews")             {"train": (Path("reviews/train.csv"),), "validation": ...}
    table_splits("reviews.parquet")     {"train": (Path("reviews.parquet"),)}
    table_splits("rows", patterns={"train": ("2024-*.jsonl.gz",), "validation": ("dev.csv",)})
    table_splits("hf://imdb")           {"train": (HubSplit("imdb", None, "train"),), ...}

The first rule that fits applies:

1. hf://NAME, hf://NAME:CONFIG or hf://OWNER/NAME/CONFIG is loaded by the package `datasets` under
   that name. With a final :SPLIT, only this split is read.
2. Patterns name the files of a split, relative to the directory; several files are read in order.
3. A single file is the training split.
4. dataset_dict.json or state.json: `save_to_disk` of `datasets` wrote the directory.
5. train.csv, train-00000-of-00002.parquet, train/*.jsonl and similar files are the training split,
   in the directory or in its folder data. Validation files may also be named valid, val or dev.

`split_files` finds files with the split in their name: "train", and "dev" or "validation":

split_files("snli_1.0", suffix=".jsonl", expected="*train*.jsonl of SNLI")
# {"train": [.../snli_1.0_train.jsonl], "validation": [.../snli_1.0_dev.jsonl]}
"""

import abc
import contextlib
import fnmatch
import functools
import importlib
import itertools
import json
import logging
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from t5x_lite.core.errors import InputError, install_command
from t5x_lite.core.files import LONGEST_LINE
from t5x_lite.core.object_store import BucketPath, DataPath, data_path, files_in
from t5x_lite.core.options import did_you_mean
from t5x_lite.core.remote import is_remote
from t5x_lite.data.formats.benchmark_files import Row, read_csv, read_jsonl
from t5x_lite.data.formats.lines import COMPRESSED, parse_json, plain_name, read_whole

_logger = logging.getLogger(__name__)


SEPARATORS = {".csv": ",", ".tsv": "\t"}
_TEXTS = (".jsonl", *SEPARATORS)
_ARROW = (".arrow", ".feather")
_PARQUET = ".parquet"
ENDINGS = (
    *(f"{end}{compressed}" for end in _TEXTS for compressed in ("", *COMPRESSED)),
    _PARQUET,
    *_ARROW,
)
"""File name suffixes of the supported tables."""

_ROWS = 1024
"""Maximum rows of a Parquet batch."""
_BATCH_BYTES = 16 << 20
"""Approximate maximum bytes of a Parquet batch."""


def ending_of(name: str) -> str:
    """Return the suffix of a table's name, such as ".csv.gz"; "" for other files."""
    return max((end for end in ENDINGS if name.endswith(end)), key=len, default="")


def read_table(file: DataPath, *, columns: Sequence[str], quoting: bool = True) -> Iterator[Row]:
    """Read the rows of a JSONL, CSV, TSV, Parquet or Arrow file lazily, in order."""
    end = ending_of(file.name)
    if not end:
        raise InputError(
            f"{file} is not a table: its name must end in {', '.join(_TEXTS)} (with .gz or .zst if "
            f"compressed), {_PARQUET} or {_ARROW[0]}"
        )
    suffix = "." + plain_name(end).split(".")[1]
    if suffix == ".jsonl":
        return read_jsonl(file, fields=())
    if suffix in SEPARATORS:
        separator = SEPARATORS[suffix]
        return read_csv(file, columns=columns, separator=separator, quoting=quoting)
    read = _parquet_batches if suffix == _PARQUET else _arrow_batches
    return _rows_of_file(file, read, columns)


def _file_groups(file: DataPath) -> int:
    """Return the number of row groups of a Parquet file, or of record batches of an Arrow file.

    An Arrow file without an index counts as one batch.
    """
    pa = pyarrow(file)
    with _naming(file, pa), _opened(pa, file) as source:
        if _is_parquet(file):
            import pyarrow.parquet as parquet

            with parquet.ParquetFile(source) as table:
                return table.metadata.num_row_groups
        if not _has_index(source):
            return 1
        with pa.ipc.open_file(source) as table:
            return table.num_record_batches


def _read_file_columns(
    file: DataPath, *, columns: Sequence[str], group: int | None = None
) -> Iterator[Row]:
    """Read some columns of a Parquet or Arrow file, or of one of its row groups."""
    pa = pyarrow(file)
    read = _parquet_batches if _is_parquet(file) else _arrow_batches
    with _naming(file, pa):
        yield from rows_of_batches(
            read(pa, file, columns=columns, group=group),
            name=str(file),
            columns=columns,
            before=0 if group is None else _rows_before(pa, file, group),
        )


def _file_columns(file: DataPath) -> list[str]:
    """Return the column names of a Parquet or Arrow file, without reading rows."""
    pa = pyarrow(file)
    with _naming(file, pa), _opened(pa, file) as source:
        if _is_parquet(file):
            import pyarrow.parquet as parquet

            with parquet.ParquetFile(source) as table:
                return table.schema_arrow.names
        opened = pa.ipc.open_file if _has_index(source) else pa.ipc.open_stream
        with opened(source) as table:
            return table.schema.names


def require_columns(names: Sequence[str], columns: Sequence[str], *, name: str) -> None:
    """Raise InputError, listing the existing columns, if one of `columns` is not in `names`."""
    for column in columns:
        if column not in names:
            listed = ", ".join(names) or "no columns"
            raise InputError(
                f"{name} has no column {column!r}, but only {listed}; name the column of the text "
                "by --data.columns.inputs '{COLUMN}' (train, cache) or --text COLUMN (vocab, "
                "embed, pairs)"
            )


def _rows_before(pa: Any, file: DataPath, group: int) -> int:
    if not group:
        return 0
    with _opened(pa, file) as source:
        if _is_parquet(file):
            import pyarrow.parquet as parquet

            with parquet.ParquetFile(source) as table:
                return sum(table.metadata.row_group(i).num_rows for i in range(group))
        with pa.ipc.open_file(source) as table:
            return sum(table.get_batch(i).num_rows for i in range(group))


def _is_parquet(file: DataPath) -> bool:
    return file.name.endswith(_PARQUET)


def rows_of_batches(
    batches: Iterable[Any], *, name: str, columns: Sequence[str], before: int = 0
) -> Iterator[Row]:
    """Yield the rows of Arrow record batches or tables as dicts of Python values.

    Row numbers in messages begin after `before`, the number of earlier rows in the file.
    """
    count = before
    for batch in batches:
        if count == before:
            _check_columns(batch.schema.names, columns, name=name)
        values = [
            map(_plain, _values(batch, place, name=name, first=count))
            for place in range(batch.num_columns)
        ]
        for row in zip(*values, strict=True):
            count += 1
            fields = dict(zip(batch.schema.names, row, strict=True))
            yield Row(f"{name}: row {count}", fields)


def _rows_of_file(file: DataPath, read: Any, columns: Sequence[str]) -> Iterator[Row]:
    pa = pyarrow(file)
    names: list[str] = []
    with _naming(file, pa):
        yield from rows_of_batches(
            _looked_at(read(pa, file), names), name=str(file), columns=columns
        )
        if not names:
            raise InputError(f"{file}: the table is empty")


@contextlib.contextmanager
def _naming(file: DataPath, pa: Any) -> Iterator[None]:
    """Convert read errors in a `with` block to InputError with the file's path."""
    kind = "Parquet" if _is_parquet(file) else "Arrow"
    try:
        yield
    except OSError as error:
        if error.errno is not None:
            raise InputError(f"cannot read {file}: {os.strerror(error.errno)}") from error
        raise _damaged(file, kind, error) from error
    except pa.ArrowException as error:
        raise _damaged(file, kind, error) from error


def _damaged(file: DataPath, kind: str, error: Exception) -> InputError:
    what = " ".join(str(error).split())[:200]
    return InputError(
        f"{file}: damaged, or not in {kind} format despite its suffix ({what}); copy or download "
        "it again"
    )


def _looked_at(batches: Iterator[Any], names: list[str]) -> Iterator[Any]:
    for batch in batches:
        names[:] = batch.schema.names
        yield batch


def pyarrow(what: object) -> Any:
    """Return the package pyarrow; raise InputError if it is not installed."""
    try:
        import pyarrow as pa
    except ImportError as error:
        raise InputError(
            f"{what} requires the package pyarrow, which is missing: {install_command('tables')}"
        ) from (error)
    return pa


def _opened(pa: Any, file: DataPath) -> Any:
    """Open a file for Arrow; a file in a bucket is read in byte ranges."""
    if isinstance(file, BucketPath):
        return pa.PythonFile(file.open(), mode="r")
    return pa.memory_map(str(file))


def _parquet_batches(
    pa: Any, file: DataPath, *, columns: Sequence[str] | None = None, group: int | None = None
) -> Iterator[Any]:
    import pyarrow.parquet as parquet

    with _opened(pa, file) as source:
        with parquet.ParquetFile(source) as table:
            metadata, schema = table.metadata, table.schema_arrow
        leaves = [metadata.schema.column(i) for i in range(metadata.num_columns)]
        if columns is not None:
            require_columns(schema.names, columns, name=str(file))
            leaves = [x for x in leaves if {x.path, x.path.split(".")[0]} & {*columns}]
            schema = pa.schema([schema.field(name) for name in dict.fromkeys(columns)])
        leaves = [leaf for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
        # A list may repeat a long entry many times, so it stays encoded; a flat column does not.
        encoded = [leaf.path for leaf in leaves if leaf.max_repetition_level]
        flat = [leaf.path for leaf in leaves if not leaf.max_repetition_level]
        with (
            parquet.ParquetFile(source, read_dictionary=encoded) as table,
            parquet.ParquetFile(source, read_dictionary=flat) as probed,
        ):
            batches = (
                batch
                for number in (range(metadata.num_row_groups) if group is None else [group])
                for batch in table.iter_batches(
                    batch_size=_batch_size(metadata, number, probed, flat),
                    row_groups=[number],
                    columns=None if columns is None else [*dict.fromkeys(columns)],
                )
            )
            yield from _at_least_one(batches, pa, schema)


def _batch_size(metadata: Any, group: int, probed: Any, flat: Sequence[str]) -> int:
    found = metadata.row_group(group)
    largest = found.total_byte_size // max(1, found.num_rows)
    if flat:
        batch = next(probed.iter_batches(batch_size=1, row_groups=[group], columns=flat), None)
        largest += 0 if batch is None else sum(map(_longest_entry, batch.columns))
    return min(_ROWS, max(1, _BATCH_BYTES // max(1, largest)))


def _longest_entry(column: Any) -> int:
    """Return the size in bytes of the longest text in an Arrow column."""
    compute: Any = importlib.import_module("pyarrow.compute")
    import pyarrow.types as types

    if types.is_struct(column.type):
        return sum(_longest_entry(column.field(i)) for i in range(column.type.num_fields))
    texts = column.dictionary if types.is_dictionary(column.type) else column
    if not _has_length(texts.type):
        return 0
    return compute.max(compute.binary_length(texts)).as_py() or 0


def _arrow_batches(
    pa: Any, file: DataPath, *, columns: Sequence[str] | None = None, group: int | None = None
) -> Iterator[Any]:
    with _opened(pa, file) as source:
        if _has_index(source):
            with pa.ipc.open_file(source) as table:
                numbers = range(table.num_record_batches) if group is None else [group]
                batches = (table.get_batch(i) for i in numbers)
                yield from _selected(_at_least_one(batches, pa, table.schema), file, columns)
        else:
            with pa.ipc.open_stream(source) as table:
                yield from _selected(_at_least_one(table, pa, table.schema), file, columns)


def _has_index(source: Any) -> bool:
    start = source.read(6)
    source.seek(0)
    return start == b"ARROW1"


def _selected(
    batches: Iterable[Any], file: DataPath, columns: Sequence[str] | None
) -> Iterator[Any]:
    for batch in batches:
        if columns is None:
            yield batch
            continue
        require_columns(batch.schema.names, columns, name=str(file))
        yield batch.select([*dict.fromkeys(columns)])


def _at_least_one(batches: Iterable[Any], pa: Any, schema: Any) -> Iterator[Any]:
    none = True
    for batch in batches:
        none = False
        yield batch
    if none:
        yield pa.RecordBatch.from_pylist([], schema=schema)


def _check_columns(names: Sequence[str], columns: Sequence[str], *, name: str) -> None:
    for column in columns:
        if column not in names:
            hint = did_you_mean(column, names)
            raise InputError(
                f"{name} has no column {column!r}{hint or f', but {chr(44).join(names)}'}"
            )


def _values(batch: Any, place: int, *, name: str, first: int) -> Iterator[Any]:
    """Return an iterator over the values of an Arrow column in Python's types."""
    column, kind = batch.column(place), batch.schema.field(place).type
    if not _is_plain(kind):
        # Unused columns may hold any type; only their use raises an error.
        return itertools.repeat(_Unreadable(str(kind)), batch.num_rows)
    _validate(column, batch.schema.names[place], name=name, first=first)
    longest = _longest_entry(column)
    if longest > LONGEST_LINE:
        raise InputError(
            f"{name}: column {batch.schema.names[place]!r} has a text of more than {LONGEST_LINE} "
            f"bytes in row {first + 1} or a later row; divide the text"
        )
    if _nests(kind):
        return _nested_values(column, f"{name}: row", batch.schema.names[place], first)
    if _is_fast(column):
        return _fast_values(column, min(_ROWS, max(1, _BATCH_BYTES // max(1, longest))))
    values = (scalar.as_py() for scalar in column)
    if str(kind) in ("float", "halffloat"):
        import numpy as np

        short = np.float32 if str(kind) == "float" else np.float16
        return (None if value is None else float(str(short(value))) for value in values)
    return values


def _is_fast(column: Any) -> bool:
    """Return True if NumPy can convert an Arrow column to Python values without changes."""
    import pyarrow.types as types

    kind = column.type
    if types.is_string(kind) or types.is_large_string(kind):
        return True
    plain = types.is_integer(kind) or types.is_boolean(kind) or str(kind) == "double"
    return plain and not column.null_count


def _fast_values(column: Any, rows: int) -> Iterator[Any]:
    for first in range(0, len(column), rows):
        yield from column.slice(first, rows).to_numpy(zero_copy_only=False).tolist()


def _nests(kind: Any) -> bool:
    return kind.num_fields > 0


def _nested_values(column: Any, where: str, label: str, first: int) -> Iterator[Any]:
    """Yield the values of a column of lists or structs."""
    for row, scalar in enumerate(column):
        if _expanded(column.slice(row, 1)) > LONGEST_LINE:
            raise InputError(
                f"{where} {first + row + 1}: column {label!r} has more than {LONGEST_LINE} bytes; "
                "divide the value"
            )
        yield scalar.as_py()


def _expanded(array: Any) -> int:
    compute: Any = importlib.import_module("pyarrow.compute")
    import pyarrow.types as types

    kind = array.type
    if types.is_struct(kind):
        return sum(map(_expanded, array.flatten()))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return 8 * len(array) + _expanded(array.flatten())
    if types.is_dictionary(kind) and _has_length(kind.value_type):
        lengths = compute.binary_length(array.dictionary)
        return 8 * len(array) + (compute.sum(compute.take(lengths, array.indices)).as_py() or 0)
    if _has_length(kind):
        return 8 * len(array) + (compute.sum(compute.binary_length(array)).as_py() or 0)
    return 8 * len(array)


def _has_length(kind: Any) -> bool:
    import pyarrow.types as types

    strings = types.is_string(kind) or types.is_large_string(kind)
    return strings or types.is_binary(kind) or types.is_large_binary(kind)


def _validate(column: Any, label: str, *, name: str, first: int) -> None:
    """Raise InputError if an Arrow column has invalid offsets, indices or UTF-8."""
    import pyarrow as pa

    try:
        column.validate(full=True)
    except pa.ArrowException as error:
        what = " ".join(str(error).split())[:200]
        found = _NOT_UTF8.search(what) if _has_length(column.type) else None
        if found:
            raise InputError(
                f"{name}: row {first + int(found[1]) + 1}: column {label!r} is not UTF-8; convert "
                "the text"
            ) from error
        raise InputError(
            f"{name}: column {label!r} is damaged ({what}); copy or download the file again"
        ) from error


_NOT_UTF8 = re.compile(r"UTF8 sequence at string index (\d+)")


class _Unreadable:
    """Placeholder for a value that JSON cannot represent."""

    def __init__(self, kind: str):
        self.kind = kind


def _is_plain(kind: Any) -> bool:
    """Return True if JSON can represent the values of an Arrow type."""
    import pyarrow.types as types

    if types.is_dictionary(kind):
        return _is_plain(kind.value_type)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _is_plain(kind.value_type)
    if types.is_struct(kind):
        return all(_is_plain(kind.field(i).type) for i in range(kind.num_fields))
    is_text = types.is_string(kind) or types.is_large_string(kind) or str(kind) == "string_view"
    is_number = types.is_integer(kind) or types.is_floating(kind)
    return is_text or is_number or types.is_boolean(kind) or types.is_null(kind)


def _plain(value: Any) -> Any:
    """Return a value, or None for NaN, which pandas writes for missing numbers."""
    return None if isinstance(value, float) and math.isnan(value) else value


def texts_of(row: Row) -> dict[str, str]:
    """Return the entries of a row as strings; missing entries are skipped."""
    return {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in row.fields.items()
        if value is not None and not isinstance(value, _Unreadable)
    }


def check_row(row: Row, columns: Sequence[str]) -> None:
    """Raise InputError if one of the columns of a row is missing, empty or of a wrong type."""
    for name in columns:
        value = row.fields.get(name)
        if isinstance(value, _Unreadable):
            raise InputError(
                f"{row.where}: column {name!r} is of type {value.kind}, but must be a text, a "
                "number or a truth value"
            )
        if name not in row.fields:
            raise InputError(
                f"{row.where}: column {name!r} is missing; the columns are {', '.join(row.fields)}"
            )
        if value is None:
            raise InputError(
                f"{row.where}: column {name!r} is empty (null); fill it, or remove the row"
            )


SPLITS = {
    "train": ("train",),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test",),
}
"""Names of each split in the names of its files."""

HUB = "hf://"
_PATTERN = re.compile(r"[*?\[]")
_NUMBERED = re.compile(r"(\d+)-of-(\d+)")


@dataclass(frozen=True)
class HubSplit:
    """Split of a data set of the Hugging Face Hub, which the package `datasets` loads.

    Attributes:
      dataset: name of the data set, "owner/name" or "name".
      config: name of the configuration; None for the default.
      split: name of the split on the Hub.
    """

    dataset: str
    config: str | None
    split: str

    def __str__(self) -> str:
        config = f":{self.config}" if self.config else ""
        return f"{HUB}{self.dataset}{config} ({self.split})"


class RowFile(abc.ABC):
    """Base class of files in custom formats that are read as rows of a table."""

    @abc.abstractmethod
    def rows(self) -> Iterator[Row]:
        """Yield the rows of the file, in order."""

    @abc.abstractmethod
    def __fspath__(self) -> str: ...

    def __str__(self) -> str:
        return self.__fspath__()


Columnar: TypeAlias = DataPath | HubSplit
Table: TypeAlias = Columnar | RowFile
"""Source of rows: a file, a split of the Hub, or a file in a custom format."""


def read_rows(table: Table, *, columns: Sequence[str], quoting: bool = True) -> Iterator[Row]:
    """Read the rows of a file, or of a split of a Hub data set, lazily and in order."""
    if isinstance(table, RowFile):
        return table.rows()
    if not isinstance(table, HubSplit):
        return read_table(table, columns=columns, quoting=quoting)
    pyarrow(table)
    batches = _loaded(table.dataset, table.config)[table.split].with_format("arrow").iter(1024)
    return rows_of_batches(batches, name=str(table), columns=columns)


_HUB_ROWS = 1024
"""Number of rows of a Hub data set that are read at a time."""


def column_names(table: Columnar) -> list[str]:
    """Return the column names of a table: a Parquet or Arrow file, or a split of the Hub."""
    if not isinstance(table, HubSplit):
        return _file_columns(table)
    return [*_loaded(table.dataset, table.config)[table.split].column_names]


def num_groups(table: Columnar) -> int:
    """Return the number of row groups of a table."""
    if not isinstance(table, HubSplit):
        return _file_groups(table)
    return max(1, -(-len(_loaded(table.dataset, table.config)[table.split]) // _HUB_ROWS))


def read_columns(
    table: Columnar, *, columns: Sequence[str], group: int | None = None
) -> Iterator[Row]:
    """Read some columns of a table or of one of its row groups."""
    if not isinstance(table, HubSplit):
        return _read_file_columns(table, columns=columns, group=group)
    pyarrow(table)
    rows = _loaded(table.dataset, table.config)[table.split]
    require_columns(rows.column_names, columns, name=str(table))
    rows = rows.select_columns([*dict.fromkeys(columns)]).with_format("arrow")
    first, end = 0, len(rows)
    if group is not None:
        first, end = group * _HUB_ROWS, min(end, (group + 1) * _HUB_ROWS)
    batches = (
        batch
        for start in range(first, end, _HUB_ROWS)
        for batch in rows[start : min(end, start + _HUB_ROWS)].to_batches()
    )
    return rows_of_batches(batches, name=str(table), columns=columns, before=first)


def table_splits(
    directory: str,
    *,
    patterns: Mapping[str, Sequence[str]] | None = None,
    endings: tuple[str, ...] = (),
) -> dict[str, tuple[Table, ...]]:
    """Return the tables of each split, from a directory, a single file or a Hub data set.

    Args:
      directory: path of the directory or file, or hf://NAME.
      patterns: file name patterns of each split; None to look for split names in paths.
      endings: file suffixes that patterns may match; () for the suffixes of all table formats.
    """
    given = {split: globs for split, globs in (patterns or {}).items() if globs}
    if directory.startswith(HUB):
        return _hub_splits(directory.removeprefix(HUB))
    place = data_path(directory)
    if given:
        return {split: _matching(place, globs, split, endings) for split, globs in given.items()}
    if not directory:
        return {}
    if ending_of(place.name) and place.is_file():
        return {"train": (place,)}
    if _PATTERN.search(directory):
        return {"train": _matching(data_path("."), [directory], "train")}
    names = _names(place)
    saved = _saved_splits(place, names)
    if saved is not None:
        return saved
    for folder in (place, place / "data"):
        splits = _named_splits(folder, names if folder == place else _names(folder))
        if splits:
            return {**splits}
    return {}


def _names(place: DataPath) -> list[str]:
    """Return the names of the files directly in a directory; [] if it does not exist."""
    if isinstance(place, BucketPath):
        return [*files_in(place)]
    return sorted(path.name for path in place.glob("*") if path.is_file())


def _matching(
    place: DataPath, globs: Sequence[str], split: str, endings: tuple[str, ...] = ()
) -> tuple[DataPath, ...]:
    """Return the files that match the patterns of a split, in the order of the patterns."""

    def fits(name: str) -> bool:
        return plain_name(name).endswith(endings) if endings else bool(ending_of(name))

    found: list[DataPath] = []
    for pattern in globs:
        whole = is_remote(pattern) or pattern.startswith("/")
        path = data_path(pattern) if whole else _below(place, pattern)
        if _PATTERN.search(path.name):
            among = [name for name in _names(path.parent) if fits(name)]
            files = [path.parent / name for name in fnmatch.filter(among, path.name)]
        else:
            files = [path] if path.is_file() else []
        if not files:
            raise InputError(f"data.columns.{split}: no file matches {path}")
        found += [file for file in files if file not in found]
    return tuple(found)


def _below(place: DataPath, pattern: str) -> DataPath:
    for part in pattern.split("/"):
        place = place / part
    return place


def _saved_splits(place: DataPath, names: Sequence[str]) -> dict[str, tuple[Table, ...]] | None:
    if "state.json" in names:
        return {"train": _saved_files(place)}
    if "dataset_dict.json" not in names:
        return None
    listed = _json(place / "dataset_dict.json").get("splits")
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        raise InputError(f'{place / "dataset_dict.json"}: must have "splits", a list of names')
    found = {
        split: name for split, known in SPLITS.items() for name in known[::-1] if name in listed
    }
    if not found:
        raise InputError(
            f"{place}: the splits are {', '.join(listed)}, but one must be train, validation or "
            "test; name the files by --data.columns.train"
        )
    if outside := [name for name in found.values() if not _is_name(name)]:
        raise InputError(
            f"{place}: a split must be a folder in this directory, got {outside[0][:60]!r}"
        )
    return {split: _saved_files(place / name) for split, name in found.items()}


def _saved_files(folder: DataPath) -> tuple[DataPath, ...]:
    state = _json(folder / "state.json")
    files = state.get("_data_files")
    listed: list[Any] = files if isinstance(files, list) else []
    given = [each.get("filename") if isinstance(each, dict) else None for each in listed]
    names = [name for name in given if isinstance(name, str)]
    if not names or len(names) < len(given):
        raise InputError(
            f'{folder / "state.json"}: must have "_data_files", a list of objects with "filename"'
        )
    if outside := [name for name in names if not _is_name(name)]:
        raise InputError(
            f'{folder / "state.json"}: "filename" must be a file in the same folder, got '
            f"{outside[0][:60]!r}"
        )
    if state.get("_indices_data_files"):
        raise InputError(
            f"{folder}: the saved data set selects its rows by indices; call flatten_indices() "
            "before save_to_disk()"
        )
    return tuple(folder / name for name in names)


def _is_name(name: str) -> bool:
    """Return True if a name is a plain file name, without a folder."""
    return "/" not in name and "\0" not in name and name not in ("", ".", "..")


def _json(file: DataPath) -> dict[str, Any]:
    try:
        content = parse_json(read_whole(file, most=LONGEST_LINE), where=str(file))
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror}") from error
    if not isinstance(content, dict):
        raise InputError(f"{file}: must be a JSON object")
    return content


def _named_splits(place: DataPath, names: Sequence[str]) -> dict[str, tuple[DataPath, ...]]:
    """Return the files of each split, found by split names in file or folder names."""
    found = {}
    for split, known in SPLITS.items():
        sets = [files for name in known if (files := _files_of(place, name, names))]
        if len(sets) > 1:
            raise InputError(
                f"data.directory {str(place)!r} has both {sets[0][0].name} and {sets[1][0].name} "
                "for one split; keep one"
            )
        if sets:
            found[split] = sets[0]
    return found


def _files_of(place: DataPath, name: str, names: Sequence[str]) -> tuple[DataPath, ...]:
    """Return the files "NAME.csv" or "NAME-00000-of-00002.csv", or all files in the folder NAME."""
    start = re.compile(rf"{name}([-_.]\d[\w-]*)?(?=\.[a-z])")
    own = [n for n in names if (m := start.match(n)) and n[m.end() :] == ending_of(n)]
    files = [place / n for n in own]
    if not files:
        folder = place / name
        files = [folder / n for n in _names(folder) if ending_of(n)]
    single = [n for n in own if n == f"{name}{ending_of(n)}"]
    _check_numbers(place, files)
    kinds = {ending_of(file.name): file for file in files}
    if len(kinds) > 1 or (single and len(files) > 1):
        first, second = sorted(files, key=lambda file: (len(file.name), file.name))[:2]
        raise InputError(
            f"data.directory {str(place)!r} has both {first.name} and {second.name} for one split; "
            "keep one"
        )
    return tuple(files)


def _check_numbers(place: DataPath, files: Sequence[DataPath]) -> None:
    """Warn of missing shards "NUMBER-of-TOTAL"; raise InputError if the totals differ."""
    found = [(file.name, match) for file in files if (match := _NUMBERED.search(file.name))]
    totals = {int(match[2]): name for name, match in found}
    if len(totals) > 1:
        first, second = sorted(totals.values())[:2]
        raise InputError(
            f"data.directory {str(place)!r} has shards of two releases, such as {first} and "
            f"{second}; keep one"
        )
    for total, name in totals.items():
        if (missing := total - len({int(match[1]) for _, match in found})) > 0:
            _tell_of_missing(str(place), name, missing, total)


@functools.cache
def _tell_of_missing(place: str, name: str, missing: int, total: int) -> None:
    _logger.warning(
        "data.directory %s: %d of %d shards like %s are missing; reading only the existing shards",
        *(place, missing, total, name),
    )


def _hub_name(name: str) -> tuple[str, str, str]:
    """Split a Hub name into data set, configuration and split; "" if not given."""
    dataset, _, rest = name.partition(":")
    owner_and_name, config = dataset.split("/")[:2], "/".join(dataset.split("/")[2:])
    if config and not dataset.startswith(("/", ".")):
        return "/".join(owner_and_name), config, rest
    config, _, split = rest.partition(":")
    if not split and any(config in names for names in SPLITS.values()):
        return dataset, "", config
    return dataset, config, split


def _hub_splits(name: str) -> dict[str, tuple[Table, ...]]:
    dataset, config, split = _hub_name(name)
    there = [*_loaded(dataset, config or None)]
    if split:
        if split not in there:
            raise InputError(
                f"{HUB}{name} has no split {split!r}; the splits are {', '.join(there)}"
            )
        return {"train": (HubSplit(dataset, config or None, split),)}
    named = {
        split: next((known for known in names if known in there), None)
        for split, names in SPLITS.items()
    }
    return {
        split: (HubSplit(dataset, config or None, known),)
        for split, known in named.items()
        if known
    }


_hub: dict[tuple[str, str | None], Any] = {}


def _loaded(name: str, config: str | None) -> Any:
    """Load all splits of a Hub data set, once per process."""
    if (name, config) in _hub:
        return _hub[name, config]
    try:
        import datasets  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise InputError(
            f"{HUB}{name} needs the package datasets, which is not installed; run pip install "
            "'t5x-lite[hub]', or set data.directory to your files"
        ) from error
    try:
        _hub[name, config] = datasets.load_dataset(name, config)
    except Exception as error:  # errors of network, names or formats
        what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise InputError(
            f"{HUB}{name}: the package datasets cannot load this data set ({what})"
        ) from error
    return _hub[name, config]


_PARTS = {"train": ("train",), "validation": ("dev", "validation")}


def split_files(directory: str, *, suffix: str, expected: str) -> dict[str, list[DataPath]]:
    """Return the sorted files of each split, found by the split's name in the file names."""
    root = data_path(directory)
    there = sorted(root.glob("*")) if directory and root.is_dir() else []
    there = [file for file in there if plain_name(file).endswith(suffix) and file.is_file()]
    splits = {
        split: [file for file in there if any(part in file.name for part in parts)]
        for split, parts in _PARTS.items()
    }
    if not splits["train"]:
        raise InputError(f"data.directory {directory!r} has no {expected}")
    return {split: files for split, files in splits.items() if files}
