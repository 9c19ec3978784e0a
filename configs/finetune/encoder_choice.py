"""Fine-tune an encoder such as BERT base on multiple choice: COPA, RACE, SWAG or custom files.

A question is read with each of its choices, and a head on the [CLS] state scores each choice:

    --data.task tasks.choices:race --data.layout.num 4 --data.inputs-length 512 --data.directory DIR
    --data.task tasks.choices:swag --data.layout.num 4 --data.directory DIR
    --data.task tasks.choices:jsonl --data.layout.num 4 --data.directory DIR

`evaluate --output OUT` writes the predictions on COPA's test split for the benchmark's server.

Command:
    t5x-lite import hf bert-base-uncased work/bert_base
    t5x-lite train configs/finetune/encoder_choice.py --init work/bert_base \
        --data.directory SUPERGLUE --data.vocabulary work/bert_base/files/vocabulary \
        --workdir WORKDIR
    t5x-lite evaluate WORKDIR/config.json --checkpoint WORKDIR --output OUT
"""

import dataclasses

from configs.finetune.encoder_super_glue import experiment as super_glue
from t5x_lite import layouts
from t5x_lite.objectives.task_heads import Choose

experiment = dataclasses.replace(
    super_glue,
    objective=Choose(),
    data=dataclasses.replace(
        super_glue.data,
        task="tasks.super_glue:copa",
        layout=layouts.Choices(),
        inputs_length=64,
    ),
)
