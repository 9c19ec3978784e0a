"""The baseline on all tasks and C4 at once (Raffel et al. 2020, section 3.5; tables 11 and 12).

In proportion to their examples, each task as K = 2^19 examples at most; C4 by the baseline's
denoising; 2^19 + 2^18 steps, as many as pretraining and fine-tuning have together. Each task is
reported with the checkpoint that is best on its validation set, measured on 500 examples of each
while training goes on. Targets have 512 tokens, those of summaries and translations, which are
decoded by beam search.

DATA holds glue, super_glue, squad, cnn_dailymail, wmt and c4, or is where TensorFlow Datasets are.

Command; configs/paper/README.md has the rows of both tables:
    t5x-lite train configs/paper/multi_task.py --data.directory DATA \
        --data.vocabulary spiece.model --workdir WORKDIR
    t5x-lite evaluate WORKDIR/config.json --checkpoint WORKDIR --output OUT \
        --evaluation.best-per-task True --evaluation.max-examples None
    t5x-lite plan configs/paper/multi_task.py --topology v5e:4x4
"""

import dataclasses

from configs.finetune.paper import DECODING
from configs.pretrain.t5_base_paper import experiment as base
from t5x_lite.config import Checkpoints, Evaluation
from t5x_lite.data.mixing import Mixing

experiment = dataclasses.replace(
    base,
    data=dataclasses.replace(
        base.data,
        task="tasks.mixtures:all_proportional",
        mixing=Mixing(maximum=2**19),
        targets_length=512,
    ),
    steps=2**19 + 2**18,
    checkpoints=Checkpoints(period=5000, keep=1, best="validation/*/score"),
    evaluation=Evaluation(
        period=5000,
        loss=False,
        max_examples=500,
        max_decode_length=512,
        batch_size=128,
        per_task=DECODING,
    ),
)
