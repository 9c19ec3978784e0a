"""Fine-tune the BERT of configs/pretrain/bert_tiny.py on a task of GLUE, as in encoder_glue.py.

Command:
    t5x-lite train configs/finetune/encoder_glue_tiny.py --init work/bert --data.directory GLUE \
        --data.vocabulary vocab.txt --workdir WORKDIR
"""

import dataclasses

from configs.finetune.encoder_glue import experiment as base
from configs.pretrain.bert_tiny import experiment as bert
from t5x_lite.config import Checkpoints, Evaluation
from t5x_lite.optim.config import Linear

experiment = dataclasses.replace(
    base,
    model=bert.model,
    data=dataclasses.replace(base.data, inputs_length=64),
    optimizer=dataclasses.replace(
        base.optimizer, schedule=Linear(peak=3e-4, total_steps=2000, warmup_steps=200)
    ),
    steps=2000,
    epochs=None,
    checkpoints=Checkpoints(period=1000),
    evaluation=Evaluation(period=500),
)
