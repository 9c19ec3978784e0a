"""Pretrain "language model, LM" of table 2, a causal decoder (Raffel et al. 2020, section 3.2.3).

The model has P parameters and cost M. A row is 512 tokens of plain text, and the loss covers all
tokens. To fine-tune it, use configs/finetune/paper_lm.py.

Command, with C4 in a format of tasks/c4.py:
    t5x-lite train configs/paper/table2_lm_lm.py --data.directory C4 \
        --data.vocabulary spiece.model --workdir WORKDIR
"""

import dataclasses

from configs.paper.table2_lm_denoising import experiment as base
from t5x_lite import layouts

experiment = dataclasses.replace(
    base,
    data=dataclasses.replace(
        base.data, task="tasks.c4:lm", layout=layouts.LM(), targets_length=512
    ),
)
