"""Table 2, "prefix LM, LM": text in two parts (Raffel et al. 2020, section 3.2.3).

P parameters, the cost M. Text is split at a random place: its beginning is seen both ways, and its
end is learned. A row holds two texts of 512 tokens. Fine-tune it by
configs/finetune/paper_prefix_lm.py.

Command, with C4 (tasks/c4.py says in which forms):
    t5x-lite train configs/paper/table2_prefix_lm_lm.py --data.directory C4 \
        --data.vocabulary spiece.model --workdir WORKDIR
"""

import dataclasses

from configs.paper.table2_prefix_lm_denoising import experiment as base

experiment = dataclasses.replace(
    base, data=dataclasses.replace(base.data, task="tasks.c4:prefix_lm", targets_length=512)
)
