"""Pretrain the BERT of configs/pretrain/bert_tiny.py as ELECTRA's discriminator.

The generator has half the width, and a quarter of the weights in its layers; both models share the
embeddings. With --objective.sharing gdes, the embeddings are shared as in DeBERTaV3, and a step
updates first the generator and then the discriminator.

Command:
    t5x-lite train configs/pretrain/electra_tiny.py --data.directory DIR \
        --data.vocabulary vocab.txt --workdir WORKDIR
    t5x-lite plan configs/pretrain/electra_tiny.py --topology v5e:2x2
"""

import dataclasses

from configs.pretrain.bert_tiny import experiment as bert
from t5x_lite.objectives.electra import Electra
from t5x_lite.optim.config import AdamW, Linear, Warmup

experiment = dataclasses.replace(
    bert,
    objective=Electra(
        generator=bert.model.replace(embedding_size=128, d_model=64, d_ff=256, num_heads=1),
        mask_id=103,
    ),
    # As in ELECTRA's code: the rate decays during the warm-up, too.
    optimizer=AdamW(
        schedule=Warmup(steps=1000, then=Linear(peak=5e-4, total_steps=20_000)),
        eps=1e-6,
        bias_correction=False,
        clip_norm=1.0,
    ),
)
