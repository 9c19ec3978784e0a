"""The paper's baseline with a triangular learning rate (Raffel et al. 2020, section 3.1.2).

Howard and Ruder 2018: up for a tenth of the steps, then down, here to the baseline's highest rate,
0.01; the paper does not say its own. It found this slightly better, and left it, as the number of
steps must be known: give --steps and --optimizer.schedule.total-steps the same number.

Command:
    t5x-lite train configs/paper/triangular.py --data.directory C4 \
        --data.vocabulary spiece.model --workdir WORKDIR
    t5x-lite plan configs/paper/triangular.py --topology v5e:4x4
"""

import dataclasses

from configs.pretrain.t5_base_paper import experiment as base
from t5x_lite.optim.config import Adafactor
from t5x_lite.optim.schedules import Triangular

experiment = dataclasses.replace(
    base, optimizer=Adafactor(schedule=Triangular(peak=0.01, total_steps=base.steps))
)
