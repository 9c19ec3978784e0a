"""Pretrain ELECTRA large: 335M parameters, 25 % masks, a generator of a fourth of the width.

From table 6 of Clark et al. 2020 (arXiv:2003.10555) and google-research/electra,
configure_pretraining.py: 2,048 rows of 512 tokens, 400,000 steps, 2e-4. All other settings are from
electra_base.py. The released ELECTRA-Large is the paper's "1.75M", with 1,750,000 steps: --steps
1750000 --optimizer.schedule.then.total-steps 1750000. Our choice: 8 microbatches.

Command:
    t5x-lite train configs/pretrain/electra_large.py --data.directory DIR \
        --data.vocabulary vocab.txt --workdir WORKDIR
    t5x-lite plan configs/pretrain/electra_large.py --topology v5e:8x8
"""

import dataclasses

from configs.pretrain.electra_base import experiment as base
from t5x_lite.models.published import electra_generator, electra_large
from t5x_lite.optim.config import Linear, Warmup

STEPS = 400_000

experiment = dataclasses.replace(
    base,
    model=electra_large(),
    objective=dataclasses.replace(
        base.objective, generator=electra_generator(electra_large()), ratio=0.25
    ),
    data=dataclasses.replace(base.data, batch_size=2048),
    optimizer=dataclasses.replace(
        base.optimizer,
        schedule=Warmup(steps=10_000, then=Linear(peak=2e-4, total_steps=STEPS)),
    ),
    steps=STEPS,
    microbatches=8,
)
