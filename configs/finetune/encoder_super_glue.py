"""Fine-tunes BERT base, or another encoder, on a task of SuperGLUE by a head on its [CLS] state.

As configs/finetune/encoder_glue.py, with SuperGLUE's files. The tasks are those of two texts:

    --data.task tasks.super_glue:boolq --objective.num-classes 2      question, passage
    --data.task tasks.super_glue:cb --objective.num-classes 3         premise, hypothesis
    --data.task tasks.super_glue:rte --objective.num-classes 2        premise, hypothesis
    --data.task tasks.super_glue:multirc --objective.num-classes 2    passage and question, answer
    --data.task tasks.super_glue:wic --objective.num-classes 2        word and sentence, sentence
    --data.task tasks.super_glue:wsc --objective.num-classes 2        text with *pronoun*, noun
    --data.task tasks.super_glue:record --objective.num-classes 2     passage, query with an entity

A query of ReCoRD is a row for each entity of its passage, and the likeliest one is the answer:
`evaluation.max_examples` counts queries. A passage that is too long loses its end, and the query
stays whole; --data.inputs-length 512 is BERT's longest row.

`evaluate --output OUT` writes the answers to the test split for the benchmark's server.

Command:
    t5x-lite import hf bert-base-uncased work/bert_base
    t5x-lite train configs/finetune/encoder_super_glue.py --init work/bert_base \
        --data.directory SUPERGLUE --data.vocabulary work/bert_base/files/vocabulary \
        --workdir WORKDIR
    t5x-lite evaluate WORKDIR/config.json --checkpoint WORKDIR --output OUT
"""

import dataclasses

from configs.finetune.encoder_glue import experiment as glue
from t5x_lite.config import Checkpoints, Evaluation
from t5x_lite.objectives.classify import Classify
from t5x_lite.optim.config import AdamW
from t5x_lite.optim.schedules import Linear

experiment = dataclasses.replace(
    glue,
    objective=Classify(num_classes=3),
    data=dataclasses.replace(
        glue.data, task="tasks.super_glue:cb", batch_size=16, inputs_length=256
    ),
    # CB has 250 examples; the others take more steps.
    optimizer=AdamW(
        schedule=Linear(peak=2e-5, total_steps=500, warmup_steps=50), eps=1e-6, clip_norm=1.0
    ),
    steps=500,
    checkpoints=Checkpoints(period=100),
    evaluation=Evaluation(period=100),
)
