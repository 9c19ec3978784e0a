"""Contents of the files that `t5x-lite init` writes: README, configs and a task."""

README = """\
# {name}

A small project of t5x_lite: pretrain a T5, fine-tune it on a table, use it. The English is the
documentation that every Python installation carries; `data/` holds it. Put your own data, sizes and
tasks in its place. The commands are given in this directory; the times are of two CPU cores.

    # 400 steps of span corruption, some 2 minutes; the same command again resumes
    t5x-lite train configs/pretrain.py

    # from those weights: which package does a text document? 600 steps, some 3 minutes
    t5x-lite train configs/finetune.py

    # accuracy on the test split, and predictions.jsonl; half a minute
    t5x-lite evaluate configs/finetune.py --checkpoint work/finetune --output work/evaluation \\
        --evaluation.split test

    # ask it; some seconds
    t5x-lite predict --checkpoint work/finetune --input data/questions.jsonl --output -

    # vectors of texts, float32 [N, 128], and one HTML page about the run; some seconds each
    t5x-lite embed --checkpoint work/pretrain --input data/questions.txt --output work/vectors.npy
    t5x-lite report work/finetune

`--dry-run` after a config says what a run would do and stops: sizes, memory, the first batch as
text. `t5x-lite train configs/pretrain.py --help` lists all fields; `--FIELD VALUE` changes one.

| file | what to change |
|---|---|
| `configs/pretrain.py` | sizes of the model, optimizer, steps |
| `configs/finetune.py` | the table, lengths, steps |
| `tasks/packages.py` | a task in Python; with `tasks.files` a table needs none |
| `data/text/*.txt` | one document a line: text to pretrain on |
| `data/table/*.jsonl` | one row a line; CSV, TSV, Parquet and Arrow files do as well |
| `vocabulary/` | `t5x-lite vocab --input data/text/*.txt --output vocabulary --size 4000` |

No config at all is needed to fine-tune a checkpoint on a table:

    t5x-lite finetune --init work/pretrain --table data/table --inputs 'documentation: {{text}}' \\
        --targets '{{package}}' --workdir work/table --epochs 2

Add `--adapters.add 'packages = lora(r=8)'` to train a small module in place of the model. Modules
of your own `tasks/` and `configs/` win over those that t5x_lite ships, such as `tasks.glue:sst2`.
"""

PRETRAIN = '''\
"""Pretrains a tiny T5 1.1 by span corruption on data/text.

Command:
    t5x-lite train configs/pretrain.py
"""

from t5x_lite.config import Checkpoints, Evaluation, Experiment
from t5x_lite.data.config import Data
from t5x_lite.models.t5 import T5Config
from t5x_lite.objectives.likelihood import Seq2Seq
from t5x_lite.optim.config import Adafactor
from t5x_lite.optim.schedules import InverseSquareRoot

experiment = Experiment(
    model=T5Config(
        vocab_size=4224,  # 4000 pieces, T5's 100 sentinels, rounded up
        d_model=128,
        d_kv=32,
        d_ff=256,
        num_heads=4,
        num_encoder_layers=2,
        num_decoder_layers=2,
        dropout_rate=0.0,
        unroll=True,
    ),
    objective=Seq2Seq(),
    data=Data(
        task="tasks.text:span_corruption",  # shipped with t5x_lite
        directory="data/text",
        vocabulary="vocabulary",
        batch_size=16,
        inputs_length=128,
        targets_length=32,
    ),
    optimizer=Adafactor(schedule=InverseSquareRoot(warmup_steps=1000)),
    steps=400,
    log_period=25,
    workdir="work/pretrain",
    checkpoints=Checkpoints(period=200, keep=2),
    evaluation=Evaluation(period=200, max_batches=8),
)
'''

FINETUNE = '''\
"""Fine-tunes the model of configs/pretrain.py on the table data/table.

Command:
    t5x-lite train configs/finetune.py
"""

import dataclasses

from configs.pretrain import experiment as pretraining
from t5x_lite.checkpoints.init import Init
from t5x_lite.config import Checkpoints, Evaluation
from t5x_lite.data.config import Data
from t5x_lite.optim.config import Adafactor
from t5x_lite.optim.schedules import Constant

experiment = dataclasses.replace(
    pretraining,
    init=Init(checkpoint="work/pretrain"),
    data=Data(
        task="tasks.packages:package",  # tasks/packages.py of this project
        directory="data/table",
        vocabulary="vocabulary",
        batch_size=16,
        inputs_length=128,
        targets_length=16,
    ),
    optimizer=Adafactor(schedule=Constant(value=5e-3)),
    steps=600,
    workdir="work/finetune",
    checkpoints=Checkpoints(period=200, keep=1, best="validation/score"),
    evaluation=Evaluation(period=200, batch_size=64, max_decode_length=8),
)
'''

TASK = '''\
"""A task of this project: which package does a text document?

A task is a function that takes TaskArguments and returns a seqio.Task; a config names it as
"tasks.packages:package". This one reads the files of data.directory as `tasks.files` does, which
t5x_lite ships, and says which columns are shown. Its labels are those of the training rows.
"""

import dataclasses

import seqio

from t5x_lite.data.columns import Columns
from t5x_lite.data.config import TaskArguments
from tasks.files import classify


def package(arguments: TaskArguments) -> seqio.Task:
    """The package's name is the target."""
    columns = Columns(inputs="documentation: {text}", targets="{package}")
    return classify(dataclasses.replace(arguments, columns=columns))
'''

QUESTIONS = (
    "documentation: Lexer for the source code of the Rust programming language.",
    "documentation: Returns an array with the same shape, filled with zeros.",
    "documentation: Compute the eigenvalues of a sparse symmetric matrix.",
)

FILES = {
    "configs/pretrain.py": PRETRAIN,
    "configs/finetune.py": FINETUNE,
    "tasks/packages.py": TASK,
}
"""Path -> content of the files that `t5x-lite init` writes without changes."""
