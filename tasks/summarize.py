"""CNN/Daily Mail (Hermann et al. 2015; See et al. 2017) as a text-to-text task: news summaries.

    --data.task tasks.summarize:cnn_dailymail --data.directory CNN_DM

CNN_DM contains train.jsonl, validation.jsonl and test.jsonl with objects of "article" and
"highlights", or is a directory of TensorFlow Datasets (`t5x_lite.data.tasks.benchmarks`), which
prepares the data from the authors' stories and lists. The inputs are "summarize: <article>", and
the metric is ROUGE.
"""

from functools import partial

import seqio

from t5x_lite.data.config import TaskArguments
from t5x_lite.data.formats.benchmark_files import read_jsonl
from t5x_lite.data.preprocessors import rewrite
from t5x_lite.data.tasks import benchmarks
from t5x_lite.data.tasks.benchmarks import Benchmark
from t5x_lite.data.tasks.names import Wording
from t5x_lite.metrics.text import rouge

CNN_DAILYMAIL = Benchmark(
    name="cnn_dailymail",
    tfds="cnn_dailymail",
    folder="cnn_dailymail",
    files={split: f"{split}.jsonl" for split in ("train", "validation", "test")},
    read=lambda file, split: (
        row.fields for row in read_jsonl(file, fields=("article", "highlights"))
    ),
    examples=lambda record, split, inputs="summarize: {article}": [
        rewrite(record, inputs=inputs, targets="{highlights}")
    ],
    extras={},
    metrics=(rouge,),
    wording=Wording(prefix="summarize:", template="{article}"),
)


def _task(row: Benchmark, arguments: TaskArguments) -> seqio.Task:
    return benchmarks.task(row, arguments)


cnn_dailymail = partial(_task, CNN_DAILYMAIL)
