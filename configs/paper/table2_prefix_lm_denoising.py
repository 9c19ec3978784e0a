"""Pretrain "prefix LM, denoising" of table 2 (Raffel et al. 2020, section 3.2.3).

The model has P parameters and cost M. Inputs and targets of the baseline's denoising are
concatenated, each ending in EOS. Attention to the inputs is bidirectional, and the loss covers only
the targets. To fine-tune it, use configs/finetune/paper_prefix_lm.py.

Command, with C4 in a format of tasks/c4.py:
    t5x-lite train configs/paper/table2_prefix_lm_denoising.py --data.directory C4 \
        --data.vocabulary spiece.model --workdir WORKDIR
"""

import dataclasses

from configs.paper.table2_lm_denoising import experiment as base
from t5x_lite import layouts

experiment = dataclasses.replace(
    base,
    model=base.model.replace(prefix=True),
    data=dataclasses.replace(base.data, layout=layouts.PrefixLM()),
)
