"""Train RetroMAE's last stage: distill a cross-encoder into a bi-encoder (RetroMAE's README).

Training starts from the model that was fine-tuned with mined negatives, on the pairs that
`score-pairs` scored. The loss is from the published code: the divergence divided by the group
size, plus 1e-4 times InfoNCE. Larger groups improve the result.

Command:
    t5x-lite score-pairs --checkpoint work/cross_encoder --input mined.jsonl \
        --output SCORED/train.jsonl
    t5x-lite train configs/finetune/retromae_distill.py --init work/retromae_stage2 \
        --data.directory SCORED --data.vocabulary work/retromae/files/vocabulary --workdir WORKDIR \
        --tokens-per-part 16384
"""

import dataclasses

from configs.finetune.retromae_msmarco import experiment as msmarco
from t5x_lite import layouts
from t5x_lite.objectives.m3 import retromae_distill

_GROUP = 16

experiment = dataclasses.replace(
    msmarco,
    objective=retromae_distill(group=_GROUP),
    data=dataclasses.replace(
        msmarco.data,
        layout=layouts.Groups(
            negatives=_GROUP - 1, negatives_top=200, positives="sample", teacher=True
        ),
    ),
    epochs=None,
)
