"""Tables of one's own as text to text: which columns are shown, and which are to be written.

    Columns(inputs="review: {text}", targets="{stars}", labels=("1=bad", "5=good"))

turns the row text="Fine.", stars="5" of a JSONL, CSV, TSV, Parquet or Arrow file into

    {"inputs": "review: Fine.", "targets": "good"}

`data.formats.table_splits` says which files of a directory are which split; the rows of several
files come one after the other.
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
"""Labels that are taken from the data, at most."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """How a row of a file becomes text.

    Attributes:
      inputs: text that the model reads, with columns in braces: "review: {text}". Of unlabelled
        text the whole of it; "" is "{text}".
      second: for an encoder that reads pairs, the second text: "{hypothesis}"; "" is none.
      targets: text that it should write, or the label: "{label}". A test split may lack it.
      labels: all targets there are, each as the file writes it ("negative") or with the word to be
        written for it ("0=negative"); none where targets are free text, or where a task takes them
        from the training rows.
      id: a column of which no two rows of a split may hold the same; "" is none.
      quoting: whether an entry of a CSV or TSV file may stand in quotation marks, as spreadsheets
        write them; else they are characters like others.
      train: files of the training split, or patterns such as "2024-*.csv", relative to
        data.directory; none are those that have a split's name.
      validation: of the validation split.
      test: of the test split.
      min_score: of parallel lines with scores, the lowest score that is kept; None keeps all.
      hold_out: where there are no validation files, about one training row in so many is held out
        for validation, by a hash of its inputs; 0 holds out none, and of unlabelled text one in
        100.
      stream: whether rows are read as they are needed, and shuffled through data.shuffle_buffer;
        else they are held in memory, and permuted as a whole. None goes by the size of the files.
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

    def splits(self, directory: str) -> dict[str, tuple[Table, ...]]:
        """The tables of each split; with `hold_out`, validation may be part of training."""
        own = {name: getattr(self, name) for name in SPLITS}
        found = table_splits(directory, patterns=own)
        if self.hold_out and "train" in found and "validation" not in found:
            found = {"train": found["train"], "validation": found["train"], **found}
        return found

    def examples(self, sources: Sequence[Table], split: str) -> Iterator[dict[str, Any]]:
        """The examples of a split: "inputs", "second", "targets" and "id", by default a number."""
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
                raise InputError(f"{row.where}: {self.id} {identity!r} is that of {seen[identity]}")
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
        """Whether a row of a table without a validation split is held out for validation."""
        text = f"{example['inputs']}\n{example.get('second', '')}"
        return zlib.crc32(text.encode("utf-8", "surrogatepass")) % self.hold_out == 0

    def known_labels(self, sources: Sequence[Table]) -> tuple[str, ...]:
        """`labels`, or all targets of these tables."""
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
        """Labels of the data: numbers in their order, other texts sorted."""
        found = sorted(labels, key=_order)
        divided = [label for label in found if "=" in label]
        if divided:
            raise InputError(
                f"the label {divided[0]!r} has a '=': say all labels by data.columns.labels, each "
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
        # A label is looked up as a whole: "{label}" as a rule.
        found = Row(row.where, {"label": text})
        return self.words()[label_index(found, "label", self.entries())]


def _order(label: str) -> tuple[bool, float, str]:
    """Numbers first, by their value."""
    try:
        return False, float(label), label
    except ValueError:
        return True, 0.0, label
