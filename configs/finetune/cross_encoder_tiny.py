"""Train a cross-encoder from the BERT of configs/pretrain/bert_tiny.py on your mined pairs.

The data are objects {"query", "pos", "neg"} in *.jsonl, such as the output of `t5x-lite mine`. The
model reads a query with one positive and seven of its negatives.

Command:
    t5x-lite train configs/finetune/cross_encoder_tiny.py --init work/bert \
        --data.directory MINED --data.vocabulary vocab.txt --workdir WORKDIR
    t5x-lite rerank --checkpoint WORKDIR --input RUN --beir DIR --output RERANKED
"""

from configs.pretrain.bert_tiny import experiment as bert
from t5x_lite import layouts
from t5x_lite.config import Checkpoints, Evaluation, Experiment
from t5x_lite.data.config import Data
from t5x_lite.objectives.m3 import Ranker
from t5x_lite.optim.config import AdamW, Linear

experiment = Experiment(
    model=bert.model,
    objective=Ranker(),
    data=Data(
        task="tasks.pairs:jsonl",
        layout=layouts.Ranked(negatives=7, positives="sample"),
        vocabulary="vocab.txt",
        batch_size=16,
        inputs_length=32,
        targets_length=128,
        pack=False,
    ),
    optimizer=AdamW(schedule=Linear(peak=3e-4, total_steps=500, warmup_steps=50), clip_norm=1.0),
    steps=500,
    checkpoints=Checkpoints(period=250),
    evaluation=Evaluation(period=250, max_batches=16, task_metrics=False),
)
