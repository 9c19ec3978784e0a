"""Table 2, "prefix LM, denoising": inputs are seen both ways (Raffel et al. 2020, section 3.2.3).

P parameters, the cost M. Inputs and targets of the baseline's noise stand one behind the other, EOS
behind each; the loss is that of the targets. Fine-tune it by configs/finetune/paper_prefix_lm.py.

Command, with C4 (tasks/c4.py says in which forms):
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
