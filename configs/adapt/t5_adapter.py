"""T5's own adapter layers, on the T5 of configs/pretrain/prose.py.

Raffel et al. 2020 (arXiv:1910.10683), section 3.5.1: a feed-forward block after each one of the
model, and all norms, train; width d is 32, 128, 512 or 2048; Adafactor at a constant 1e-3. Modules
have no parameter scale, so that 1e-3 is the rate itself of the adapters; of the norms it is a part
of their size.

Command:
    t5x-lite train configs/adapt/t5_adapter.py --init PRETRAINED --data.directory GLUE \
        --data.vocabulary spiece.model --workdir WORKDIR --adapters.add 'task = t5_adapter(d=128)'
"""

import dataclasses

from configs.finetune.sst2 import experiment as base
from t5x_lite.adapters.config import Adapters
from t5x_lite.optim.config import Adafactor
from t5x_lite.optim.schedules import Constant

experiment = dataclasses.replace(
    base,
    adapters=Adapters(add=("task = t5_adapter(d=32)",)),
    optimizer=Adafactor(schedule=Constant(value=1e-3)),
)
