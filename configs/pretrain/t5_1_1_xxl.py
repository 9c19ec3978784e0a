"""Pretrain T5 1.1 XXL (11B parameters) by span corruption on a slice of 64 TPU v5p chips.

The recipe is from configs/pretrain/t5_1_1_xl.py, but rematerialization keeps the results of a
layer's products with weights, which fit into memory (72 of 95 GiB), and parameters are sharded over
32 chips.

Command, on all workers (docs/guides/scale.md):
    t5x-lite train configs/pretrain/t5_1_1_xxl.py --data.directory DIR \
        --data.vocabulary spiece.model --workdir gs://BUCKET/t5_1_1_xxl
    t5x-lite plan configs/pretrain/t5_1_1_xxl.py --topology v5p:4x4x4
"""

import dataclasses

from configs.pretrain.t5_1_1_xl import experiment as xl
from t5x_lite.core.sharding import MeshConfig
from t5x_lite.models.published import t5_1_1_xxl

experiment = dataclasses.replace(
    xl,
    model=t5_1_1_xxl(dropout_rate=0.0, remat="dots_no_batch", unroll=1),
    mesh=MeshConfig(data=-1, fsdp=32),
)
