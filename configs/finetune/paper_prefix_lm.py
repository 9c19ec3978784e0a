"""The T5 paper's fine-tuning of a prefix language model (Raffel et al. 2020, 3.2.1), on SQuAD.

As configs/finetune/paper_lm.py, which has commands for other tasks. The inputs, up to "target:",
are seen both ways, and the loss is that of the target. The model is table 2's, pretrained by
configs/paper/table2_prefix_lm_denoising.py or table2_prefix_lm_lm.py.

Command:
    t5x-lite train configs/finetune/paper_prefix_lm.py --data.directory SQUAD \
        --data.vocabulary spiece.model --init PRETRAINED --workdir WORKDIR
    t5x-lite evaluate WORKDIR/config.json --checkpoint WORKDIR --step best --output OUT
"""

import dataclasses

from configs.finetune.paper_lm import experiment as causal
from t5x_lite import layouts

experiment = dataclasses.replace(
    causal,
    model=causal.model.replace(prefix=True),
    data=dataclasses.replace(causal.data, layout=layouts.PrefixLM(separator=" target:")),
)
