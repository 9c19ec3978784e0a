"""Which files of a directory of text are trained on, and which are held out.

The directory holds *.txt, one document a line, or *.jsonl, objects with a "text". Held out are

1. the files in DIR/validation/ and the files named validation*, if there are any; training takes
   DIR/train/ and all other files in DIR;
2. else, of at least 20 files, every 20th in the order of their names (the 20th, the 40th, ...);
3. else lines, not files: both splits get all files and divide the lines among them.
"""

from collections.abc import Sequence
from pathlib import Path

from t5x_lite.errors import InputError

SUFFIXES = (".txt", ".jsonl")
FILES_PER_HELD_OUT_FILE = 20


def split_files(directory: str) -> dict[str, Sequence[Path]]:
    """The files of "train" and "validation", sorted; one and the same list where lines are split.

    Raises:
      InputError: if there is no directory, or there are no files for one of the two.
    """
    root = Path(directory)
    if not directory or not root.is_dir():
        raise InputError(
            f"data.directory {directory!r} is not a directory: it must hold *.txt or *.jsonl files"
        )
    validation = [*_text_files(root / "validation"), *_text_files(root, pattern="validation*")]
    others = [file for file in _text_files(root) if file not in validation]
    train = sorted([*_text_files(root / "train"), *others])
    if not train:
        raise InputError(f"no *.txt or *.jsonl file to train on in data.directory {directory}")
    if validation:
        return {"train": train, "validation": sorted(validation)}
    if len(train) < FILES_PER_HELD_OUT_FILE:
        return {"train": train, "validation": train}
    held_out = train[FILES_PER_HELD_OUT_FILE - 1 :: FILES_PER_HELD_OUT_FILE]
    return {"train": [file for file in train if file not in held_out], "validation": held_out}


def _text_files(directory: Path, *, pattern: str = "*") -> list[Path]:
    return [f for f in sorted(directory.glob(pattern)) if f.suffix in SUFFIXES and f.is_file()]
