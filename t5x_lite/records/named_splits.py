"""Files of a directory whose names say of which split they are: "train", and "dev" or "validation".

split_files("snli_1.0", suffix=".jsonl", expected="*train*.jsonl of SNLI")
# {"train": [.../snli_1.0_train.jsonl], "validation": [.../snli_1.0_dev.jsonl]}
"""

from t5x_lite.buckets.paths import DataPath, data_path
from t5x_lite.errors import InputError
from t5x_lite.records.compressed import plain_name

_PARTS = {"train": ("train",), "validation": ("dev", "validation")}


def split_files(directory: str, *, suffix: str, expected: str) -> dict[str, list[DataPath]]:
    """The files of the splits that are there, sorted.

    Args:
      directory: that holds them.
      suffix: of their names, without the ending of a compressed file.
      expected: the files to train on, in words.

    Raises:
      InputError: there is none to train on.
    """
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
