"""Fine-tune all layers of a T5 by gradual unfreezing, from the highest layer to the lowest.

As in Raffel et al. 2020, section 3.5.1, each episode unfreezes one layer in both the encoder and
the decoder. The rest is the paper's fine-tuning: Adafactor at a constant 1e-3 and dropout 0.1. To
change the steps, set both numbers of the command, so that the lowest layer has its episode.

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
