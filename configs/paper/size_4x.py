"""Pretrain the T5 paper's baseline with about 4 times the parameters (Raffel et al. 2020, 3.6).

This is for table 13: the widths of BERT-large and 32 layers in each stack. All other settings are
the baseline's, configs/pretrain/t5_base_paper.py. Rematerialization keeps only the inputs of a
layer.

Command:
    t5x-lite train configs/paper/size_4x.py --data.directory C4 \
        --data.vocabulary spiece.model --workdir WORKDIR
    t5x-lite plan configs/paper/size_4x.py --topology v5e:4x4
"""

import dataclasses

from configs.pretrain.t5_base_paper import experiment as base
from t5x_lite.models.published import t5_base_4x

experiment = dataclasses.replace(base, model=t5_base_4x(dropout_rate=0.1, remat="full"))
