"""Pretrain DeBERTaV3 base: detect replaced tokens, with embeddings shared by GDES.

From He et al. 2021 (arXiv:2111.09543): 8,192 rows of 512 tokens, 500,000 steps, Adam at 6e-4 with
b2 0.98 and eps 1e-6, 10,000 steps of warm-up and linear decay, weight decay 0.01, gradients clipped
at 1, a generator of half the depth with an enhanced mask decoder, a weight of 50, 15 % masks, all
of them [MASK]; the generator is updated first, then the discriminator. (The released code has other
defaults: 256 rows, 1e-4, a weight of 10.) The vocabulary is the release's, where [MASK] is 128000.
Our choices: packed rows, bfloat16, and microbatches of 256 rows.

Command; spm.model is the release's SentencePiece model:
    t5x-lite train configs/pretrain/deberta_v3_base.py --data.directory DIR \
        --data.vocabulary spm.model --workdir WORKDIR
    t5x-lite plan configs/pretrain/deberta_v3_base.py --topology v5e:16x16
"""

import dataclasses

from configs.pretrain.retromae_base import experiment as retromae
from t5x_lite.models.published import deberta_v3_base, deberta_v3_generator
from t5x_lite.objectives.electra import Electra
from t5x_lite.optim.config import AdamW, Linear

experiment = dataclasses.replace(
    retromae,
    model=deberta_v3_base(),
    objective=Electra(
        generator=deberta_v3_generator(deberta_v3_base()),
        sharing="gdes",
        head="deberta",
        mask_id=128_000,
        mask_fraction=1.0,
    ),
    data=dataclasses.replace(retromae.data, vocabulary="spm.model", batch_size=8192, pack=True),
    optimizer=AdamW(
        schedule=Linear(peak=6e-4, total_steps=500_000, warmup_steps=10_000),
        b2=0.98,
        eps=1e-6,
        weight_decay=0.01,
        clip_norm=1.0,
    ),
    steps=500_000,
    epochs=None,
    microbatches=32,
)
