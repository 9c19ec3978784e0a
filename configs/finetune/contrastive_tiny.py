"""Train the BERT of configs/pretrain/bert_tiny.py as a retrieval encoder with in-batch negatives.

The data are queries and relevant passages: objects {"query", "pos", "neg"} in *.jsonl or, with
--data.task tasks.pairs:beir, a directory in BEIR's format with qrels/train.tsv. With --data.task
tasks.pairs:same_text, dropout makes pairs of single texts, as in SimCSE; set equal lengths for
query and passage. --data.layout.negatives is the number of a query's "neg" in a row. The passages
of the whole batch are negatives, also with microbatches.

Command:
    t5x-lite train configs/finetune/contrastive_tiny.py --init work/bert \
        --data.directory DIR --data.vocabulary vocab.txt --workdir WORKDIR
"""

from configs.pretrain.bert_tiny import experiment as bert
from t5x_lite import layouts
from t5x_lite.config import Checkpoints, Evaluation, Experiment
from t5x_lite.data.config import Data
from t5x_lite.objectives.contrastive import Contrastive
from t5x_lite.optim.config import AdamW, Linear

experiment = Experiment(
    model=bert.model,
    objective=Contrastive(temperature=0.05, pooling="mean"),
    data=Data(
        task="tasks.pairs:jsonl",
        layout=layouts.Groups(),
        vocabulary="vocab.txt",
        batch_size=64,
        inputs_length=64,
        targets_length=128,
        pack=False,
    ),
    optimizer=AdamW(schedule=Linear(peak=1e-4, total_steps=1000, warmup_steps=100), clip_norm=1.0),
    steps=1000,
    checkpoints=Checkpoints(period=500),
    evaluation=Evaluation(period=250, max_batches=16, task_metrics=False),
)
