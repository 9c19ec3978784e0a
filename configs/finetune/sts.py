"""Train a sentence encoder on STS-B: the cosine of two sentences predicts their grade (SBERT).

Grades are from 0 to 5, so the scale is 5. The files are GLUE's STS-B/{train,dev}.tsv.

Command:
    t5x-lite train configs/finetune/sts.py --init work/bert_base --data.directory GLUE \
        --data.vocabulary work/bert_base/files/vocabulary --workdir WORKDIR
"""

from t5x_lite import layouts
from t5x_lite.config import Checkpoints, Evaluation, Experiment
from t5x_lite.data.config import Data
from t5x_lite.models.published import bert_base
from t5x_lite.objectives.contrastive import CosineRegression
from t5x_lite.optim.config import AdamW, Linear

experiment = Experiment(
    model=bert_base(),
    objective=CosineRegression(scale=5.0, pooling="mean"),
    data=Data(
        task="tasks.pairs:stsb",
        layout=layouts.Groups(teacher=True),
        vocabulary="work/bert_base/files/vocabulary",
        batch_size=16,
        inputs_length=128,
        targets_length=128,
        pack=False,
    ),
    optimizer=AdamW(schedule=Linear(peak=2e-5, total_steps=1_440, warmup_steps=144), clip_norm=1.0),
    steps=1_440,
    checkpoints=Checkpoints(period=360),
    evaluation=Evaluation(period=360, task_metrics=False),
)
