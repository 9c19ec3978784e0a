"""Fine-tune the model of configs/pretrain/prose.py on GLUE's SST-2, with T5's inputs and targets.

Rows are packed: about 5 reviews per row, 40 per step. The learning rate is T5's for fine-tuning.

Command:
    t5x-lite train configs/finetune/sst2.py --data.directory GLUE --data.vocabulary spiece.model \
        --init PRETRAINED --workdir WORKDIR
"""

import dataclasses

from configs.pretrain.prose import experiment as pretraining
from t5x_lite.config import Checkpoints, Evaluation
from t5x_lite.data.config import Data
from t5x_lite.objectives.likelihood import Seq2Seq
from t5x_lite.optim.config import Adafactor, Constant

experiment = dataclasses.replace(
    pretraining,
    model=pretraining.model.replace(dropout_rate=0.1),
    objective=Seq2Seq(),
    data=Data(
        task="tasks.glue:sst2",
        vocabulary="spiece.model",
        batch_size=8,
        inputs_length=64,
        targets_length=16,
    ),
    optimizer=Adafactor(schedule=Constant(value=1e-3)),
    steps=3000,
    log_period=50,
    checkpoints=Checkpoints(period=3000, keep=1),
    evaluation=Evaluation(period=300, max_batches=16, batch_size=64, max_decode_length=8),
)
