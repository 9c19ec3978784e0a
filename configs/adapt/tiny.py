"""Train LoRA on the tiny T5 of configs/tiny_pretrain.py, on the task of configs/tiny_finetune.py.

A test of the commands that takes two minutes on a CPU; the adapter has a few hundred kilobytes.

Command:
    t5x-lite train configs/adapt/tiny.py --init PRETRAINED --data.directory CORPUS \
        --data.vocabulary VOCABULARY --workdir WORKDIR
"""

import dataclasses

from configs.tiny_finetune import experiment as base
from t5x_lite.adapters.config import Adapters
from t5x_lite.optim.config import AdamW, Constant

experiment = dataclasses.replace(
    base,
    adapters=Adapters(add=("task = lora(r=8, sites=('.*attention/.*', 'mlp/.*'))",)),
    optimizer=AdamW(schedule=Constant(value=2e-3), weight_decay=0.0),
)
