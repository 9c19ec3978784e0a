"""Train the T5 paper's baseline on all tasks and C4 (Raffel et al. 2020, section 3.5).

This is for tables 11 and 12. Tasks are sampled in proportion to their numbers of examples, at most
K = 2^19; C4 has the baseline's denoising. The 2^19 + 2^18 steps equal pretraining plus fine-tuning.
Each task is reported with the checkpoint that is best on its validation set, evaluated on 500
examples of each task during training. Targets have 512 tokens, as needed by summaries and
translations, which are decoded by beam search.

DATA contains glue, super_glue, squad, cnn_dailymail, wmt and c4, or is a directory of TensorFlow
Datasets.

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
