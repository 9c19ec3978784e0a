"""Pretrain BERT base for retrieval by Condenser.

From Gao & Callan 2021 (arXiv:2104.08253) and its code: start from BERT base; Wikipedia and books, a
head of 2 layers that skips from layer 6 of 12, the late loss, 15 % masks of whole words, 8 epochs,
AdamW at 1e-4, warm-up over a tenth of the steps, linear decay, weight decay 0.01, 16-bit numbers.
The code does not set length and batch. Our choices: 1,024 rows of 128 tokens; steps as in
retromae_base.py; bfloat16; two microbatches, because the batch does not fit on 16 chips of a v5e.
--data.pack True packs several short segments into a row.

Command; BERT is the output of `t5x-lite import hf` for bert-base-uncased, with its masked-LM head:
    t5x-lite train configs/pretrain/condenser_base.py --init BERT --data.directory DIR \
        --data.vocabulary vocab.txt --workdir WORKDIR
    t5x-lite plan configs/pretrain/condenser_base.py --topology v5e:4x4
"""

import dataclasses

from configs.pretrain.retromae_base import experiment as retromae
from t5x_lite.objectives.retromae import Condenser

experiment = dataclasses.replace(
    retromae,
    objective=Condenser(mask_id=103, head_layers=2, skip_from=6),
    data=dataclasses.replace(retromae.data, batch_size=1024, inputs_length=128),
    microbatches=2,
)
