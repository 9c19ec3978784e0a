"""RetroMAE on MS MARCO: one encoder, dot products of [CLS], groups of 16 (RetroMAE's README).

502,939 queries in batches of 128 (8 GPUs with 16 each there), each with one of its passages and 15
of its hard negatives: first of BM25, then of the top 200 that the first model finds. 4 epochs are
15,717 steps. Passages are title and text, which stand in "pos" and "neg" as one.

Command:
    t5x-lite train configs/finetune/retromae_msmarco.py --init work/retromae \
        --data.directory MARCO_PAIRS --data.vocabulary work/retromae/files/vocabulary \
        --workdir WORKDIR --tokens-per-part 16384
"""

from t5x_lite import layouts
from t5x_lite.config import Checkpoints, Evaluation, Experiment
from t5x_lite.data.config import Data
from t5x_lite.models.published import bert_base
from t5x_lite.objectives.contrastive import retromae
from t5x_lite.optim.config import AdamW
from t5x_lite.optim.schedules import Linear

experiment = Experiment(
    model=bert_base(),
    objective=retromae(),
    data=Data(
        task="tasks.pairs:jsonl",
        layout=layouts.Groups(
            negatives=15, negatives_top=200, positives="sample", known_positives=4
        ),
        vocabulary="work/retromae/files/vocabulary",
        batch_size=128,
        inputs_length=32,
        targets_length=140,
        pack=False,
    ),
    optimizer=AdamW(schedule=Linear(peak=2e-5, total_steps=15_717, warmup_steps=0), clip_norm=1.0),
    steps=15_717,
    epochs=4.0,
    compute_dtype="bfloat16",
    checkpoints=Checkpoints(period=2_000),
    evaluation=Evaluation(period=2_000, task_metrics=False),
)
