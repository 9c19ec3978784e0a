"""Train a small bi-encoder on the scores of a teacher, based on contrastive_tiny.py.

SCORED contains the output of `t5x-lite score-pairs`: passages with "pos_scores" and "neg_scores".

Command:
    t5x-lite score-pairs --checkpoint work/ranker --input mined/train.jsonl \
        --output SCORED/train.jsonl
    t5x-lite train configs/finetune/distill_tiny.py --init work/retriever \
        --data.directory SCORED --data.vocabulary vocab.txt --workdir WORKDIR
"""

import dataclasses

from configs.finetune.contrastive_tiny import experiment as contrastive
from t5x_lite import layouts
from t5x_lite.objectives.m3 import Distill

experiment = dataclasses.replace(
    contrastive,
    objective=Distill(temperature=0.05, pooling="mean"),
    data=dataclasses.replace(
        contrastive.data,
        layout=layouts.Groups(negatives=7, positives="sample", teacher=True),
        batch_size=16,
    ),
)
