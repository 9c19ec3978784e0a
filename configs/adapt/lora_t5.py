"""Train LoRA on the T5 of configs/pretrain/prose.py, on SST-2 or another text-to-text task.

The settings are from RoBERTa base in Hu et al. 2021 (arXiv:2106.09685, table 9): rank 8 on
queries and values, alpha 8, and AdamW at 5e-4 with linear decay, without weight decay on the small
matrices. For another T5, replace `base.model` by the model of its config.

Command:
    t5x-lite train configs/adapt/lora_t5.py --init PRETRAINED --data.directory GLUE \
        --data.vocabulary spiece.model --workdir WORKDIR
    --data.task tasks.super_glue:rte --data.inputs-length 256      RTE
    --adapters.add 'sst2 = lora(r=16, alpha=16, sites=(".*attention/.*", "mlp/.*"))'
"""

import dataclasses

from configs.finetune.sst2 import experiment as base
from t5x_lite.adapters.config import Adapters
from t5x_lite.optim.config import AdamW, Linear

experiment = dataclasses.replace(
    base,
    adapters=Adapters(add=("task = lora(r=8, alpha=8)",)),
    optimizer=AdamW(
        schedule=Linear(peak=5e-4, total_steps=3000, warmup_steps=180), weight_decay=0.0
    ),
)
