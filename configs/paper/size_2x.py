"""Pretrain the T5 paper's baseline with about twice the parameters (Raffel et al. 2020, 3.6).

This is for table 13: the widths of BERT-large and 16 layers in each stack. All other settings are
the baseline's, configs/pretrain/t5_base_paper.py. Rematerialization keeps only the inputs of a
layer. For "2x size, 2x training steps", use --steps 1048576.

Command:
    t5x-lite train configs/paper/size_2x.py --data.directory C4 \
        --data.vocabulary spiece.model --workdir WORKDIR
    t5x-lite plan configs/paper/size_2x.py --topology v5e:4x4
"""

import dataclasses

from configs.pretrain.t5_base_paper import experiment as base
from t5x_lite.models.published import t5_base_2x

experiment = dataclasses.replace(base, model=t5_base_2x(dropout_rate=0.1, remat="full"))
