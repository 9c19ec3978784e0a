"""Pretrain ELECTRA base: detect replaced tokens, sampled by a generator of a third of the width.

From Clark et al. 2020 (arXiv:2003.10555, table 6) and its code: 256 rows of 512 tokens, 766,000
steps, 15 % masks, a weight of 50, Adam at 2e-4 with eps 1e-6 and without bias correction, 10,000
steps of warm-up multiplied with a linear decay from the first step, weight decay 0.01, gradients
clipped at 1. Generator and discriminator share the embeddings. Our choices: packed rows, bfloat16.

Command:
    t5x-lite train configs/pretrain/electra_base.py --data.directory DIR \
        --data.vocabulary vocab.txt --workdir WORKDIR
    t5x-lite plan configs/pretrain/electra_base.py --topology v5e:4x4
"""

import dataclasses

from configs.pretrain.retromae_base import experiment as retromae
from t5x_lite.models.published import electra_base, electra_generator
from t5x_lite.objectives.electra import Electra
from t5x_lite.optim.config import AdamW, Linear, Warmup

experiment = dataclasses.replace(
    retromae,
    model=electra_base(),
    objective=Electra(generator=electra_generator(electra_base()), mask_id=103),
    data=dataclasses.replace(retromae.data, pack=True),
    optimizer=AdamW(
        schedule=Warmup(steps=10_000, then=Linear(peak=2e-4, total_steps=766_000)),
        eps=1e-6,
        weight_decay=0.01,
        bias_correction=False,
        clip_norm=1.0,
    ),
    steps=766_000,
    epochs=None,
)
