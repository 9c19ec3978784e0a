"""Fine-tunes a whole T5 whose layers begin to train one after the other, the highest first.

Gradual unfreezing as in Raffel et al. 2020, section 3.5.1: one episode for each layer, in encoder
and decoder alike, with the paper's fine-tuning: Adafactor at a constant 1e-3 and dropout 0.1. Give
both numbers where the steps change, so that the lowest layer has its episode.

Command:
    t5x-lite train configs/adapt/unfreezing.py --init PRETRAINED --data.directory GLUE \
        --data.vocabulary spiece.model --workdir WORKDIR \
        --steps 3000 --optimizer.unfreezing.total-steps 3000
"""

import dataclasses

from configs.finetune.sst2 import experiment as base
from t5x_lite.optim.partial import Gradual

experiment = dataclasses.replace(
    base,
    optimizer=dataclasses.replace(base.optimizer, unfreezing=Gradual(total_steps=base.steps)),
)
