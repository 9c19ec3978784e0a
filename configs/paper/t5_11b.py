"""Pretrain T5 11B as released; C4 counts as 133 million examples.

The recipe is from configs/paper/t5_base.py. Rematerialization keeps only the inputs of a layer.
The parameters are sharded over 16 chips: d_model over eight, with a complete tile on each, and
heads and d_ff over two.

    t5x-lite train configs/paper/t5_11b.py --data.directory DATA \
        --data.vocabulary spiece.model --workdir gs://BUCKET/t5_11b
    t5x-lite plan configs/paper/t5_11b.py --topology v5e:4x4
"""

import dataclasses

from configs.paper.t5_base import experiment as base
from t5x_lite.core.sharding import MeshConfig
from t5x_lite.models.published import t5_11b

experiment = dataclasses.replace(
    base,
    model=t5_11b(dropout_rate=0.1, remat="full"),
    data=dataclasses.replace(base.data, task="tasks.mixtures:multi_task_11b"),
    mesh=MeshConfig(data=-1, fsdp=8, tensor=2),
    microbatches=32,
)
