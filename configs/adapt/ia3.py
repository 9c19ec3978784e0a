"""Train (IA)^3 on the T5 of configs/pretrain/prose.py, on SST-2 or another text-to-text task.

(IA)^3 scales keys, values and the hidden layer of feed-forward blocks. The 1,000 steps at 3e-3 are
from Liu et al. 2022 (arXiv:2205.05638); T-Few of that paper adds two losses, which are not used
here.

Command:
    t5x-lite train configs/adapt/ia3.py --init PRETRAINED --data.directory GLUE \
        --data.vocabulary spiece.model --workdir WORKDIR
"""

import dataclasses

from configs.adapt.lora_t5 import experiment as base
from t5x_lite.adapters.config import Adapters
from t5x_lite.optim.config import AdamW, Linear

experiment = dataclasses.replace(
    base,
    adapters=Adapters(add=("task = ia3()",)),
    optimizer=AdamW(
        schedule=Linear(peak=3e-3, total_steps=1000, warmup_steps=60), weight_decay=0.0
    ),
    steps=1000,
)
