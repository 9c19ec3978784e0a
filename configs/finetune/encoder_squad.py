"""Fine-tune BERT base on SQuAD 1.1: the answer is a span of the context.

A row of 384 tokens has a question and its context. A context that does not fit is divided into
windows that begin 128 tokens apart, and the answer is the most probable span of all windows. The
metrics are SQuAD's exact match and F1. --init gives the encoder, as in encoder_glue.py.

Command:
    t5x-lite train configs/finetune/encoder_squad.py --init work/bert_base \
        --data.directory SQUAD --data.vocabulary work/bert_base/files/vocabulary --workdir WORKDIR
"""

import dataclasses

from configs.finetune.encoder_glue import experiment as glue
from t5x_lite import layouts
from t5x_lite.config import Checkpoints, Evaluation
from t5x_lite.objectives.task_heads import Spans
from t5x_lite.optim.config import Linear

experiment = dataclasses.replace(
    glue,
    objective=Spans(),
    data=dataclasses.replace(
        glue.data,
        task="tasks.squad:squad",
        layout=layouts.Windows(doc_stride=128, query_length=64),
        inputs_length=384,
        shuffle_buffer=10_000,
    ),
    optimizer=dataclasses.replace(
        glue.optimizer, schedule=Linear(peak=3e-5, total_steps=5500, warmup_steps=550)
    ),
    steps=5500,
    epochs=2.0,
    checkpoints=Checkpoints(period=2750),
    evaluation=Evaluation(period=2750),
)
