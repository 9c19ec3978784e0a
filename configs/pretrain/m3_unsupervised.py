"""Train the second stage of BGE-M3: contrastive, on pairs in 194 languages, only the dense vector.

From Chen et al. 2024 (arXiv:2402.03216): queries of at most 512 and passages of at most 8,192
tokens, the passages of the whole batch as negatives, 25,000 steps at 5e-5, warm-up over a tenth of
the steps, weight decay 0.01, and batches by length with table 9's sizes, which are for 96 devices.
The temperature is not published; here it is 0.02, as in fine-tuning. Pairs are JSON lines {"query",
"pos"}; a parallel corpus may have this format, too.

The results of dense layers and of attention are stored for the backward pass, for which a chip of
95 GiB has room. Layers run in a loop: each length of a batch is a program of its own, and
straight-line code of 24 layers takes long to compile.

Command; STAGE_1 is the work directory of m3_retromae.py:
    t5x-lite train configs/pretrain/m3_unsupervised.py --init STAGE_1 --data.directory PAIRS \
        --data.vocabulary LONG/files/vocabulary --workdir WORKDIR
    t5x-lite plan configs/pretrain/m3_unsupervised.py --topology v5p:2x4x4
"""

import dataclasses

from configs.pretrain.m3_retromae import LENGTH, MODEL
from t5x_lite import layouts
from t5x_lite.config import Checkpoints, Evaluation, Experiment
from t5x_lite.data.config import Bucketed, Data
from t5x_lite.objectives.contrastive import bge
from t5x_lite.optim.config import AdamW, Linear

EDGES = (500, 1000, 2000, 3000, 4000, 5000, 6000, 7000, LENGTH)
ROWS = (67_200, 54_720, 37_248, 27_648, 21_504, 17_280, 15_072, 12_288, 9_984)
"""Table 9: the global batch of each length."""

experiment = Experiment(
    model=dataclasses.replace(MODEL, remat="products", unroll=1),
    objective=bge(),
    data=Data(
        task="tasks.pairs:jsonl",
        layout=layouts.Groups(),
        vocabulary="work/xlmr_long/files/vocabulary",
        batches=Bucketed(dict(zip(EDGES, ROWS, strict=True))),
        batch_size=ROWS[-1],
        inputs_length=512,
        targets_length=LENGTH,
        pack=False,
    ),
    optimizer=AdamW(
        schedule=Linear(peak=5e-5, total_steps=25_000, warmup_steps=2_500),
        weight_decay=0.01,
        clip_norm=1.0,
    ),
    steps=25_000,
    tokens_per_part=65_536,
    compute_dtype="bfloat16",
    log_period=100,
    checkpoints=Checkpoints(period=500, keep=3),
    evaluation=Evaluation(period=1000, max_batches=4, task_metrics=False),
)
