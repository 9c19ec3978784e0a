"""Fine-tune an encoder such as BERT base on named entities: CoNLL-2003, or custom files.

A head predicts the tag of each word at the word's first token. The recipe is BERT's: rows of 128
tokens, batches of 32, 5e-5 with warm-up over a tenth of the steps, and four epochs of CoNLL-2003's
14,041 sentences. A longer sentence is truncated; the truncated words count as "O" in F1. CoNLL
contains the files eng.train, eng.testa and eng.testb; `tasks/tokens.py` lists other formats. For
other tags:

    --data.task tasks.tokens:jsonl --objective.num-classes 17

`evaluate --output OUT` writes the predictions on the test split in conlleval's format.

Command:
    t5x-lite import hf bert-base-cased work/bert_cased
    t5x-lite train configs/finetune/encoder_tokens.py --init work/bert_cased \
        --data.directory CONLL --data.vocabulary work/bert_cased/files/vocabulary \
        --workdir WORKDIR
    t5x-lite evaluate WORKDIR/config.json --checkpoint WORKDIR --evaluation.split test --output OUT
"""

import dataclasses

from configs.finetune.encoder_glue import experiment as glue
from t5x_lite import layouts
from t5x_lite.config import Checkpoints, Evaluation
from t5x_lite.models.published import bert_base
from t5x_lite.objectives.task_heads import TagTokens
from t5x_lite.optim.config import Linear

experiment = dataclasses.replace(
    glue,
    model=bert_base(vocab_size=28996),
    objective=TagTokens(num_classes=9),
    data=dataclasses.replace(glue.data, task="tasks.tokens:conll", layout=layouts.Tokens()),
    optimizer=dataclasses.replace(
        glue.optimizer, schedule=Linear(peak=5e-5, total_steps=1760, warmup_steps=176)
    ),
    steps=1760,
    epochs=4.0,
    checkpoints=Checkpoints(period=440, best="validation/f1"),
    evaluation=Evaluation(period=440),
)
