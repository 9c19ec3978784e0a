"""GLUE (Wang et al. 2019, arXiv:1804.07461) as text-to-text tasks (Raffel et al. 2020, app. D).

    --data.task tasks.glue:sst2 --data.directory GLUE

GLUE contains SST-2/{train,dev,test}.tsv and so on, or is one of these folders; or it is a directory
of TensorFlow Datasets (`t5x_lite.data.tasks.benchmarks`). A `GlueTask` defines a task. Test files
have no labels: their targets are "<unk>", class -1.

With data.layout Labelled(), the tasks are for an encoder's head, with the same files, labels and
metrics, and with the sentences without a template (configs/finetune/encoder_glue.py).

`mnli` is validated on matched genres; `mnli_matched` and `mnli_mismatched` evaluate either set. The
diagnostic set `ax` has MNLI's form and only a test split. WNLI has WSC's form and no training
split: evaluate a model that was trained on SuperGLUE's WSC.
"""

from dataclasses import replace
from functools import partial

import seqio

from t5x_lite.data import preprocessors
from t5x_lite.data.config import TaskArguments
from t5x_lite.data.postprocess import similarity, wsc_simple
from t5x_lite.data.tasks import benchmarks
from t5x_lite.data.tasks.glue_files import FILES, GlueTask
from t5x_lite.metrics.classification import accuracy, f1, matthews, pearson, spearman

ENTAILMENT = {"entailment": "entailment", "not_entailment": "not_entailment"}
MATCHED = {"validation": "dev_matched.tsv", "test": "test_matched.tsv"}
MISMATCHED = {"validation": "dev_mismatched.tsv", "test": "test_mismatched.tsv"}

COLA = GlueTask(
    name="cola",
    directory="CoLA",
    template="sentence: {sentence}",
    labels={"0": "unacceptable", "1": "acceptable"},
    header=("source", "label", "star", "sentence"),
    metrics=(matthews,),
)
SST2 = GlueTask(
    name="sst2",
    directory="SST-2",
    template="sentence: {sentence}",
    labels={"0": "negative", "1": "positive"},
)
MRPC = GlueTask(
    name="mrpc",
    directory="MRPC",
    template="sentence1: {sentence1} sentence2: {sentence2}",
    labels={"0": "not_equivalent", "1": "equivalent"},
    columns={"sentence1": "#1 String", "sentence2": "#2 String"},
    label_column="Quality",
    metrics=(f1, accuracy),
)
QQP = GlueTask(
    name="qqp",
    directory="QQP",
    template="question1: {question1} question2: {question2}",
    labels={"0": "not_duplicate", "1": "duplicate"},
    label_column="is_duplicate",
    id_column="id",
    skip_incomplete=True,  # the official files have questions with line ends in them
    metrics=(f1, accuracy),
)
STSB = GlueTask(
    name="stsb",
    directory="STS-B",
    template="sentence1: {sentence1} sentence2: {sentence2}",
    labels={},
    label_column="score",
    as_text=preprocessors.stsb,
    postprocess=similarity,
    metrics=(pearson, spearman),
)
MNLI = GlueTask(
    name="mnli",
    directory="MNLI",
    template="hypothesis: {hypothesis} premise: {premise}",
    labels={word: word for word in ("entailment", "neutral", "contradiction")},
    prefix="mnli",
    columns={"hypothesis": "sentence2", "premise": "sentence1"},
    texts=("premise", "hypothesis"),
    label_column="gold_label",
    files={"train": "train.tsv", **MATCHED},
    tfds_splits={"validation": "validation_matched", "test": "test_matched"},
)
QNLI = GlueTask(
    name="qnli",
    directory="QNLI",
    template="question: {question} sentence: {sentence}",
    labels=ENTAILMENT,
)
RTE = GlueTask(
    name="rte",
    directory="RTE",
    template="sentence1: {sentence1} sentence2: {sentence2}",
    labels=ENTAILMENT,
)
WNLI = GlueTask(
    name="wnli",
    directory="WNLI",
    prefix="wsc:",
    template="{text}",
    labels={"0": "not_entailment", "1": "entailment"},
    columns={"sentence1": "sentence1", "sentence2": "sentence2"},
    files={split: FILES[split] for split in ("validation", "test")},
    as_text=preprocessors.wnli_simple,
    extras={"premise": str, "hypothesis": str, "label": int, "idx": int},
    postprocess=wsc_simple,
)

MNLI_MATCHED = replace(MNLI, name="mnli_matched", files=MATCHED, tfds_splits={})
MNLI_MISMATCHED = replace(MNLI, name="mnli_mismatched", files=MISMATCHED, tfds_splits={})
AX = replace(
    MNLI, name="ax", directory="diagnostic", files={"test": "diagnostic.tsv"}, tfds_splits={}
)


def _task(row: GlueTask, arguments: TaskArguments) -> seqio.Task:
    return benchmarks.task(row.benchmark(), arguments)


cola = partial(_task, COLA)
sst2 = partial(_task, SST2)
mrpc = partial(_task, MRPC)
qqp = partial(_task, QQP)
stsb = partial(_task, STSB)
mnli = partial(_task, MNLI)
mnli_matched = partial(_task, MNLI_MATCHED)
mnli_mismatched = partial(_task, MNLI_MISMATCHED)
qnli = partial(_task, QNLI)
rte = partial(_task, RTE)
wnli = partial(_task, WNLI)
ax = partial(_task, AX)
