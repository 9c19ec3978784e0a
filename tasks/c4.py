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
    *.txt, *.jsonl, *.parquet ...        any text, as tasks.text reads it; a pattern, hf://NAME and
                                         tfds://NAME, too

mC4 is read by its languages, --data.languages af de or all; each is a task of a mixture, whose
rates are q ~ p^(1/T) with --data.mixing.temperature T:

    c4-af.tfrecord-00000-of-00064.json.gz ...   the JSON release, and c4-af.00000-of-00064.json.gz
                                                as `t5x-lite c4 --variant multilingual` writes
    c4/multilingual/3.1.0, dataset_info.json    data of TFDS; tfds://c4/multilingual

c4_v220 names are the package t5's tasks; the others are its gin files, as in tasks.text.
"""

from collections.abc import Callable
from functools import partial

import seqio

from t5x_lite.data.config import TaskArguments
from t5x_lite.data.tasks import stages, unsupervised
from t5x_lite.data.tasks.text_source import document_source
from t5x_lite.data.tasks.unsupervised import Objective


def _task(
    name: str, objective: Callable[[TaskArguments], Objective], arguments: TaskArguments
) -> seqio.Task:
    made = objective(arguments)
    pages = document_source(
        arguments.directory, columns=arguments.columns, languages=arguments.languages, c4=True
    )
    return stages.unsupervised_task(name, made, arguments, source=pages)


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
    """Return the pages of C4, or other documents, as examples {"text"} in a fixed order."""
    return document_source(directory, c4=True)
