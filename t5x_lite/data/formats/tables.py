"""Readers of tables: rows of JSONL, CSV, TSV, Parquet and Arrow files, read lazily.

    for row in read_table(data_path("train.parquet"), columns=("text", "stars")):
        row.where, row.fields            # "train.parquet: row 1", {"text": "Fine.", "stars": 5}

JSONL, CSV and TSV may be compressed, with names that end in .gz or .zst. Parquet and Arrow need
pyarrow (extra `tables`). An Arrow file may have an index at its end or not, as in the files of
Hugging Face's `datasets`. Only a part of a file is in memory at a time. Values have JSON's types:
texts, numbers, truth values, and lists and objects of them.

Columns are validated before a value is read: Arrow trusts the offsets of a file, and a wrong offset
crashes the process. Values are converted to Python one row at a time, and the size of batches is
limited in bytes, so that rows that share a long text do not copy it many times.
"""

import contextlib
import importlib
import itertools
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from t5x_lite.core.errors import InputError, install_command
from t5x_lite.core.files import LONGEST_LINE
from t5x_lite.core.object_store import BucketPath, DataPath
from t5x_lite.core.options import did_you_mean
from t5x_lite.data.formats.benchmark_files import Row, read_csv, read_jsonl
from t5x_lite.data.formats.lines import COMPRESSED, plain_name

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


def num_groups(file: DataPath) -> int:
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


def read_columns(
    file: DataPath, *, columns: Sequence[str], group: int | None = None
) -> Iterator[Row]:
    """Read the rows of a Parquet or Arrow file, or of one of its groups, with only some columns."""
    pa = pyarrow(file)
    read = _parquet_batches if _is_parquet(file) else _arrow_batches
    with _naming(file, pa):
        yield from rows_of_batches(
            read(pa, file, columns=columns, group=group),
            name=str(file),
            columns=columns,
            before=0 if group is None else _rows_before(pa, file, group),
        )


def column_names(file: DataPath) -> list[str]:
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
                f"{name} has no column {column!r}, but {listed}; name the column of the text by "
                "--data.columns.inputs '{COLUMN}' (train, cache) or --text COLUMN (vocab, "
                "embed, pairs)"
            )


def _rows_before(pa: Any, file: DataPath, group: int) -> int:
    """Return the number of rows in the groups before `group`, for messages."""
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
    """Yield the rows of Arrow record batches or tables, with values in Python's types.

    Row numbers in locations start after `before`, the number of earlier rows in the file.
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
    """Convert errors in reading a table within the `with` block to InputError with the path."""
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
    """Yield the batches unchanged, and store their column names in the list `names`."""
    for batch in batches:
        names[:] = batch.schema.names
        yield batch


def pyarrow(what: object) -> Any:
    """Return the package pyarrow; raise InputError if it is not installed."""
    try:
        import pyarrow as pa
    except ImportError as error:
        raise InputError(
            f"{what} needs pyarrow, which is missing: {install_command('tables')}"
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
    """Return the number of rows per batch that keeps batches near `_BATCH_BYTES`."""
    found = metadata.row_group(group)
    largest = found.total_byte_size // max(1, found.num_rows)
    if flat:
        batch = next(probed.iter_batches(batch_size=1, row_groups=[group], columns=flat), None)
        largest += 0 if batch is None else sum(map(_longest_entry, batch.columns))
    return min(_ROWS, max(1, _BATCH_BYTES // max(1, largest)))


def _longest_entry(column: Any) -> int:
    """Return the bytes of the longest text in an Arrow column; a struct's fields are added up."""
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
    """Yield the values of a column of lists or structs; raise InputError for too large values."""
    for row, scalar in enumerate(column):
        if _expanded(column.slice(row, 1)) > LONGEST_LINE:
            raise InputError(
                f"{where} {first + row + 1}: {label!r} has more than {LONGEST_LINE} bytes; divide "
                "the value"
            )
        yield scalar.as_py()


def _expanded(array: Any) -> int:
    """Return the bytes that an Arrow array would have without dictionary encoding."""
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
    """Raise InputError if an Arrow column has invalid offsets, indices or UTF-8 at any level."""
    import pyarrow as pa

    try:
        column.validate(full=True)
    except pa.ArrowException as error:
        what = " ".join(str(error).split())[:200]
        found = _NOT_UTF8.search(what) if _has_length(column.type) else None
        if found:
            raise InputError(
                f"{name}: row {first + int(found[1]) + 1}: {label!r} is not UTF-8; convert the text"
            ) from error
        raise InputError(
            f"{name}: column {label!r} is damaged ({what}); copy or download the file again"
        ) from error


_NOT_UTF8 = re.compile(r"UTF8 sequence at string index (\d+)")


class _Unreadable:
    """Placeholder for a value of an Arrow type that JSON lacks; `check_row` rejects it."""

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
    """Return the entries of a row as strings, with numbers as in JSON, without missing entries."""
    return {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in row.fields.items()
        if value is not None and not isinstance(value, _Unreadable)
    }


def check_row(row: Row, columns: Sequence[str]) -> None:
    """Raise InputError if a column of a row is missing, empty or of an unsupported type."""
    for name in columns:
        value = row.fields.get(name)
        if isinstance(value, _Unreadable):
            raise InputError(
                f"{row.where}: {name!r} is of type {value.kind}, but must be a text, a number or a "
                "truth value"
            )
        if name not in row.fields:
            raise InputError(f"{row.where}: must have {name!r}; it has {', '.join(row.fields)}")
        if value is None:
            raise InputError(f"{row.where}: {name!r} is empty (null); fill it, or remove the row")
