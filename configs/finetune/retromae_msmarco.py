"""Fine-tune RetroMAE on MS MARCO: one encoder, dot products of [CLS], groups of 16 passages.

The recipe is from RetroMAE's README. Batches have 128 of 502,939 queries (there, 16 on each of 8
GPUs), each with one of its positives and 15 of its hard negatives. The negatives are first from
BM25, then from the top 200 of the first model. 4 epochs are 15,717 steps. A passage in "pos" and
"neg" is its title and text, joined.

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
from t5x_lite.optim.config import AdamW, Linear

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
