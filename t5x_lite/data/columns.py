"""Files of one's own as text to text: which columns are shown, and which are to be written.

    Columns(inputs="review: {text}", targets="{stars}", labels=("1=bad", "5=good"))

turns the row text="Fine.", stars="5" of a JSONL, CSV or TSV file into

    {"inputs": "review: Fine.", "targets": "good"}

A directory holds a file for each split, train, validation and test, and .jsonl, .csv or .tsv; with
.gz or .zst behind it, the file is compressed.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t5x_lite.data.preprocess.classification import UNKNOWN
from t5x_lite.data.preprocess.templates import fill, places
from t5x_lite.errors import InputError
from t5x_lite.records.benchmark_files import Row, label_index, read_csv, read_jsonl
from t5x_lite.records.compressed import COMPRESSED, plain_name

SPLITS = {
    "train": ("train",),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test",),
}
"""The splits, and the names that their files may have."""

_SEPARATORS = {".csv": ",", ".tsv": "\t"}


@dataclass(frozen=True, kw_only=True)
class Columns:
    """How a row of a file becomes text.

    Attributes:
      inputs: what the model reads, with columns in braces: "review: {text}".
      targets: what it shall write: "{label}". In a test split its columns may be missing.
      labels: all targets there are, each as the file writes it ("negative") or with the word to be
        written for it ("0=negative"); none where targets are free text.
      id: a column of which no two rows of a file may hold the same; "" is none.
      quoting: whether an entry of a CSV or TSV file may stand in quotation marks, as spreadsheets
        write them; else they are characters like others.
    """

    inputs: str = ""
    targets: str = ""
    labels: tuple[str, ...] = ()
    id: str = ""
    quoting: bool = True

    def __post_init__(self):
        twice = [entry for entry in self.entries() if list(self.entries()).count(entry) > 1]
        if twice:
            raise InputError(f"data.columns.labels has {twice[0]!r} twice")

    def entries(self) -> tuple[str, ...]:
        """The labels as the file writes them."""
        return tuple(label.partition("=")[0] for label in self.labels)

    def words(self) -> tuple[str, ...]:
        """The labels as they are written in a target."""
        return tuple(label.partition("=")[2] or label for label in self.labels)

    def check(self) -> None:
        """Refuses columns that do not say what is shown and what is written."""
        for name in ("inputs", "targets"):
            if not places(getattr(self, name)):
                raise InputError(
                    f"data.columns.{name} must name a column in braces, such as '{{text}}'; got "
                    f"{getattr(self, name)!r}"
                )

    def examples(self, file: Path, split: str) -> Iterator[dict[str, Any]]:
        """The examples of a file: "inputs", "targets" and "id", by default the row's number.

        Raises:
          InputError: naming file and line: what the reader refuses, a column that is missing, a
            label that is none of `labels`, an id that was there before.
        """
        needed = [*places(self.inputs), *([self.id] if self.id else [])]
        if split != "test":
            needed += places(self.targets)
        seen: dict[str, str] = {}
        for count, row in enumerate(self._rows(file, needed)):
            fields = _texts(row)
            _check_columns(row, needed)
            identity = fields[self.id] if self.id else str(count)
            if identity in seen:
                raise InputError(f"{row.where}: {self.id} {identity!r} is that of {seen[identity]}")
            seen[identity] = row.where
            yield {
                "inputs": fill(self.inputs, fields),
                "targets": self._target(Row(row.where, fields), split),
                "id": identity,
            }

    def _rows(self, file: Path, needed: list[str]) -> Iterator[Row]:
        suffix = Path(plain_name(file)).suffix
        if suffix == ".jsonl":
            return read_jsonl(file, fields=())
        separator = _SEPARATORS[suffix]
        return read_csv(file, columns=needed, separator=separator, quoting=self.quoting)

    def _target(self, row: Row, split: str) -> str:
        names = places(self.targets)
        if split == "test" and any(row.fields.get(name, "") == "" for name in names):
            return UNKNOWN
        text = fill(self.targets, row.fields)
        if not self.labels:
            return text
        # A label is looked up as a whole: "{label}" as a rule.
        found = Row(row.where, {"label": text})
        return self.words()[label_index(found, "label", self.entries())]


def split_file(directory: str, split: str) -> Path | None:
    """The file of a split; None where there is none.

    Raises:
      InputError: there are several.
    """
    names = [
        f"{name}{end}{compressed}"
        for name in SPLITS[split]
        for end in (".jsonl", *_SEPARATORS)
        for compressed in ("", *COMPRESSED)
    ]
    found = [file for name in names if (file := Path(directory, name)).is_file()]
    if len(found) > 1:
        raise InputError(
            f"data.directory {directory!r} has both {found[0].name} and {found[1].name}"
        )
    return found[0] if found else None


def _check_columns(row: Row, needed: list[str]) -> None:
    for name in needed:
        if name not in row.fields:
            raise InputError(f"{row.where}: must have {name!r}; it has {', '.join(row.fields)}")


def _texts(row: Row) -> dict[str, str]:
    """The entries as text; numbers and truth values as JSON writes them."""
    fields: Mapping[str, Any] = row.fields
    return {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in fields.items()
        if value is not None
    }
