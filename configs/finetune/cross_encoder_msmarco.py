"""Train a cross-encoder on MS MARCO, the teacher of RetroMAE's distillation (RetroMAE's README).

DeBERTaV3 base reads a query with each of 65 passages, up to 200 tokens together: a relevant
passage, and 64 of the top 200 passages of the bi-encoder. Batches of 16 queries (8 GPUs, two
accumulation steps) for 4 epochs of 502,939 queries are 125,735 steps. --microbatches divides the
batch by queries.

Command:
    t5x-lite train configs/finetune/cross_encoder_msmarco.py --init work/deberta_v3_base \
        --data.directory MINED_PAIRS --data.vocabulary work/deberta_v3_base/files/vocabulary \
        --workdir WORKDIR --microbatches 16
    t5x-lite rerank --checkpoint WORKDIR --input RUN --beir DIR --output RERANKED
    t5x-lite score-pairs --checkpoint WORKDIR --input pairs.jsonl --output scored.jsonl
"""

from t5x_lite import layouts
from t5x_lite.config import Checkpoints, Evaluation, Experiment
from t5x_lite.data.config import Data
from t5x_lite.models.published import deberta_v3_base
from t5x_lite.objectives.m3 import Ranker
from t5x_lite.optim.config import AdamW, Linear

experiment = Experiment(
    model=deberta_v3_base(),
    objective=Ranker(head="deberta"),
    data=Data(
        task="tasks.pairs:jsonl",
        layout=layouts.Ranked(negatives=64, negatives_top=200, positives="sample"),
        vocabulary="work/deberta_v3_base/files/vocabulary",
        batch_size=16,
        inputs_length=64,
        targets_length=200,
        pack=False,
    ),
    optimizer=AdamW(
        schedule=Linear(peak=1e-5, total_steps=125_735, warmup_steps=1_000), clip_norm=1.0
    ),
    steps=125_735,
    epochs=4.0,
    compute_dtype="bfloat16",
    checkpoints=Checkpoints(period=5_000),
    evaluation=Evaluation(period=5_000, task_metrics=False),
)
