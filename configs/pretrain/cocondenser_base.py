"""Pretrain a Condenser of base size on spans of documents: coCondenser.

From Gao & Callan 2022 (arXiv:2108.05540) and its code: start from a Condenser with its head; two
spans of each document, 2,048 documents per step by gradient caching, 8 epochs of the target corpus,
AdamW at 1e-4, warm-up over a tenth of the steps, linear decay, weight decay 0.01, 16-bit numbers.
Our choices: spans of 128 tokens, microbatches of 256 documents, bfloat16. If the documents can be
counted, the epochs determine the steps; otherwise there are 12,500 steps, 8 epochs of MS MARCO's
3.2 million documents. A span is compared with all spans of the batch. More --microbatches need less
memory and do not change the loss; a smaller --data.batch-size changes it.

Command; CONDENSER is a run of configs/pretrain/condenser_base.py, or the output of
`t5x-lite import hf --skip-from 6` for a Condenser with its head:
    t5x-lite train configs/pretrain/cocondenser_base.py --init CONDENSER --data.directory DIR \
        --data.vocabulary vocab.txt --workdir WORKDIR
    t5x-lite plan configs/pretrain/cocondenser_base.py --topology v5e:4x4
"""

import dataclasses

from configs.pretrain.retromae_base import experiment as retromae
from t5x_lite import layouts
from t5x_lite.objectives.retromae import CoCondenser
from t5x_lite.optim.config import Linear

experiment = dataclasses.replace(
    retromae,
    objective=CoCondenser(mask_id=103, head_layers=2, skip_from=6),
    data=dataclasses.replace(
        retromae.data,
        task="tasks.encoder:spans",
        layout=layouts.Spans(),
        batch_size=2048,
        inputs_length=128,
    ),
    optimizer=dataclasses.replace(
        retromae.optimizer,
        schedule=Linear(peak=1e-4, total_steps=12_500, warmup_steps=1250),
    ),
    steps=12_500,
    microbatches=8,
)
