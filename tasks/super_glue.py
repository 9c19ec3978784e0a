"""SuperGLUE (Wang et al. 2019, arXiv:1905.00537) as text-to-text (Raffel et al. 2020, app. D).

    --data.task tasks.super_glue:boolq --data.directory SUPERGLUE

SUPERGLUE contains BoolQ/{train,val,test}.jsonl and so on, or is one of these folders; or it is a
directory of TensorFlow Datasets (`t5x_lite.data.tasks.benchmarks`). Test files have no labels:
their targets are "<unk>", class -1. The diagnostic sets `axb` and `axg` have RTE's form and only a
test split.

With data.layout Labelled(), all tasks except `copa` and `dpr` are for an encoder's head, with two
texts without a template (configs/finetune/encoder_super_glue.py). `record` has a row for each
entity. With Choices(), `copa` has a row for each choice (configs/finetune/encoder_choice.py).

As text-to-text, `wsc` trains on the examples with the correct noun, which is the target. `dpr`,
definite pronoun resolution (Rahman and Ng 2012), has the same form and is trained together with
`wsc`; its folder contains train.c.txt and test.c.txt.
"""

from functools import partial

import seqio

from t5x_lite.data import postprocess, preprocessors
from t5x_lite.data.config import TaskArguments
from t5x_lite.data.formats.benchmark_files import read_dpr
from t5x_lite.data.tasks import benchmarks
from t5x_lite.data.tasks import glue_files as files
from t5x_lite.data.tasks.benchmarks import Benchmark
from t5x_lite.metrics import text
from t5x_lite.metrics.classification import accuracy, mean_multiclass_f1

HYPOTHESIS = "hypothesis: {hypothesis} premise: {premise}"
ENTAILMENT = ("entailment", "not_entailment")

BOOLQ = files.SuperGlueTask(
    name="boolq", directory="BoolQ", template="passage: {passage} question: {question}"
)
CB = files.SuperGlueTask(
    name="cb",
    directory="CB",
    template=HYPOTHESIS,
    labels=("entailment", "contradiction", "neutral"),
    metrics=(partial(mean_multiclass_f1, num_classes=3), accuracy),
)
COPA = files.SuperGlueTask(
    name="copa",
    directory="COPA",
    template="choice1: {choice1} choice2: {choice2} premise: {premise} question: {question}",
    labels=("choice1", "choice2"),
    entries=("0", "1"),
    texts=("{premise} {question}", "choice1", "choice2"),
    choices=True,
    words={"question": files.COPA_QUESTIONS},
)
RTE = files.SuperGlueTask(name="rte", directory="RTE", template=HYPOTHESIS, labels=ENTAILMENT)
WIC = files.SuperGlueTask(
    name="wic",
    directory="WiC",
    template="sentence1: {sentence1} sentence2: {sentence2} word: {word}",
    texts=("{word}: {sentence1}", "sentence2"),
)
AXB = files.SuperGlueTask(
    name="axb",
    directory="AX-b",
    prefix="rte",
    template=HYPOTHESIS,
    labels=ENTAILMENT,
    columns={"hypothesis": "sentence2", "premise": "sentence1"},
    files={"test": "AX-b.jsonl"},
)
AXG = files.SuperGlueTask(
    name="axg",
    directory="AX-g",
    prefix="rte",
    template=HYPOTHESIS,
    labels=ENTAILMENT,
    files={"test": "AX-g.jsonl"},
)
MULTIRC = Benchmark(
    name="super_glue_multirc",
    tfds="super_glue/multirc",
    folder="MultiRC",
    files=files.SUPER_GLUE_FILES,
    read=files.multirc_records,
    examples=lambda record, split, **words: [preprocessors.multirc(record, **words)],
    extras={"idx/paragraph": int, "idx/question": int, "idx/answer": int},
    postprocess=postprocess.multirc,
    metrics=(text.multirc_f1, text.multirc_exact_match),
    labelled=files.MULTIRC_TEXTS,
    wording=files.MULTIRC_WORDS,
)
RECORD = Benchmark(
    name="super_glue_record",
    tfds="super_glue/record",
    folder="ReCoRD",
    files=files.SUPER_GLUE_FILES,
    read=files.record_records,
    examples=lambda record, split, **words: preprocessors.record(record, **words),
    extras={"idx/passage": int, "idx/query": int, "answers": list},
    postprocess=postprocess.record,
    metrics=(text.record,),
    labelled=files.RECORD_TEXTS,
    wording=files.RECORD_WORDS,
)
WSC = Benchmark(
    name="super_glue_wsc",
    tfds="super_glue/wsc.fixed",
    folder="WSC",
    files=files.SUPER_GLUE_FILES,
    read=files.wsc_records,
    examples=lambda record, split, **words: (
        [preprocessors.wsc_simple(record, **words)]
        if split != "train" or record["label"] == 1
        else []
    ),
    extras={"label": int, "idx": int},
    postprocess=postprocess.wsc_simple,
    metrics=(accuracy,),
    labelled=files.WSC_TEXTS,
    wording=files.WSC_WORDS,
)
DPR = Benchmark(
    name="dpr",
    tfds="definite_pronoun_resolution",
    folder="DPR",
    files={"train": "train.c.txt", "test": "test.c.txt"},
    read=read_dpr,
    examples=lambda record, split, **w: [preprocessors.definite_pronoun_resolution(record, **w)],
    extras={},
    metrics=(text.exact_match,),
    wording=files.DPR_WORDS,
)


def _task(row: files.SuperGlueTask | Benchmark, arguments: TaskArguments) -> seqio.Task:
    benchmark = row.benchmark() if isinstance(row, files.SuperGlueTask) else row
    return benchmarks.task(benchmark, arguments)


boolq = partial(_task, BOOLQ)
cb = partial(_task, CB)
copa = partial(_task, COPA)
multirc = partial(_task, MULTIRC)
record = partial(_task, RECORD)
rte = partial(_task, RTE)
wic = partial(_task, WIC)
wsc = partial(_task, WSC)
dpr = partial(_task, DPR)
axb = partial(_task, AXB)
axg = partial(_task, AXG)
