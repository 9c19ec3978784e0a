"""Fine-tune T5 on SuperGLUE and DPR as one mixture, in proportion to the numbers of examples.

The recipe is from configs/finetune/glue.py. ReCoRD's answers need more decoding steps.

Command:
    t5x-lite train configs/finetune/super_glue.py --data.directory SUPERGLUE \
        --data.vocabulary spiece.model --init PRETRAINED --workdir WORKDIR
    t5x-lite evaluate configs/finetune/super_glue.py --checkpoint WORKDIR --output OUT \
        --evaluation.best-per-task True --data.directory SUPERGLUE --data.vocabulary spiece.model
"""

import dataclasses

from configs.finetune.paper import experiment as paper

experiment = dataclasses.replace(
    paper,
    data=dataclasses.replace(paper.data, task="tasks.mixtures:super_glue", targets_length=62),
    checkpoints=dataclasses.replace(paper.checkpoints, best="validation/*/score"),
    evaluation=dataclasses.replace(paper.evaluation, max_decode_length=32),
)
