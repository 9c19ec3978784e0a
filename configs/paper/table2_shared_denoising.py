"""Pretrain "encoder-decoder, shared, denoising" of table 2 (Raffel et al. 2020, section 3.2).

Encoder and decoder share their P parameters, at the baseline's cost M. To fine-tune it, use
configs/finetune/paper.py, glue.py or super_glue.py with --model.share-layers True.

Command, with C4 in a format of tasks/c4.py:
    t5x-lite train configs/paper/table2_shared_denoising.py --data.directory C4 \
        --data.vocabulary spiece.model --workdir WORKDIR
"""

import dataclasses

from configs.pretrain.t5_base_paper import experiment as base
from t5x_lite.models.published import t5_base_shared

experiment = dataclasses.replace(base, model=t5_base_shared(dropout_rate=0.1))
