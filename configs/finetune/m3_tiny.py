"""Train BGE-M3's three heads on a small BERT with your own pairs (docs/guides/bge_m3.md).

The special tokens that are excluded from lexical weights are the uncased BERT's.

Command; ENCODER is a run of configs/pretrain/retromae_tiny.py, PAIRS has {"query", "pos"}:
    t5x-lite train configs/finetune/m3_tiny.py --init ENCODER --data.directory PAIRS --workdir m3
"""

from configs.pretrain.retromae_tiny import experiment as retromae
from t5x_lite import layouts
from t5x_lite.config import Checkpoints, Evaluation, Experiment
from t5x_lite.data.config import Data
from t5x_lite.objectives.m3 import m3
from t5x_lite.optim.config import AdamW, Linear

experiment = Experiment(
    model=retromae.model,
    objective=m3(temperature=0.05, distill_from=50, score_block=8, specials=(0, 100, 101, 102)),
    data=Data(
        task="tasks.pairs:jsonl",
        layout=layouts.Groups(),
        vocabulary=retromae.data.vocabulary,
        batch_size=16,
        inputs_length=32,
        targets_length=64,
        pack=False,
    ),
    optimizer=AdamW(schedule=Linear(peak=1e-3, total_steps=200, warmup_steps=20), clip_norm=1.0),
    steps=200,
    checkpoints=Checkpoints(period=100),
    evaluation=Evaluation(period=100, max_batches=4, task_metrics=False),
)
