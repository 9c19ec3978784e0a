"""Pretrain T5 small as released; C4 counts as 710 thousand examples.

The recipe is from configs/paper/t5_base.py.

    t5x-lite train configs/paper/t5_small.py --data.directory DATA \
        --data.vocabulary spiece.model --workdir gs://BUCKET/t5_small
    t5x-lite plan configs/paper/t5_small.py --topology v5e:4x4
"""

import dataclasses

from configs.paper.t5_base import experiment as base
from t5x_lite.models.published import t5_small

experiment = dataclasses.replace(
    base,
    model=t5_small(dropout_rate=0.1),
    data=dataclasses.replace(base.data, task="tasks.mixtures:multi_task_small"),
    microbatches=8,
)
