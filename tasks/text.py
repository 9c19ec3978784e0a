"""Pretraining tasks on unlabelled text with every objective of the T5 paper.

    --data.task tasks.text:span_corruption --data.directory DIR

DIR contains *.txt with one document per line (blank lines are skipped), *.jsonl, output of
`t5x-lite c4`, Parquet or Arrow; or it is a file, a pattern, hf://NAME or tfds://NAME
(docs/guides/documents.md). Complete files are held out for validation, as defined in
`t5x_lite.data.tasks.unsupervised`. With fewer than 20 files, about every 100th document is held out
instead, selected by its hash, so that all copies of a document are in the same split.

The paper's variants (Raffel et al. 2020, tables 2 to 7) have the names of the released code,
<noise>_<density>_<inputs>_<targets>. "u" is one sentinel per span, "f" the full text, "d" the text
after dropping tokens, "m" the same sentinel for each token, and "r10s90" random tokens for a tenth
of the noise. `t5x_lite.data.tasks.unsupervised` defines the objectives and their lengths.
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
    """Return T5's span-corruption task: 15% of the tokens are replaced, in spans of 3."""
    objective = partial(
        unsupervised.span_corruption,
        noise_density=noise_density,
        mean_noise_span_length=mean_noise_span_length,
    )
    return _task("span_corruption", objective, arguments)


def language_model(arguments: TaskArguments) -> seqio.Task:
    """Return the language-model task: the text as targets, without inputs, for data.layout LM()."""
    return _task("language_model", unsupervised.language_model, arguments)


def prefix_lm(arguments: TaskArguments) -> seqio.Task:
    """Return the prefix-LM task: text split at random, for data.layout Seq2Seq() or PrefixLM()."""
    return _task("prefix_lm", unsupervised.prefix_lm, arguments)


def ul2(arguments: TaskArguments) -> seqio.Task:
    """Return the task of UL2, a mixture of denoisers."""
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
    """Return a seqio source of a directory's documents, in splits "train" and "validation"."""
    return document_source(directory)
