"""Pretrain T5 1.1 XL (3B parameters) by span corruption on a slice of 64 TPU v5e chips.

The recipe is from configs/pretrain/t5_1_1_base.py with batches of 2,048 rows, as in T5 1.1.
Parameters and optimizer state are sharded over groups of 16 chips: over all 64 chips, a shard of
d_model would be narrower than a tile (docs/adr/0022). Rematerialization keeps only the inputs of a
layer. Layers run in a loop, because straight-line code of a single layer takes four minutes of one
core to compile.

Command, on all workers (docs/guides/scale.md):
    t5x-lite train configs/pretrain/t5_1_1_xl.py --data.directory DIR \
        --data.vocabulary spiece.model --workdir gs://BUCKET/t5_1_1_xl
    t5x-lite plan configs/pretrain/t5_1_1_xl.py --topology v5e:8x8
"""

import dataclasses

from configs.pretrain.t5_1_1_base import experiment as base
from t5x_lite.core.sharding import MeshConfig
from t5x_lite.models.published import t5_1_1_xl

experiment = dataclasses.replace(
    base,
    model=t5_1_1_xl(dropout_rate=0.0, remat="full", unroll=1),
    data=dataclasses.replace(base.data, batch_size=2048),
    checkpoints=dataclasses.replace(base.checkpoints, minutes=30.0),
    mesh=MeshConfig(data=-1, fsdp=16),
)
