"""Pretrains BERT base for retrieval by Condenser.

From Gao & Callan 2021 (arXiv:2104.08253) and its code: BERT base to begin with, Wikipedia and
books, a head of 2 layers that skips from layer 6 of 12, the late loss, 15 % masks of whole words,
8 epochs, AdamW at 1e-4, a warm-up over a tenth of the steps, linear decay, weight decay 0.01,
16-bit numbers. The code leaves length and batch open. Ours: rows of 128 tokens, 1,024 of them;
steps as in retromae_base.py; bfloat16, in two parts, since 16 chips of a v5e do not hold one.
--data.pack True puts several short pieces in a row.

Command; BERT is what `t5x-lite import hf` made of bert-base-uncased, whose masked-LM head goes on:
    t5x-lite train configs/pretrain/condenser_base.py --init BERT --data.directory DIR \
        --data.vocabulary vocab.txt --workdir WORKDIR
    t5x-lite plan configs/pretrain/condenser_base.py --topology v5e:4x4
"""

import dataclasses

from configs.pretrain.retromae_base import experiment as retromae
from t5x_lite.objectives.condenser import Condenser

experiment = dataclasses.replace(
    retromae,
    objective=Condenser(mask_id=103, head_layers=2, skip_from=6),
    data=dataclasses.replace(retromae.data, batch_size=1024, inputs_length=128),
    microbatches=2,
)
