"""Pretraining on any text files: span corruption over the lines of a directory.

    --data.task tasks.text:span_corruption --data.directory DIR

DIR holds *.txt, one document a line (blank lines are skipped), or *.jsonl, objects with a "text".
What is held out for validation:

1. the files in DIR/validation/ and the files named validation*, if there are any; training takes
   DIR/train/ and all other files in DIR;
2. else, of at least 20 files, every 20th in the order of their names (the 20th, the 40th, ...);
3. else about every 100th line: those whose hash says so, so that a line that is repeated is
   always on the same side, and blank lines do not count.

The paper's variants (Raffel et al. 2020, tables 6 and 7) are named <noise>_<density>_<inputs>_
<targets>: "u_u" is one sentinel a span on both sides. iid_15_u_u, noise drawn token by token, is
left for the other objectives.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import seqio
import tensorflow as tf

from t5x_lite.data import stages
from t5x_lite.data.config import TaskArguments
from t5x_lite.errors import InputError

SUFFIXES = (".txt", ".jsonl")
FILES_PER_HELD_OUT_FILE = 20
LINES_PER_HELD_OUT_LINE = 100


def span_corruption(
    arguments: TaskArguments, *, noise_density: float = 0.15, mean_noise_span_length: float = 3.0
) -> seqio.Task:
    """T5's objective: 15% of the tokens in spans of 3."""
    splits = split_files(arguments.directory)
    return seqio.Task(
        "text_span_corruption",
        source=stages.source(("train", "validation"), partial(_lines, splits)),
        preprocessors=stages.span_corruption_preprocessors(
            arguments,
            noise_density=noise_density,
            mean_noise_span_length=mean_noise_span_length,
        ),
        output_features=stages.features(arguments.vocabulary),
    )


span_2_15_u_u = partial(span_corruption, mean_noise_span_length=2.0)
span_3_15_u_u = partial(span_corruption, mean_noise_span_length=3.0)
span_5_15_u_u = partial(span_corruption, mean_noise_span_length=5.0)
span_10_15_u_u = partial(span_corruption, mean_noise_span_length=10.0)


def _lines(splits: Mapping[str, Sequence[Path]], split: str) -> tf.data.Dataset:
    if splits["train"] is not splits["validation"]:
        return stages.text_lines(splits[split])

    def keep(texts: tf.Tensor) -> tf.Tensor:
        held_out = tf.strings.to_hash_bucket_fast(texts, LINES_PER_HELD_OUT_LINE) == 0
        return held_out if split == "validation" else ~held_out

    return stages.text_lines(splits[split], keep=keep)


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
