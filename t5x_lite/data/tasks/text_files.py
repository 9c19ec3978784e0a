"""Which files of a directory of text are trained on, and which are held out.

The directory holds *.txt, one document a line, or *.jsonl, objects with a "text"; they may be
compressed, and end in .gz, .zst or .xz then. Held out are

1. the files in DIR/validation/ and the files named validation*, if there are any; training takes
   DIR/train/ and all other files in DIR;
2. else, of at least 20 files, every 20th in the order of their names (the 20th, the 40th, ...);
3. else lines, not files: both splits get all files and divide the lines among them.
"""

import functools
import logging
import re
from collections.abc import Sequence

from t5x_lite.buckets.objects import can_read
from t5x_lite.buckets.paths import DataPath, data_path
from t5x_lite.errors import InputError
from t5x_lite.records.compressed import plain_name
from t5x_lite.remote import is_remote

_logger = logging.getLogger(__name__)

SUFFIXES = (".txt", ".jsonl")
FILES_PER_HELD_OUT_FILE = 20


def split_files(directory: str) -> dict[str, Sequence[DataPath]]:
    """The files of text of "train" and "validation"; see `files_of_both`."""
    return files_of_both(directory, suffixes=SUFFIXES)


def files_of_both(directory: str, *, suffixes: tuple[str, ...]) -> dict[str, Sequence[DataPath]]:
    """The files of "train" and "validation", sorted; one and the same list where lines are split.

    Args:
      directory: that holds them.
      suffixes: of their names.

    Raises:
      InputError: if there is not a directory, or there are no files for one of the two.
    """
    root, shown = data_path(directory), " or ".join(f"*{suffix}" for suffix in suffixes)
    if not directory or not root.is_dir():
        raise InputError(
            f"data.directory {directory!r} is not a directory: it must hold {shown} files"
        )
    files = functools.partial(_text_files, suffixes=suffixes)
    validation = [*files(root / "validation"), *files(root, pattern="validation*")]
    others = [file for file in files(root) if file not in validation]
    train = sorted([*files(root / "train"), *others])
    if not train:
        raise InputError(f"no {shown} file to train on in data.directory {directory}")
    if validation:
        return {"train": train, "validation": sorted(validation)}
    if len(train) < FILES_PER_HELD_OUT_FILE:
        return {"train": train, "validation": train}
    held_out = train[FILES_PER_HELD_OUT_FILE - 1 :: FILES_PER_HELD_OUT_FILE]
    return {"train": [file for file in train if file not in held_out], "validation": held_out}


COLLECTIONS = ("corpus.jsonl", "collection.tsv", "psgs_w100.tsv", "msmarco-docs.tsv")
"""Files of passages under the names that they are published by."""


def collection_files(directory: str, *, named: bool = False) -> dict[str, Sequence[DataPath]]:
    """The files of a collection of passages, which are one list: passages are split.

    Args:
      directory: one file, or a directory with one of `COLLECTIONS`, or else with *.jsonl and *.tsv.
      named: whether only the names of `COLLECTIONS` count, as where queries stand beside.

    Raises:
      InputError: there is no such file.
    """
    root = data_path(directory)
    if directory and root.is_file():
        return _one_list([root])
    if directory and root.is_dir():
        there = [file for file in sorted(root.glob("*")) if file.is_file()]
        for name in COLLECTIONS:
            if found := [file for file in there if plain_name(file.name) == name]:
                return _one_list(found[:1])
        suffixes = () if named else (".jsonl", ".tsv")
        if found := [file for file in there if plain_name(file.name).endswith(suffixes)]:
            return _one_list(found)
    raise InputError(
        f"data.directory {directory!r} is no collection: it must be a file of passages, or a "
        f"directory with {', '.join(COLLECTIONS)}, or other *.jsonl or *.tsv"
    )


def _one_list(files: Sequence[DataPath]) -> dict[str, Sequence[DataPath]]:
    return {"train": files, "validation": files}


def _text_files(
    directory: DataPath, *, suffixes: tuple[str, ...], pattern: str = "*"
) -> list[DataPath]:
    found = sorted(directory.glob(pattern))
    return [f for f in found if plain_name(f).endswith(suffixes) and f.is_file()]


def files_matching(directory: str, pattern: str) -> list[str]:
    """The paths of the files right in a directory whose names match, sorted.

    Where the package that reads a bucket is missing, TensorFlow looks, which reads TFDS's data.

    Raises:
      tf.errors.OpError: it cannot.
    """
    if not _by_tensorflow(directory):
        return sorted(map(str, data_path(directory).glob(pattern)))
    from t5x_lite.data.quiet_tensorflow import tf

    return sorted(tf.io.gfile.glob(f"{directory}/{pattern}"))


def is_there(directory: str, name: str) -> bool:
    """Whether a directory holds a file or a directory; see `files_matching`."""
    if not _by_tensorflow(directory):
        return (data_path(directory) / name).exists()
    from t5x_lite.data.quiet_tensorflow import tf

    return tf.io.gfile.exists(f"{directory}/{name}")


def _by_tensorflow(directory: str) -> bool:
    return is_remote(directory) and not can_read(directory)


def numbered_shards(found: Sequence[str], *, name: str, directory: str) -> list[str]:
    """The shards of one release that are there; a warning says how many are missing.

    Args:
      found: paths that end in "NUMBER-of-TOTAL" and suffixes, such as "c4-train.00000-of-01024".
      name: their pattern, for messages.
      directory: where they are, for messages.

    Raises:
      InputError: they are not of one release.
    """
    names = [re.search(r"\.(\d+)-of-(\d+)\.[^/]*$", shard) for shard in found]
    numbers = {int(match[1]) for match in names if match}
    totals = {int(match[2]) for match in names if match}
    if not found:
        return []
    if None in names or len(totals) > 1 or max(numbers) >= max(totals):
        raise InputError(
            f"data.directory {directory}: {len(found)} shards {name} are not those of one release, "
            f"which are numbered 00000-of-{max(totals, default=0):05} and on"
        )
    if len(found) < max(totals):
        _tell_of_missing(directory, name, len(found), max(totals))
    return list(found)


@functools.cache
def _tell_of_missing(directory: str, name: str, there: int, total: int) -> None:
    _logger.warning(
        "data.directory %s: %d of %d shards %s are missing: the %d there are the data",
        directory,
        total - there,
        total,
        name,
        there,
    )
