"""Fine-tune T5 on CNN/Daily Mail and WMT's German and French as one mixture.

The recipe is from configs/finetune/paper.py. DECODING sets the paper's decoding options of each
task. DIR contains cnn_dailymail and wmt, or is a directory of TensorFlow Datasets.

Command:
    t5x-lite train configs/finetune/large_supervised.py --data.directory DIR \
        --data.vocabulary spiece.model --init PRETRAINED --workdir WORKDIR
    t5x-lite evaluate WORKDIR/config.json --checkpoint WORKDIR --output OUT \
        --evaluation.best-per-task True
"""

import dataclasses

from configs.finetune.paper import DECODING
from configs.finetune.paper import experiment as paper

experiment = dataclasses.replace(
    paper,
    data=dataclasses.replace(
        paper.data, task="tasks.mixtures:large_supervised", targets_length=512
    ),
    checkpoints=dataclasses.replace(paper.checkpoints, best="validation/*/score"),
    evaluation=dataclasses.replace(paper.evaluation, per_task=DECODING),
)
