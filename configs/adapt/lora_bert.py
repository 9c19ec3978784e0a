"""Train LoRA and a classifier on an encoder such as BERT base, for a task of GLUE.

The optimizer is from encoder_glue.py with LoRA's rate, 5e-4, without layer decay, also for the
classifier. BERT's parameters are frozen, and may be stored in bfloat16: `--adapters.base-dtype
bfloat16`.

Command:
    t5x-lite import hf google-bert/bert-base-uncased work/bert_base
    t5x-lite train configs/adapt/lora_bert.py --init work/bert_base --data.directory GLUE \
        --data.vocabulary work/bert_base/files/vocabulary --workdir WORKDIR
    --data.task tasks.super_glue:rte --data.inputs-length 256      RTE
"""

import dataclasses

from configs.finetune.encoder_glue import experiment as base
from t5x_lite.adapters.config import Adapters
from t5x_lite.optim.config import Linear

experiment = dataclasses.replace(
    base,
    adapters=Adapters(add=("task = lora(r=8, alpha=8)",)),
    optimizer=dataclasses.replace(
        base.optimizer,
        schedule=Linear(peak=5e-4, total_steps=6300, warmup_steps=630),
        weight_decay=0.0,
    ),
)
