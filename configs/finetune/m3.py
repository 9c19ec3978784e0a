"""Train the third stage of BGE-M3: three heads, on labelled pairs and by self-distillation.

From Chen et al. 2024 (arXiv:2402.03216): 7 mined negatives per query; batches by length with table
9's sizes, which are for 24 devices; about 6,000 steps with all three heads before
self-distillation; segments of long passages shuffled with a probability of 0.2 %. From the released
example: 1e-5, warm-up over a tenth of the steps, temperature 0.02. The number of steps is not
published; 30,000 is our choice, and so are blocks of 16 rows for all scores except the dense score.
--objective.distillation m3_kd uses a teacher's scores (`t5x-lite score-pairs`), as in the released
example.

Command; STAGE_2 is the work directory of m3_unsupervised.py, PAIRS has {"query", "pos", "neg"}:
    t5x-lite train configs/finetune/m3.py --init STAGE_2 --data.directory PAIRS \
        --data.vocabulary LONG/files/vocabulary --workdir WORKDIR
"""

from configs.pretrain.m3_retromae import LENGTH, MODEL
from t5x_lite import layouts
from t5x_lite.config import Checkpoints, Evaluation, Experiment
from t5x_lite.data.config import Bucketed, Data
from t5x_lite.objectives.m3 import m3
from t5x_lite.optim.config import AdamW, Linear

EDGES = (500, 1000, 2000, 3000, 4000, 5000, 6000, 7000, LENGTH)
ROWS = (1152, 768, 480, 432, 336, 336, 288, 240, 192)
"""Table 9: the global batch of each length."""

experiment = Experiment(
    model=MODEL,
    objective=m3(distill_from=6_000, score_block=16, specials=(0, 1, 2, 3)),
    data=Data(
        task="tasks.pairs:jsonl",
        layout=layouts.Groups(
            negatives=7, positives="sample", known_positives=4, shuffle_segments=0.002
        ),
        vocabulary="work/xlmr_long/files/vocabulary",
        batches=Bucketed(dict(zip(EDGES, ROWS, strict=True))),
        batch_size=ROWS[-1],
        inputs_length=512,
        targets_length=LENGTH,
        pack=False,
    ),
    optimizer=AdamW(
        schedule=Linear(peak=1e-5, total_steps=30_000, warmup_steps=3_000),
        weight_decay=0.01,
        clip_norm=1.0,
    ),
    steps=30_000,
    tokens_per_part=66_048,
    compute_dtype="bfloat16",
    log_period=100,
    checkpoints=Checkpoints(period=1000, keep=3),
    evaluation=Evaluation(period=1000, max_batches=4, task_metrics=False),
)
