"""Fine-tune the model of configs/tiny_pretrain.py on all of GLUE as one mixture, as in glue.py.

A first test of the mixture on a CPU: 1.7 million parameters, rows of 128 tokens. Exclude missing
tasks with --data.mixing.leave-out. Training evaluates 500 examples of each task; `evaluate` uses
all examples, and writes the files for GLUE's server.

Command:
    t5x-lite train configs/finetune/glue_tiny.py --data.directory GLUE \
        --data.vocabulary VOCABULARY --init PRETRAINED --workdir WORKDIR
    t5x-lite evaluate configs/finetune/glue_tiny.py --checkpoint WORKDIR --output OUT \
        --evaluation.best-per-task True --evaluation.max-examples None \
        --data.directory GLUE --data.vocabulary VOCABULARY
"""

import dataclasses

from configs.finetune.glue import experiment as glue
from configs.tiny_pretrain import experiment as pretraining
from t5x_lite.config import Checkpoints, Evaluation

experiment = dataclasses.replace(
    glue,
    model=pretraining.model.replace(dropout_rate=0.1),
    data=dataclasses.replace(glue.data, batch_size=16, inputs_length=128, targets_length=16),
    steps=2000,
    checkpoints=Checkpoints(period=500, keep=2, best="validation/*/score"),
    evaluation=Evaluation(
        period=500, max_batches=16, max_examples=500, batch_size=64, max_decode_length=8
    ),
)
