"""Files of vectors, written as they come and there whole or not at all.

    with vector_writer("vectors.npy") as file:
        file.write(["a", "b"], vectors)             # float32 [2, D]

    .npy        float32 [N, D], row i the vector of text i; np.load(path, mmap_mode="r") reads it
    .parquet    columns id (string) and vector (a list of D float32); needs pyarrow

N is not known before the end: the header of a .npy file has room for it, and is written again.
"""

import contextlib
import importlib
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from jaxtyping import Float

from t5x_lite.errors import InputError
from t5x_lite.files import open_atomically
from t5x_lite.records.json_lines import writing


class VectorWriter(Protocol):
    """Appends vectors to a file."""

    def write(self, ids: Sequence[str], vectors: Float[np.ndarray, "n D"]) -> None:
        """Writes some, all of one size."""
        ...

    def close(self) -> None:
        """Writes what says how many there are."""
        ...


def check_vector_file(path: str) -> None:
    """Refuses a path that no vectors can be written to, before the work and not after it.

    Raises:
      InputError: it has another suffix, or the package that writes it is missing.
    """
    suffix = Path(path).suffix
    if suffix not in _WRITERS:
        raise InputError(
            f"--output {path}: must end in {' or '.join(_WRITERS)}, which say what is written"
        )
    if suffix == ".parquet":
        _pyarrow()


@contextlib.contextmanager
def vector_writer(path: str) -> Iterator[VectorWriter]:
    """Opens a file of vectors, which takes its name at the end of the block if that ends well.

    Args:
      path: ends in .npy or .parquet; what is there is replaced at the end.

    Raises:
      InputError: it cannot be written; what was there is unchanged.
    """
    check_vector_file(path)
    with contextlib.ExitStack() as stack:
        with writing(path):
            file = stack.enter_context(open_atomically(path))
        if not file.seekable():
            raise InputError(f"{path}: cannot be written (not an ordinary file)")
        writer = _WRITERS[Path(path).suffix](file, path)
        try:
            yield writer
        except BaseException:
            with contextlib.suppress(Exception):  # pyarrow would do it later, to a closed file
                writer.close()
            raise
        with writing(path):
            writer.close()
            stack.close()


class NpyWriter:
    """Vectors as one array of NumPy.

    Args:
      file: open for writing, at its beginning.
      path: its name, for messages.
    """

    def __init__(self, file: BinaryIO, path: str):
        self._file, self._path = file, path
        self._shape: tuple[int, int] | None = None

    def write(self, ids: Sequence[str], vectors: Float[np.ndarray, "n D"]) -> None:
        del ids  # a row's number is all that there is
        with writing(self._path):
            if self._shape is None:
                self._shape = (0, vectors.shape[1])
                self._file.write(_header(self._shape))
            self._shape = (self._shape[0] + len(vectors), self._shape[1])
            self._file.write(np.ascontiguousarray(vectors, "<f4").tobytes())

    def close(self) -> None:
        if self._shape is not None:
            self._file.seek(0)
            self._file.write(_header(self._shape))


def _header(shape: tuple[int, int]) -> bytes:
    """The first bytes of a .npy file; as many of them whatever the number of rows."""
    file = io.BytesIO()
    entries = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, entries)
    return file.getvalue()


class ParquetWriter:
    """Vectors as a table.

    Args:
      file: open for writing, at its beginning.
      path: its name, for messages.
    """

    def __init__(self, file: BinaryIO, path: str):
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


_WRITERS = {".npy": NpyWriter, ".parquet": ParquetWriter}
