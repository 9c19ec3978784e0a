"""Pretrain ELECTRA small: 14M parameters, rows of 128 tokens, on one GPU or a few TPU chips.

From table 6 of Clark et al. 2020 (arXiv:2003.10555) and google-research/electra,
configure_pretraining.py: d_model 256, embeddings of 128, a generator of a fourth of the width, 15 %
masks, 128 rows of 128 tokens, 1,000,000 steps, 5e-4. All other settings are from
electra_base.py. The released ELECTRA-Small is the paper's "Small++", with 4,000,000 steps and a
generator of full width.

Command:
    t5x-lite train configs/pretrain/electra_small.py --data.directory DIR \
        --data.vocabulary vocab.txt --workdir WORKDIR
    t5x-lite plan configs/pretrain/electra_small.py --topology v5e:2x2
"""

import dataclasses

from configs.pretrain.electra_base import experiment as base
from t5x_lite.models.published import electra_generator, electra_small
from t5x_lite.optim.config import Linear, Warmup

STEPS = 1_000_000

experiment = dataclasses.replace(
    base,
    model=electra_small(),
    objective=dataclasses.replace(base.objective, generator=electra_generator(electra_small())),
    data=dataclasses.replace(base.data, batch_size=128, inputs_length=128),
    optimizer=dataclasses.replace(
        base.optimizer,
        schedule=Warmup(steps=10_000, then=Linear(peak=5e-4, total_steps=STEPS)),
    ),
    steps=STEPS,
)
