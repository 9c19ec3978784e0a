"""Assignment of files to splits, for a directory or a data set of the Hugging Face Hub.

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
import fnmatch
import functools
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from t5x_lite.core.errors import InputError
from t5x_lite.core.files import LONGEST_LINE
from t5x_lite.core.object_store import BucketPath, DataPath, data_path, files_in
from t5x_lite.core.remote import is_remote
from t5x_lite.data.formats import tables
from t5x_lite.data.formats.benchmark_files import Row
from t5x_lite.data.formats.lines import parse_json, plain_name, read_whole
from t5x_lite.data.formats.tables import ending_of, pyarrow, read_table, rows_of_batches

_logger = logging.getLogger(__name__)

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
    """Base class of files in custom formats, which yield rows; `os.fspath` returns the path."""

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
    """Read the rows of a table lazily, in order: a file, or a split of the Hub."""
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
    """Return the column names of a Parquet or Arrow file or of a split of the Hub."""
    if not isinstance(table, HubSplit):
        return tables.column_names(table)
    return [*_loaded(table.dataset, table.config)[table.split].column_names]


def num_groups(table: Columnar) -> int:
    """Return the number of groups of a table's rows that can be read separately."""
    if not isinstance(table, HubSplit):
        return tables.num_groups(table)
    return max(1, -(-len(_loaded(table.dataset, table.config)[table.split]) // _HUB_ROWS))


def read_columns(
    table: Columnar, *, columns: Sequence[str], group: int | None = None
) -> Iterator[Row]:
    """Read the rows of a table, or of one of its groups, with only some columns."""
    if not isinstance(table, HubSplit):
        return tables.read_columns(table, columns=columns, group=group)
    pyarrow(table)
    rows = _loaded(table.dataset, table.config)[table.split]
    tables.require_columns(rows.column_names, columns, name=str(table))
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
    """Return the tables of each split in a directory, a file or a data set of the Hub.

    Args:
      directory: path of the directory or file, or hf://NAME.
      patterns: file name patterns of each split; None to find the files by the names of splits.
      endings: suffixes of files that match a pattern; () for the suffixes of tables.
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
    """Return data set, configuration and split of a Hub name; "" for missing parts."""
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
    """Return all splits of a Hub data set, which are loaded once per process."""
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
        raise InputError(f"{HUB}{name}: datasets cannot load it ({what})") from error
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
