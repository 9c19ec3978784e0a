"""Pretrain the T5 paper's baseline with a triangular learning rate (Raffel et al. 2020, 3.1.2).

As in Howard and Ruder 2018, the rate increases for a tenth of the steps and then decreases. The
maximum is the baseline's maximum, 0.01, because the paper does not give it. The paper found this
schedule slightly better, but did not use it, because the number of steps must be known in advance.
Set --steps and --optimizer.schedule.total-steps to the same number.

Command:
    t5x-lite train configs/paper/triangular.py --data.directory C4 \
        --data.vocabulary spiece.model --workdir WORKDIR
    t5x-lite plan configs/paper/triangular.py --topology v5e:4x4
"""

import dataclasses

from configs.pretrain.t5_base_paper import experiment as base
from t5x_lite.optim.config import Adafactor, Triangular

experiment = dataclasses.replace(
    base, optimizer=Adafactor(schedule=Triangular(peak=0.01, total_steps=base.steps))
)
