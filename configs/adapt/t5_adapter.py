"""Train T5's adapter layers on the T5 of configs/pretrain/prose.py.

As in Raffel et al. 2020 (arXiv:1910.10683), section 3.5.1, a small feed-forward block after each
feed-forward block of the model, and all norms, are trained with Adafactor at a constant 1e-3. The
width d is 32, 128, 512 or 2048. Adafactor does not scale the adapters' updates by parameter size,
so their learning rate is exactly 1e-3; the norms' updates are scaled.

Command:
    t5x-lite train configs/adapt/t5_adapter.py --init PRETRAINED --data.directory GLUE \
        --data.vocabulary spiece.model --workdir WORKDIR --adapters.add 'task = t5_adapter(d=128)'
"""

import dataclasses

from configs.finetune.sst2 import experiment as base
from t5x_lite.adapters.config import Adapters
from t5x_lite.optim.config import Adafactor, Constant

experiment = dataclasses.replace(
    base,
    adapters=Adapters(add=("task = t5_adapter(d=32)",)),
    optimizer=Adafactor(schedule=Constant(value=1e-3)),
)
