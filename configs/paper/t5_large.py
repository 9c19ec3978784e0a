"""Pretrain T5 large as released; C4 counts as 8.66 million examples.

The recipe is from configs/paper/t5_base.py. Rematerialization keeps only the inputs of a layer.

    t5x-lite train configs/paper/t5_large.py --data.directory DATA \
        --data.vocabulary spiece.model --workdir gs://BUCKET/t5_large
    t5x-lite plan configs/paper/t5_large.py --topology v5e:4x4
"""

import dataclasses

from configs.paper.t5_base import experiment as base
from t5x_lite.models.published import t5_large

experiment = dataclasses.replace(
    base,
    model=t5_large(dropout_rate=0.1, remat="full"),
    data=dataclasses.replace(base.data, task="tasks.mixtures:multi_task_large"),
    microbatches=8,
)
