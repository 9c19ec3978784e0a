"""A small bi-encoder that learns from a teacher's scores, beside configs/finetune/contrastive_tiny.

SCORED holds what `t5x-lite score-pairs` wrote: "pos_scores" and "neg_scores" beside the passages.

Command:
    t5x-lite score-pairs --checkpoint work/ranker --input mined/train.jsonl \
        --output SCORED/train.jsonl
    t5x-lite train configs/finetune/distill_tiny.py --init work/retriever \
        --data.directory SCORED --data.vocabulary vocab.txt --workdir WORKDIR
"""

import dataclasses

from configs.finetune.contrastive_tiny import experiment as contrastive
from t5x_lite import layouts
from t5x_lite.objectives.ranker import Distill

experiment = dataclasses.replace(
    contrastive,
    objective=Distill(temperature=0.05, pooling="mean"),
    data=dataclasses.replace(
        contrastive.data,
        layout=layouts.Groups(negatives=7, positives="sample", teacher=True),
        batch_size=16,
    ),
)
