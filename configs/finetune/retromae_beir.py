"""Fine-tune RetroMAE for BEIR: MS MARCO in batches of 1,024, groups of 2 (RetroMAE's README).

The negatives are MS MARCO's official negatives. 10 epochs of 502,939 queries are 4,912 steps. The
model is then evaluated on BEIR's 18 sets without further training (`evaluate
--evaluation.retrieval`).

Command:
    t5x-lite train configs/finetune/retromae_beir.py --init work/retromae \
        --data.directory MARCO_PAIRS --data.vocabulary work/retromae/files/vocabulary \
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
        layout=layouts.Groups(negatives=1, positives="sample", known_positives=4),
        batch_size=1024,
        targets_length=144,
    ),
    optimizer=dataclasses.replace(
        msmarco.optimizer, schedule=Linear(peak=1e-5, total_steps=4_912, warmup_steps=0)
    ),
    steps=4_912,
    epochs=10.0,
)
