"""Fine-tune an encoder such as BERT base on a task of SuperGLUE, with a head on the [CLS] state.

The recipe is from configs/finetune/encoder_glue.py with SuperGLUE's files, for ten epochs.
`t5x-lite glue --benchmark super_glue` trains all tasks. These tasks have two texts:

    --data.task tasks.super_glue:boolq      question, passage
    --data.task tasks.super_glue:cb         premise, hypothesis
    --data.task tasks.super_glue:rte        premise, hypothesis
    --data.task tasks.super_glue:multirc    passage and question, answer
    --data.task tasks.super_glue:wic        word and sentence, sentence
    --data.task tasks.super_glue:wsc        text with *pronoun*, noun
    --data.task tasks.super_glue:record     passage, query with an entity

A query of ReCoRD has a row for each entity of its passage, and the most probable entity is the
answer: `evaluation.max_examples` counts queries. If a row is too long, the passage is truncated and
the query stays complete. BERT's maximum row length is --data.inputs-length 512.

`evaluate --output OUT` writes the predictions on the test split for the benchmark's server.

Command:
    t5x-lite import hf bert-base-uncased work/bert_base
    t5x-lite train configs/finetune/encoder_super_glue.py --init work/bert_base --model init \
        --data.directory SUPERGLUE --data.vocabulary work/bert_base/files/vocabulary \
        --workdir WORKDIR
    t5x-lite evaluate WORKDIR/config.json --checkpoint WORKDIR --output OUT
"""

import dataclasses

from configs.finetune.encoder_glue import experiment as glue
from t5x_lite.config import Checkpoints, Evaluation
from t5x_lite.optim.config import AdamW, Linear

experiment = dataclasses.replace(
    glue,
    data=dataclasses.replace(
        glue.data, task="tasks.super_glue:cb", batch_size=16, inputs_length=256
    ),
    # CB's 250 examples, ten times; other tasks take more steps.
    optimizer=AdamW(
        schedule=Linear(peak=2e-5, total_steps=160, warmup_steps=16), eps=1e-6, clip_norm=1.0
    ),
    steps=160,
    epochs=10.0,
    checkpoints=Checkpoints(period=16),
    evaluation=Evaluation(period=16),
)
