"""Fine-tune the tiny T5 to predict which package a piece of documentation comes from.

Command:
    t5x-lite train configs/tiny_finetune.py --data.directory CORPUS \
        --data.vocabulary VOCABULARY --init PRETRAINED --workdir WORKDIR

Part of scripts/quickstart.sh.
"""

import dataclasses

from configs.tiny_pretrain import experiment as pretraining
from t5x_lite.config import Checkpoints, Evaluation
from t5x_lite.data.config import Data
from t5x_lite.optim.config import Adafactor, Constant

experiment = dataclasses.replace(
    pretraining,
    data=Data(
        task="tasks.python_docs:module",
        directory="work/quickstart/corpus",
        vocabulary="work/quickstart/vocabulary",
        batch_size=16,
        inputs_length=128,
        targets_length=16,
    ),
    optimizer=Adafactor(schedule=Constant(value=2e-3)),
    steps=900,
    log_period=25,
    checkpoints=Checkpoints(period=300, keep=2, best="validation/score"),
    evaluation=Evaluation(period=300, batch_size=64, max_decode_length=8),
)
