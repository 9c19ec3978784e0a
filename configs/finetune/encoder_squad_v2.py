"""Fine-tune BERT base on SQuAD 2.0: the answer is a span of the context, or does not exist.

The settings are the paper's (Devlin et al. 2019, section 4.3): 2 epochs of about 132,000 windows of
384 tokens, in batches of 48 at 5e-5. The metrics are the official script's: exact, f1, both
for questions with and without an answer, and the best threshold. OUT/submission/squad_v2.0 contains
the input files of the official script, with the predictions for the validation split. The first
evaluation below compares all thresholds, and the second evaluation uses the best threshold.

Command:
    t5x-lite train configs/finetune/encoder_squad_v2.py --init work/bert_base \
        --data.directory SQUAD --data.vocabulary work/bert_base/files/vocabulary --workdir WORKDIR
    t5x-lite evaluate WORKDIR/config.json --checkpoint WORKDIR --evaluation.null-threshold 1e9
    t5x-lite evaluate WORKDIR/config.json --checkpoint WORKDIR --output OUT \
        --evaluation.null-threshold BEST_F1_THRESH
"""

import dataclasses

from configs.finetune.encoder_squad import experiment as squad
from t5x_lite.optim.config import Linear

experiment = dataclasses.replace(
    squad,
    data=dataclasses.replace(squad.data, task="tasks.squad:squad_v2", batch_size=48),
    optimizer=dataclasses.replace(
        squad.optimizer, schedule=Linear(peak=5e-5, total_steps=5500, warmup_steps=550)
    ),
)
