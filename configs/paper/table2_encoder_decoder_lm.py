"""Pretrain "encoder-decoder, LM" of table 2 (Raffel et al. 2020, section 3.2.3).

The model is the baseline's, with 2P parameters and cost M. Text is split at a random position into
inputs and targets. To fine-tune it, use configs/finetune/paper.py, glue.py or super_glue.py.

Command, with C4 in a format of tasks/c4.py:
    t5x-lite train configs/paper/table2_encoder_decoder_lm.py --data.directory C4 \
        --data.vocabulary spiece.model --workdir WORKDIR
"""

import dataclasses

from configs.pretrain.t5_base_paper import experiment as base

experiment = dataclasses.replace(
    base, data=dataclasses.replace(base.data, task="tasks.c4:prefix_lm", targets_length=512)
)
