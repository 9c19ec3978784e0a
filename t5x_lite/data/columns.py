"""Your own tables as text to text: columns for the inputs and columns for the targets.

    Columns(inputs="review: {text}", targets="{stars}", labels=("1=bad", "5=good"))

turns the row text="Fine.", stars="5" of a JSONL, CSV, TSV, Parquet or Arrow file into

    {"inputs": "review: Fine.", "targets": "good"}

`data.formats.table_splits` assigns files to splits. The rows of several files are concatenated.
"""

import logging
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from t5x_lite.core.errors import InputError
from t5x_lite.data.formats.benchmark_files import Row, label_index
from t5x_lite.data.formats.table_splits import SPLITS, Table, read_rows, table_splits
from t5x_lite.data.formats.tables import check_row, texts_of
from t5x_lite.data.preprocessors import UNKNOWN, fill, places

_logger = logging.getLogger(__name__)

MOST_LABELS = 1000
"""Maximum number of labels that are collected from the data."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Rules that turn a row of a file into text.

    Attributes:
      inputs: input text, with columns in braces: "review: {text}". For unlabelled text the complete
        text; "" is "{text}".
      second: second text, for an encoder that reads pairs: "{hypothesis}"; "" disables it.
      targets: target text, or the label: "{label}". A test split may lack it.
      labels: all possible targets, each as the file has it ("negative") or with the word to write
        for it ("0=negative"); empty if targets are free text, or if a task collects them from the
        training rows.
      id: a column with a unique value for each row of a split; "" numbers the rows.
      quoting: if True, entries of a CSV or TSV file may be in quotation marks, as spreadsheets
        write them; if False, quotation marks are ordinary characters.
      train: files of the training split, or patterns such as "2024-*.csv", relative to
        data.directory; by default the files with a split's name.
      validation: files of the validation split, as in `train`.
      test: files of the test split, as in `train`.
      min_score: minimum score of parallel lines with scores; None keeps all lines.
      hold_out: without validation files, about one training row in this many is held out for
        validation, by a hash of its inputs; 0 holds out no rows, or for unlabelled text one in 100.
      stream: if True, rows are read as needed and shuffled through data.shuffle_buffer; if False,
        they are held in memory and permuted completely. None decides by the size of the files.
    """

    inputs: str = ""
    second: str = ""
    targets: str = ""
    labels: tuple[str, ...] = ()
    id: str = ""
    quoting: bool = True
    train: tuple[str, ...] = ()
    validation: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    min_score: float | None = None
    hold_out: int = 0
    stream: bool | None = None

    def __post_init__(self):
        twice = [entry for entry in self.entries() if list(self.entries()).count(entry) > 1]
        if twice:
            raise InputError(f"data.columns.labels has {twice[0]!r} twice")
        if self.hold_out < 0 or self.hold_out == 1:
            raise InputError(f"data.columns.hold_out must be 0 or at least 2: got {self.hold_out}")

    def entries(self) -> tuple[str, ...]:
        """Return the labels as the file has them."""
        return tuple(label.partition("=")[0] for label in self.labels)

    def words(self) -> tuple[str, ...]:
        """Return the labels as they are written in a target."""
        return tuple(label.partition("=")[2] or label for label in self.labels)

    def check(self) -> None:
        """Raise InputError if the inputs or the targets name no column."""
        for name in ("inputs", "targets"):
            if not places(getattr(self, name)):
                raise InputError(
                    f"data.columns.{name} must name a column in braces, such as '{{text}}'; got "
                    f"{getattr(self, name)!r}"
                )

    def splits(self, directory: str) -> dict[str, tuple[Table, ...]]:
        """Return the tables of each split; with `hold_out`, validation may be part of training."""
        own = {name: getattr(self, name) for name in SPLITS}
        found = table_splits(directory, patterns=own)
        if self.hold_out and "train" in found and "validation" not in found:
            found = {"train": found["train"], "validation": found["train"], **found}
        return found

    def examples(self, sources: Sequence[Table], split: str) -> Iterator[dict[str, Any]]:
        """Yield the examples of a split: "inputs", "second", "targets" and "id" (or a number)."""
        needed = [*places(self.inputs), *places(self.second), *([self.id] if self.id else [])]
        if split != "test":
            needed += places(self.targets)
        needed = [*dict.fromkeys(needed)]
        seen: dict[str, str] = {}
        rows = (
            row
            for table in sources
            for row in read_rows(table, columns=needed, quoting=self.quoting)
        )
        for count, row in enumerate(rows):
            check_row(row, needed)
            fields = texts_of(row)
            identity = fields[self.id] if self.id else str(count)
            if identity in seen:
                raise InputError(f"{row.where}: {self.id} {identity!r} is also in {seen[identity]}")
            if self.id and not self.stream:
                seen[identity] = row.where
            second = {"second": fill(self.second, fields)} if self.second else {}
            yield {
                "inputs": fill(self.inputs, fields),
                **second,
                "targets": self._target(Row(row.where, fields), split),
                "id": identity,
            }

    def held_out(self, example: dict[str, Any]) -> bool:
        """Return whether a row is held out for validation, in a table without such a split."""
        text = f"{example['inputs']}\n{example.get('second', '')}"
        return zlib.crc32(text.encode("utf-8", "surrogatepass")) % self.hold_out == 0

    def known_labels(self, sources: Sequence[Table]) -> tuple[str, ...]:
        """Return `labels`, or if not set, all targets of these tables."""
        if self.labels:
            return self.labels
        found: set[str] = set()
        for example in self.examples(sources, "train"):
            found.add(example["targets"])
            if not example["targets"].strip():
                self.check_labels(found, sources)
            if len(found) > MOST_LABELS:
                raise InputError(
                    f"data.columns.targets {self.targets!r} has more than {MOST_LABELS} different "
                    "texts: labels of a classification are few; use tasks.files:text_to_text"
                )
        self.check_labels(found, sources)
        return self.sorted_labels(found)

    def check_labels(self, labels: Collection[str], sources: Sequence[Table]) -> None:
        """Raise InputError if a training row has an empty label; warn of a single class."""
        if any(not label.strip() for label in labels):
            names = places(self.targets)
            for row in (r for table in sources for r in read_rows(table, columns=names)):
                if not fill(self.targets, texts_of(row)).strip():
                    raise InputError(
                        f"{row.where}: the label {self.targets!r} is empty; fill it in or remove "
                        "the row"
                    )
        if len(labels) == 1:
            _logger.warning(
                "each training row has the label %r; a model learns nothing from a single class",
                *labels,
            )

    @staticmethod
    def sorted_labels(labels: Iterable[str]) -> tuple[str, ...]:
        """Return the labels of the data: numbers in numeric order, other texts sorted."""
        found = sorted(labels, key=_order)
        divided = [label for label in found if "=" in label]
        if divided:
            raise InputError(
                f"the label {divided[0]!r} has a '=': give all labels in data.columns.labels, each "
                "with a word, such as 0=no 1=yes"
            )
        return tuple(found)

    def _target(self, row: Row, split: str) -> str:
        names = places(self.targets)
        if split == "test" and any(row.fields.get(name, "") == "" for name in names):
            return UNKNOWN
        text = fill(self.targets, row.fields)
        if not self.labels:
            return text
        # The complete target is looked up as a label: usually "{label}".
        found = Row(row.where, {"label": text})
        return self.words()[label_index(found, "label", self.entries())]


def _order(label: str) -> tuple[bool, float, str]:
    """Return a sort key: numbers first, by their value."""
    try:
        return False, float(label), label
    except ValueError:
        return True, 0.0, label
