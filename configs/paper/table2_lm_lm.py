"""Table 2, "language model, LM": a causal decoder alone on plain text (Raffel et al. 2020, 3.2.3).

P parameters, the cost M. A row is 512 tokens of text, every one of which is learned. Fine-tune it
by configs/finetune/paper_lm.py.

Command, with C4 (tasks/c4.py says in which forms):
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
