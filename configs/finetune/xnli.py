"""Fine-tune mDeBERTaV3 base on XNLI: train on English, evaluate in 15 languages (zero-shot).

The recipe is from configs/finetune/encoder_glue.py for MNLI: 3 epochs of 392,702 pairs in
batches of 32. He et al. 2021 (arXiv:2111.09543) report a mean of 79.8 over the languages. To train
on the 15 translations of MNLI, shuffled together, instead: --data.task
tasks.xnli:translate_train_all.

Command; ENCODER is the output of `t5x-lite import hf` for mdeberta-v3-base:
    t5x-lite train configs/finetune/xnli.py --init ENCODER --data.directory XNLI \
        --data.vocabulary ENCODER/files/vocabulary --workdir WORKDIR \
        --checkpoints.best validation/xnli_en/accuracy
    t5x-lite evaluate WORKDIR/config.json --checkpoint WORKDIR --step best --output OUT \
        --evaluation.split test
"""

import dataclasses

from configs.finetune.encoder_glue import experiment as glue
from t5x_lite.config import Checkpoints, Evaluation
from t5x_lite.models.published import mdeberta_v3_base
from t5x_lite.objectives.task_heads import Classify
from t5x_lite.optim.config import Linear

STEPS = 36_816

experiment = dataclasses.replace(
    glue,
    model=mdeberta_v3_base(),
    objective=Classify(num_classes=3, head="deberta"),
    data=dataclasses.replace(glue.data, task="tasks.xnli:zero_shot", inputs_length=256),
    optimizer=dataclasses.replace(
        glue.optimizer, schedule=Linear(peak=2e-5, total_steps=STEPS, warmup_steps=STEPS // 10)
    ),
    steps=STEPS,
    compute_dtype="bfloat16",
    checkpoints=Checkpoints(period=2_000),
    evaluation=Evaluation(period=2_000),
)
