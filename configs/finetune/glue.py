"""Fine-tune T5 on all of GLUE as one mixture, in proportion to the tasks' numbers of examples.

The recipe is the paper's (Raffel et al. 2020, section 3.1.2): 2^18 steps of 128 x 512 tokens,
packed, at a constant learning rate of 1e-3, with a checkpoint every 5,000 steps. Each task is
reported with the checkpoint that is best on its validation set. `evaluate` writes the official
metrics, GLUE's average, and the files for GLUE's server.

Command:
    t5x-lite train configs/finetune/glue.py --data.directory GLUE \
        --data.vocabulary spiece.model --init PRETRAINED --workdir WORKDIR
    t5x-lite evaluate configs/finetune/glue.py --checkpoint WORKDIR --output OUT \
        --evaluation.best-per-task True --data.directory GLUE --data.vocabulary spiece.model
"""

import dataclasses

from configs.finetune.paper import experiment as paper

experiment = dataclasses.replace(
    paper,
    data=dataclasses.replace(paper.data, task="tasks.mixtures:glue", targets_length=84),
    checkpoints=dataclasses.replace(paper.checkpoints, best="validation/*/score"),
    evaluation=dataclasses.replace(paper.evaluation, max_decode_length=16),
)
