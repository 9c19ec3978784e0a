"""Fine-tune a prefix language model on SQuAD as in the T5 paper (Raffel et al. 2020, 3.2.1).

The recipe is from configs/finetune/paper_lm.py, which lists commands for other tasks. Attention
to the inputs, up to "target:", is bidirectional, and the loss covers only the target. The model is
from table 2, pretrained by configs/paper/table2_prefix_lm_denoising.py or table2_prefix_lm_lm.py.

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
