"""Train bottleneck adapters after the feed-forward blocks of a T5 (Pfeiffer et al. 2020).

As in that paper (arXiv:2005.00052), the width is d_model / 16, and AdamW has a rate of 1e-4 with
linear decay. For Houlsby's adapters, after both blocks: `--adapters.add 'task =
double_seq_bn(reduction=16)'`.

Command:
    t5x-lite train configs/adapt/bottleneck_t5.py --init PRETRAINED --data.directory GLUE \
        --data.vocabulary spiece.model --workdir WORKDIR
"""

import dataclasses

from configs.adapt.lora_t5 import experiment as base
from t5x_lite.adapters.config import Adapters
from t5x_lite.optim.config import Linear

experiment = dataclasses.replace(
    base,
    adapters=Adapters(add=("task = seq_bn(reduction=16)",)),
    optimizer=dataclasses.replace(
        base.optimizer, schedule=Linear(peak=1e-4, total_steps=3000, warmup_steps=180)
    ),
)
