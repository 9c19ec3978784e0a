"""Table 2, "encoder-decoder, shared, denoising" (Raffel et al. 2020, section 3.2).

Encoder and decoder have one set of parameters: P of them, at the baseline's cost M. Fine-tune it by
configs/finetune/paper.py, glue.py or super_glue.py with --model.share-layers True.

Command, with C4 (tasks/c4.py says in which forms):
    t5x-lite train configs/paper/table2_shared_denoising.py --data.directory C4 \
        --data.vocabulary spiece.model --workdir WORKDIR
"""

import dataclasses

from configs.pretrain.t5_base_paper import experiment as base
from t5x_lite.models.published import t5_base_shared

experiment = dataclasses.replace(base, model=t5_base_shared(dropout_rate=0.1))
