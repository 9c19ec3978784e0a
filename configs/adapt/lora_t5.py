"""LoRA on the T5 of configs/pretrain/prose.py, on SST-2 or another task with T5's text and targets.

Rank 8 on queries and values, alpha 8, and AdamW at 5e-4 with a linear decay, as RoBERTa base is
tuned in Hu et al. 2021 (arXiv:2106.09685, table 9); no weight decay on the small matrices. Another
T5 has its own sizes: take the model of its config in place of `base.model`.

Command:
    t5x-lite train configs/adapt/lora_t5.py --init PRETRAINED --data.directory GLUE \
        --data.vocabulary spiece.model --workdir WORKDIR
    --data.task tasks.super_glue:rte --data.inputs-length 256      RTE
    --adapters.add 'sst2 = lora(r=16, alpha=16, sites=(".*attention/.*", "mlp/.*"))'
"""

import dataclasses

from configs.finetune.sst2 import experiment as base
from t5x_lite.adapters.config import Adapters
from t5x_lite.optim.config import AdamW
from t5x_lite.optim.schedules import Linear

experiment = dataclasses.replace(
    base,
    adapters=Adapters(add=("task = lora(r=8, alpha=8)",)),
    optimizer=AdamW(
        schedule=Linear(peak=5e-4, total_steps=3000, warmup_steps=180), weight_decay=0.0
    ),
)
