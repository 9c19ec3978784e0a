"""A directory of what three heads make of texts: written as it comes, read where it lies.

    DIR/ids.txt                    an id a line, as JSON
    DIR/dense.npy                  float32 [N, D]
    DIR/lexical.jsonl              {"5": 0.7, "9": 0.4} of each text: token -> weight
    DIR/multi_vector.npy           vectors of all tokens, one text behind the other [T, K]
    DIR/multi_vector_ends.npy      int64 [N], where each text's end
    DIR/multi_vector_scale.npy     float32 [T], of int8 alone: what a vector is multiplied with

Vectors of tokens are float16 numbers, or int8 with a scale of each vector: a half or a quarter of
float32. A file is there for each head that was asked.
"""

import contextlib
import io
import json
from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np

from t5x_lite.errors import InputError
from t5x_lite.records.json_lines import parse_json
from t5x_lite.records.lines import read_lines
from t5x_lite.records.string_table import check_ends, open_array

Numbers = Literal["float16", "int8", "float32"]

IDS, DENSE, LEXICAL = "ids.txt", "dense.npy", "lexical.jsonl"
VECTORS, ENDS, SCALES = "multi_vector.npy", "multi_vector_ends.npy", "multi_vector_scale.npy"


class Writer:
    """Writes texts' parts into a directory.

    Args:
      directory: there is nothing in it.
      numbers: of the vectors of tokens.
    """

    def __init__(self, directory: Path, *, numbers: Numbers = "float16"):
        self._directory, self._numbers = directory, numbers
        self._stack = contextlib.ExitStack()
        self._files: dict[str, BinaryIO] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._dtypes: dict[str, np.dtype[Any]] = {}
        self._ends: list[int] = []

    def write(
        self,
        ids: Sequence[str],
        *,
        dense: np.ndarray | None = None,
        terms: Sequence[Mapping[int, float]] | None = None,
        vectors: Sequence[np.ndarray] | None = None,
    ) -> None:
        """Writes some texts, with the same heads each time."""
        self._lines(IDS, map(json.dumps, ids))
        if dense is not None:
            self._rows(DENSE, np.ascontiguousarray(dense, "<f4"))
        if terms is not None:
            self._lines(LEXICAL, (json.dumps({str(t): w for t, w in one.items()}) for one in terms))
        if vectors is not None:
            for one in vectors:
                self._ends.append((self._ends[-1] if self._ends else 0) + len(one))
            self._tokens(np.concatenate(vectors))

    def close(self) -> None:
        """Writes how many there are."""
        for name, shape in self._shapes.items():
            file = self._open(name)
            file.seek(0)
            file.write(_header(shape, self._dtypes[name]))
        self._stack.close()
        if VECTORS in self._shapes:
            np.save(self._directory / ENDS, np.array(self._ends, np.int64))

    def _tokens(self, vectors: np.ndarray) -> None:
        if self._numbers != "int8":
            self._rows(VECTORS, vectors.astype("<f2" if self._numbers == "float16" else "<f4"))
            return
        scale = np.max(np.abs(vectors), axis=1, initial=0.0) / 127
        safe = np.where(scale > 0, scale, 1.0)
        self._rows(VECTORS, np.round(vectors / safe[:, None]).astype("i1"))
        self._rows(SCALES, scale.astype("<f4"))

    def _open(self, name: str) -> BinaryIO:
        if name not in self._files:
            self._files[name] = self._stack.enter_context((self._directory / name).open("w+b"))
        return self._files[name]

    def _lines(self, name: str, lines: Iterable[str]) -> None:
        self._open(name).write("".join(line + "\n" for line in lines).encode())

    def _rows(self, name: str, rows: np.ndarray) -> None:
        file = self._open(name)
        if name not in self._shapes:
            self._shapes[name], self._dtypes[name] = (0, *rows.shape[1:]), rows.dtype
            file.write(_header(self._shapes[name], rows.dtype))
        self._shapes[name] = (self._shapes[name][0] + len(rows), *rows.shape[1:])
        file.write(np.ascontiguousarray(rows).tobytes())


def _header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """The first bytes of a .npy file; as many of them whatever the number of rows."""
    file = io.BytesIO()
    entries = {"descr": dtype.str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, entries)
    return file.getvalue()


class M3Texts:
    """What heads made of texts, in a directory; vectors stay on the disk.

    Args:
      directory: that `Writer` wrote.

    Attributes:
      ids: of the texts.
      dense: float32 [N, D]; None where there are none.

    Raises:
      InputError: it has no ids, or a file has not one entry a text.
    """

    def __init__(self, directory: str | Path):
        self._where = Path(directory)
        if not (self._where / IDS).is_file():
            raise InputError(
                f"{directory}: has no {IDS}: `embed --heads ...` writes such a directory"
            )
        lines = enumerate(read_lines([str(self._where / IDS)]), start=1)
        self.ids: list[str] = [self._id(line, number) for number, line in lines]
        self.dense: np.ndarray | None = self._array(DENSE, (np.float32,), 2)
        self._vectors = self._array(VECTORS, (np.float16, np.float32, np.int8), 2)
        self._scales = self._array(SCALES, (np.float32,), 1)
        ends = self._array(ENDS, (np.int64,), 1)
        if (self._vectors is None) != (ends is None):
            raise InputError(f"{directory}: {VECTORS} and {ENDS} belong together: embed again")
        if ends is not None and self._vectors is not None:
            check_ends(ends, len(self._vectors), where=self._where / ENDS)
            is_scaled = self._vectors.dtype == np.int8
            if is_scaled != (self._scales is not None) or (
                self._scales is not None and len(self._scales) != len(self._vectors)
            ):
                raise InputError(f"{self._where / SCALES}: has not one scale a vector: embed again")
        self._ends = None if ends is None else ends.tolist()
        for name, one in ((DENSE, self.dense), (ENDS, self._ends)):
            self._check(name, None if one is None else len(one))

    def has(self, way: str) -> bool:
        """Whether a head was asked: "dense", "lexical" or "multi_vector"."""
        return (self._where / {"dense": DENSE, "lexical": LEXICAL}.get(way, VECTORS)).is_file()

    def terms(self) -> Generator[dict[int, float], None, None]:
        """Token -> weight, of each text."""
        count = 0
        for count, line in enumerate(read_lines([str(self._where / LEXICAL)]), 1):
            where = f"{self._where / LEXICAL}:{count}"
            record = parse_json(line.encode(), where=where)
            try:
                yield {int(token): float(weight) for token, weight in record.items()}
            except (ValueError, AttributeError, TypeError, OverflowError) as error:
                raise InputError(f'{where}: not {{"token": weight}} ({error})') from error
        self._check(LEXICAL, count)

    def vectors(self, number: int) -> np.ndarray:
        """float32 [tokens, K] of a text."""
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
        try:
            return open_array(path, dtypes=dtypes, dims=dims)
        except InputError as error:
            what = str(error).removeprefix(f"{path}: ")
            raise InputError(f"{path}: cannot be read ({what})") from error

    def _check(self, name: str, count: int | None) -> None:
        if count is not None and count != len(self.ids):
            raise InputError(f"{self._where / name}: {count} texts, and {IDS} has {len(self.ids)}")
