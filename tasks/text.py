"""Pretraining on any unlabelled text by every objective of the T5 paper.

    --data.task tasks.text:span_corruption --data.directory DIR

DIR holds *.txt, one document a line (blank lines are skipped), *.jsonl, what `t5x-lite c4` writes,
Parquet or Arrow; or it is a file, a pattern, hf://NAME or tfds://NAME. docs/guides/documents.md
lists all of it.
What is held out for validation: whole files (`t5x_lite.data.tasks.text_files` says which) or, of
fewer than 20 files, about every 100th document: those whose hash says so, so that a document that
is repeated is always on the same side, and blank lines do not count.

The paper's variants (Raffel et al. 2020, tables 2 to 7) have their names in the released code,
<noise>_<density>_<inputs>_<targets>: "u" is one sentinel for each span, "f" the full text, "d" what
is left after dropping, "m" the same sentinel for each token, "r10s90" random tokens for a tenth of
them. `t5x_lite.data.tasks.unsupervised` says what each does and which lengths go with it.
"""

from collections.abc import Callable
from functools import partial

import seqio

from t5x_lite.data.config import TaskArguments
from t5x_lite.data.tasks import stages, unsupervised
from t5x_lite.data.tasks.text_source import document_source
from t5x_lite.data.tasks.unsupervised import Objective


def span_corruption(
    arguments: TaskArguments, *, noise_density: float = 0.15, mean_noise_span_length: float = 3.0
) -> seqio.Task:
    """Return T5's objective: 15% of the tokens in spans of 3."""
    objective = partial(
        unsupervised.span_corruption,
        noise_density=noise_density,
        mean_noise_span_length=mean_noise_span_length,
    )
    return _task("span_corruption", objective, arguments)


def language_model(arguments: TaskArguments) -> seqio.Task:
    """Return the text itself, without inputs: data.layout is LM()."""
    return _task("language_model", unsupervised.language_model, arguments)


def prefix_lm(arguments: TaskArguments) -> seqio.Task:
    """Return text split at random: data.layout is Seq2Seq(), or PrefixLM() for a decoder."""
    return _task("prefix_lm", unsupervised.prefix_lm, arguments)


def ul2(arguments: TaskArguments) -> seqio.Task:
    """Return UL2's mixture of denoisers."""
    return _task("ul2", unsupervised.mixture_of_denoisers, arguments)


def _task(
    name: str, objective: Callable[[TaskArguments], Objective], arguments: TaskArguments
) -> seqio.Task:
    made = objective(arguments)
    texts = document_source(
        arguments.directory, columns=arguments.columns, languages=arguments.languages
    )
    return stages.unsupervised_task(f"text_{name}", made, arguments, source=texts)


iid_15_r10s90_f = partial(_task, "iid_15_r10s90_f", unsupervised.bert_style)
iid_15_m_f = partial(_task, "iid_15_m_f", unsupervised.mass_style)
iid_15_d_d = partial(_task, "iid_15_d_d", unsupervised.iid_drop_tokens)
all_permute = partial(_task, "all_permute", unsupervised.deshuffling)

_replace = unsupervised.iid_replace_spans
iid_10_u_u = partial(_task, "iid_10_u_u", partial(_replace, noise_density=0.10))
iid_15_u_u = partial(_task, "iid_15_u_u", partial(_replace, noise_density=0.15))
iid_25_u_u = partial(_task, "iid_25_u_u", partial(_replace, noise_density=0.25))
iid_50_u_u = partial(_task, "iid_50_u_u", partial(_replace, noise_density=0.50))

span_2_15_u_u = partial(span_corruption, mean_noise_span_length=2.0)
span_3_15_u_u = partial(span_corruption, mean_noise_span_length=3.0)
span_5_15_u_u = partial(span_corruption, mean_noise_span_length=5.0)
span_10_15_u_u = partial(span_corruption, mean_noise_span_length=10.0)


def source(directory: str) -> stages.FileSource:
    """Return the documents of a directory, in the splits "train" and "validation"."""
    return document_source(directory)
