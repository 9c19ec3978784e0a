"""Pretraining tasks on C4 with every objective of the T5 paper, under T5's names.

    --data.task tasks.c4:c4_v220_span_corruption --data.directory DIR

DIR is one of these, local or in a bucket; the first match counts:

    c4-train.00000-of-01024.json.gz ...  shards of lines with "text", from `t5x-lite c4` or from
                                         the JSON release of C4; missing shards cause a warning
    dataset_info.json                    one version of a TFDS data set with the feature "text",
                                         such as DIR/c4/realnewslike/3.0.1. Wikipedia,
                                         DIR/wikipedia/20230601.en/1.0.0, has no held-out split:
                                         train on it with --evaluation.loss False
    c4/en/3.1.0                          c4/en as TFDS prepares it on Apache Beam; for "", DIR is
                                         $TFDS_DATA_DIR or the default directory of TFDS
    *.txt, *.jsonl, *.parquet ...        any text that tasks.text reads, also a pattern,
                                         hf://NAME or tfds://NAME

mC4 is read by language, with --data.languages af de, or all. Each language is a task of a mixture
with the rates q ~ p^(1/T), where T is --data.mixing.temperature:

    c4-af.tfrecord-00000-of-00064.json.gz ...   the JSON release, or c4-af.00000-of-00064.json.gz
                                                from `t5x-lite c4 --variant multilingual`
    c4/multilingual/3.1.0, dataset_info.json    TFDS data; tfds://c4/multilingual

Names with c4_v220 are tasks of the package t5; other names are its gin files, as in tasks.text.
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
    """Return a seqio source of the pages of C4, or of other documents, as examples {"text"}."""
    return document_source(directory, c4=True)
