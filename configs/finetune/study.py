"""Fine-tune the model of configs/pretrain/study.py on JSONL files of {"text", "label"}.

Command:
    t5x-lite train configs/finetune/study.py --data.directory DIR --data.vocabulary VOCABULARY \
        --data.columns.labels positive negative --init PRETRAINED --workdir WORKDIR
"""

import dataclasses

from configs.pretrain.study import experiment as pretraining
from t5x_lite.config import Checkpoints, Evaluation
from t5x_lite.data.config import Data
from t5x_lite.data.preprocessors import Columns
from t5x_lite.optim.config import Adafactor, Constant

experiment = dataclasses.replace(
    pretraining,
    model=pretraining.model.replace(dropout_rate=0.1),
    data=Data(
        task="tasks.files:classify",
        vocabulary="vocabulary",
        columns=Columns(inputs="text: {text}", targets="{label}", labels=("0", "1"), quoting=False),
        batch_size=32,
        inputs_length=128,
        targets_length=8,
        pack=False,
    ),
    optimizer=Adafactor(schedule=Constant(value=3e-3)),
    steps=600,
    checkpoints=Checkpoints(period=600, keep=1),
    evaluation=Evaluation(period=150, batch_size=64, max_decode_length=8, loss=False),
)
