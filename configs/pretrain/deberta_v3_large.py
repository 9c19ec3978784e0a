"""Pretrain DeBERTaV3 large, 434M parameters, with the settings of the release's script.

From microsoft/DeBERTa experiments/language_model/rtd.sh and rtd_large.json: 24 layers, a generator
of 12 layers, 256 rows of 512 tokens, 1,000,000 steps, 1e-4, 10,000 steps of warm-up and linear
decay. From the defaults of that code: Adam with b2 0.999 and eps 1e-6, weight decay 0.01, gradients
clipped at 1, and a weight of 10 for replaced tokens. The configs xsmall and small follow this
config. deberta_v3_base.py has the paper's settings instead, with 8,192 rows per step; a comparison
of sizes needs one recipe for all of them.

Command; spm.model is the release's SentencePiece model:
    t5x-lite train configs/pretrain/deberta_v3_large.py --data.directory DIR \
        --data.vocabulary spm.model --workdir WORKDIR
    t5x-lite plan configs/pretrain/deberta_v3_large.py --topology v5e:8x8
"""

import dataclasses

from configs.pretrain.deberta_v3_base import experiment as base
from t5x_lite.models.published import deberta_v3_generator, deberta_v3_large
from t5x_lite.optim.config import Linear

experiment = dataclasses.replace(
    base,
    model=deberta_v3_large(),
    objective=dataclasses.replace(
        base.objective,
        generator=deberta_v3_generator(deberta_v3_large()),
        discriminator_weight=10.0,
    ),
    data=dataclasses.replace(base.data, batch_size=256),
    optimizer=dataclasses.replace(
        base.optimizer,
        schedule=Linear(peak=1e-4, total_steps=1_000_000, warmup_steps=10_000),
        b2=0.999,
    ),
    steps=1_000_000,
    microbatches=1,
)
