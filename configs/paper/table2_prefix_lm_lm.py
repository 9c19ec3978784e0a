"""Pretrain "prefix LM, LM" of table 2 (Raffel et al. 2020, section 3.2.3).

The model has P parameters and cost M. Text is split at a random position. Attention to the first
part is bidirectional, and the loss covers only the second part. A row has two texts of 512 tokens.
To fine-tune it, use configs/finetune/paper_prefix_lm.py.

Command, with C4 in a format of tasks/c4.py:
    t5x-lite train configs/paper/table2_prefix_lm_lm.py --data.directory C4 \
        --data.vocabulary spiece.model --workdir WORKDIR
"""

import dataclasses

from configs.paper.table2_prefix_lm_denoising import experiment as base

experiment = dataclasses.replace(
    base, data=dataclasses.replace(base.data, task="tasks.c4:prefix_lm", targets_length=512)
)
