"""Training on your own tables: columns that form the inputs and the targets.

    Columns(inputs="review: {text}", targets="{stars}", labels=("1=bad", "5=good"))

turns the row text="Fine.", stars="5" of a JSONL, CSV, TSV, Parquet or Arrow file into the example

    {"inputs": "review: Fine.", "targets": "good"}

`data.formats.table_splits` chooses the files of each split.
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
"""Maximum number of different labels that are collected from the training rows."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Configuration of the text that is built from the columns of a table's rows.

    Attributes:
      inputs: input text with column names in braces, such as "review: {text}". For unlabelled text,
        the complete text; "" is "{text}".
      second: second text of a pair with column names in braces, such as "{hypothesis}", for an
        encoder; "" for no second text.
      targets: target text or label with column names in braces, such as "{label}". A test split may
        lack the column.
      labels: all possible targets, each either as in the file ("negative") or with the word that
        replaces it ("0=negative"). () if targets are free text, or to collect the labels from the
        training rows.
      id: column with a unique value for each row of a split; "" to number the rows.
      quoting: if True, entries of a CSV or TSV file may be in quotation marks, as spreadsheets
        write them; if False, quotation marks are ordinary characters.
      train: files of the training split, or patterns such as "2024-*.csv", relative to
        data.directory. By default, the files with the split's name.
      validation: files of the validation split; same format as `train`.
      test: files of the test split; same format as `train`.
      min_score: minimum score of a pair in parallel files with scores; None keeps all pairs.
      hold_out: without validation files, one training row in this many is held out for validation,
        chosen by a hash of its inputs. 0 holds out no rows, or one document in 100 of unlabelled
        text.
      stream: if True, rows are read as needed and shuffled through data.shuffle_buffer; if False,
        all rows are kept in memory and permuted completely. None chooses by the size of the files.
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
            raise InputError(
                f"data.columns.hold_out must be 0 or at least 2, but is {self.hold_out}"
            )

    def entries(self) -> tuple[str, ...]:
        """Return the labels as they are written in the file."""
        return tuple(label.partition("=")[0] for label in self.labels)

    def words(self) -> tuple[str, ...]:
        """Return the target word of each label, which may differ from the label in the file."""
        return tuple(label.partition("=")[2] or label for label in self.labels)

    def check(self) -> None:
        """Raise InputError if `inputs` or `targets` contains no column name in braces."""
        for name in ("inputs", "targets"):
            if not places(getattr(self, name)):
                raise InputError(
                    f"data.columns.{name} must name a column in braces, such as '{{text}}', but "
                    f"is {getattr(self, name)!r}"
                )

    def splits(self, directory: str) -> dict[str, tuple[Table, ...]]:
        """Return the tables of each split; with `hold_out`, two splits may share tables."""
        own = {name: getattr(self, name) for name in SPLITS}
        found = table_splits(directory, patterns=own)
        if self.hold_out and "train" in found and "validation" not in found:
            found = {"train": found["train"], "validation": found["train"], **found}
        return found

    def examples(self, sources: Sequence[Table], split: str) -> Iterator[dict[str, Any]]:
        """Yield the examples of a split, with the keys "inputs", "second", "targets" and "id"."""
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
        """Return whether an example of the training files is held out for validation."""
        text = f"{example['inputs']}\n{example.get('second', '')}"
        return zlib.crc32(text.encode("utf-8", "surrogatepass")) % self.hold_out == 0

    def known_labels(self, sources: Sequence[Table]) -> tuple[str, ...]:
        """Return `labels`, or if `labels` is empty, all different targets in the tables."""
        if self.labels:
            return self.labels
        found: set[str] = set()
        for example in self.examples(sources, "train"):
            found.add(example["targets"])
            if not example["targets"].strip():
                self.check_labels(found, sources)
            if len(found) > MOST_LABELS:
                raise InputError(
                    f"data.columns.targets {self.targets!r} has more than {MOST_LABELS} "
                    "different texts, which are too many for a classification; use "
                    "tasks.files:text_to_text"
                )
        self.check_labels(found, sources)
        return self.sorted_labels(found)

    def check_labels(self, labels: Collection[str], sources: Sequence[Table]) -> None:
        """Raise InputError if a training row has an empty label; warn if there is only one."""
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
                "all training rows have the label %r; a model learns nothing from a single class",
                *labels,
            )

    @staticmethod
    def sorted_labels(labels: Iterable[str]) -> tuple[str, ...]:
        """Sort labels that were found in the data: ascending numbers first, then texts."""
        found = sorted(labels, key=_order)
        divided = [label for label in found if "=" in label]
        if divided:
            raise InputError(
                f"the label {divided[0]!r} contains '='; list all labels in data.columns.labels, "
                "each with a word, such as 0=no 1=yes"
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
    try:
        return False, float(label), label
    except ValueError:
        return True, 0.0, label
