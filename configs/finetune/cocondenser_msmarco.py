"""Fine-tune coCondenser on MS MARCO: dot products of [CLS], groups of 8 (Gao and Callan 2022).

The recipe follows Tevatron. Stage 1 has BM25 negatives and trains for 3 epochs of 502,939 queries
in batches of 64: 23,576 steps. The model of stage 1 retrieves 200 passages for each query, and 30
of these are the negatives of stage 2. Stage 2 starts from the PRETRAINED weights again:
--data.directory MINED, --epochs 2.

Command:
    t5x-lite train configs/finetune/cocondenser_msmarco.py --init work/cocondenser \
        --data.directory MARCO_PAIRS --data.vocabulary work/cocondenser/files/vocabulary \
        --workdir WORKDIR --tokens-per-part 16384
"""

import dataclasses

from configs.finetune.retromae_msmarco import experiment as msmarco
from t5x_lite import layouts
from t5x_lite.optim.config import Linear

experiment = dataclasses.replace(
    msmarco,
    data=dataclasses.replace(
        msmarco.data,
        layout=layouts.Groups(negatives=7, negatives_top=30, positives="sample", known_positives=4),
        vocabulary="work/cocondenser/files/vocabulary",
        batch_size=64,
        targets_length=128,
    ),
    optimizer=dataclasses.replace(
        msmarco.optimizer, schedule=Linear(peak=5e-6, total_steps=23_576, warmup_steps=0)
    ),
    steps=23_576,
    epochs=3.0,
)
