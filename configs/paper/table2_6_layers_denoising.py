"""Pretrain "encoder-decoder, 6 layers, denoising" of table 2 (Raffel et al. 2020, section 3.2).

The model has half of the baseline's layers in each stack: P parameters, cost M/2. To fine-tune it,
use configs/finetune/paper.py, glue.py or super_glue.py with --model.num-encoder-layers 6
--model.num-decoder-layers 6.

Command, with C4 in a format of tasks/c4.py:
    t5x-lite train configs/paper/table2_6_layers_denoising.py --data.directory C4 \
        --data.vocabulary spiece.model --workdir WORKDIR
"""

import dataclasses

from configs.pretrain.t5_base_paper import experiment as base
from t5x_lite.models.published import t5_base_6_layers

experiment = dataclasses.replace(base, model=t5_base_6_layers(dropout_rate=0.1))
