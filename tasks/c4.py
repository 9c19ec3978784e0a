"""Pretraining on C4 by every objective of the T5 paper, under T5's names.

    --data.task tasks.c4:c4_v220_span_corruption --data.directory DIR

DIR is one of these, the first that it looks like; it may be in a bucket:

    c4-train.00000-of-01024.json.gz ...  what `t5x-lite c4` writes, and the JSON release of C4:
                                         lines with "text", in shards; a warning says how many
                                         of a split are missing
    dataset_info.json                    one version of a dataset of TFDS with a feature "text",
                                         such as DIR/c4/realnewslike/3.0.1; Wikipedia's,
                                         DIR/wikipedia/20230601.en/1.0.0, holds out nothing:
                                         --evaluation.loss False trains on it
    c4/en/3.1.0                          data of TFDS, which prepares c4/en on Apache Beam; "" is
                                         $TFDS_DATA_DIR, or where else TFDS looks
    *.txt, *.jsonl, *.jsonl.gz ...       any text, as tasks.text reads it

c4_v220 names are the package t5's tasks; the others are its gin files, as in tasks.text.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import seqio
import tensorflow as tf

from t5x_lite.data.config import TaskArguments
from t5x_lite.data.tasks import stages, unsupervised
from t5x_lite.data.tasks.shuffling import Shuffle
from t5x_lite.data.tasks.text_files import files_matching, is_there, numbered_shards
from t5x_lite.data.tasks.text_source import text_lines
from t5x_lite.data.tasks.unsupervised import Objective
from t5x_lite.errors import InputError
from tasks import text

SPLITS = ("train", "validation")
TFDS_NAME, TFDS_VERSION = "c4/en", "3.1.0"


def _task(
    name: str, objective: Callable[[TaskArguments], Objective], arguments: TaskArguments
) -> seqio.Task:
    made = objective(arguments)
    return stages.unsupervised_task(name, made, arguments, source=source(arguments.directory))


_spans, _replace = unsupervised.span_corruption, unsupervised.iid_replace_spans

c4_v220_span_corruption = partial(_task, "c4_v220_span_corruption", _spans)
c4_v220_iid_denoising = partial(_task, "c4_v220_iid_denoising", _replace)
c4_v220_prefix_lm = partial(_task, "c4_v220_prefix_lm", unsupervised.prefix_lm)
c4_v220_full_lm = partial(_task, "c4_v220_full_lm", unsupervised.full_language_model)

lm = partial(_task, "c4_lm", unsupervised.language_model)
prefix_lm = partial(_task, "c4_prefix_lm", unsupervised.prefix_lm)
iid_15_r10s90_f = partial(_task, "c4_iid_15_r10s90_f", unsupervised.bert_style)
iid_15_m_f = partial(_task, "c4_iid_15_m_f", unsupervised.mass_style)
iid_15_d_d = partial(_task, "c4_iid_15_d_d", unsupervised.iid_drop_tokens)
all_permute = partial(_task, "c4_all_permute", unsupervised.deshuffling)
iid_10_u_u = partial(_task, "c4_iid_10_u_u", partial(_replace, noise_density=0.10))
iid_15_u_u = partial(_task, "c4_iid_15_u_u", partial(_replace, noise_density=0.15))
iid_25_u_u = partial(_task, "c4_iid_25_u_u", partial(_replace, noise_density=0.25))
iid_50_u_u = partial(_task, "c4_iid_50_u_u", partial(_replace, noise_density=0.50))
span_2_15_u_u = partial(_task, "c4_span_2_15_u_u", partial(_spans, mean_noise_span_length=2.0))
span_3_15_u_u = partial(_task, "c4_span_3_15_u_u", partial(_spans, mean_noise_span_length=3.0))
span_5_15_u_u = partial(_task, "c4_span_5_15_u_u", partial(_spans, mean_noise_span_length=5.0))
span_10_15_u_u = partial(_task, "c4_span_10_15_u_u", partial(_spans, mean_noise_span_length=10.0))
ul2 = partial(_task, "c4_ul2", unsupervised.mixture_of_denoisers)


def source(directory: str) -> stages.FileSource:
    """The pages of C4, or other documents, as examples {"text"}, always in the same order."""
    try:
        shards = {split: _shards(directory, split) for split in SPLITS}
        prepared = is_there(directory, "dataset_info.json")
        tfds = not directory or is_there(directory, TFDS_NAME)
    except tf.errors.OpError as error:
        raise InputError(f"cannot read data.directory {directory}: {error.message}") from error
    if any(shards.values()):
        there = [split for split in SPLITS if shards[split]]
        return stages.FileSource(there, shards.__getitem__, _lines, shuffled=_lines)
    if prepared or tfds:
        builder = functools.cache(partial(_tfds_builder, directory, prepared))
        there = _tfds_splits(builder) if prepared else SPLITS
        return stages.FileSource(there, partial(_tfds_shards, builder), partial(_tfds, builder))
    return text.source(directory)


def _shards(directory: str, split: str) -> list[str]:
    """The shards of a split that are there, of all that their names promise."""
    pattern = f"c4-{split}.*.json.gz"
    found = files_matching(directory, pattern) if directory else []
    return numbered_shards(found, name=pattern, directory=directory)


def _lines(split: str, files: Sequence[str], shuffle: Shuffle | None = None) -> tf.data.Dataset:
    del split
    return text_lines(files, shuffle=shuffle)


def _tfds_builder(directory: str, prepared: bool) -> Any:
    import tensorflow_datasets as tfds

    with _tfds_errors(directory):
        if prepared:
            return tfds.builder_from_directory(directory)
        there = sorted(tf.io.gfile.glob(f"{directory}/{TFDS_NAME}/*")) if directory else []
        version = there[-1].rpartition("/")[2] if there else TFDS_VERSION
        return tfds.builder(f"{TFDS_NAME}:{version}", data_dir=directory or None)


def _tfds_splits(builder: Callable[[], Any]) -> list[str]:
    """The splits of a dataset that is prepared."""
    return [split for split in SPLITS if split in builder().info.splits]


def _tfds_shards(builder: Callable[[], Any], split: str) -> Sequence[str]:
    """TFDS's own names of the shards of a split."""
    there = builder().info.splits
    number = there[split].num_shards if split in there else 0
    return [f"{split}[{shard}shard]" for shard in range(number)]


def _tfds(builder: Callable[[], Any], split: str, shards: Sequence[str]) -> tf.data.Dataset:
    import tensorflow_datasets as tfds

    whole = len(shards) == len(_tfds_shards(builder, split))
    with _tfds_errors(builder().data_dir):
        dataset = builder().as_dataset(
            split=split if whole else "+".join(shards),
            shuffle_files=False,
            # A cache in memory is not part of what a saved iterator holds.
            read_config=tfds.ReadConfig(try_autocache=False, skip_prefetch=True),
        )
    return dataset.map(lambda page: {"text": page["text"]})


@contextlib.contextmanager
def _tfds_errors(directory: Any) -> Iterator[None]:
    """Raises InputError where TFDS does not find its data."""
    try:
        yield
    except (AssertionError, ValueError, OSError) as error:
        what = " ".join(str(error).split())
        raise InputError(
            f"TFDS has no {TFDS_NAME} in {directory or 'its place'}: {what}"
        ) from error
