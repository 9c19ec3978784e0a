"""Pretrain the BERT of configs/pretrain/bert_tiny.py for retrieval, by coCondenser.

A row has two spans of a document. To start from a Condenser with its head: --init
WORKDIR_OF_CONDENSER_TINY.

Command:
    t5x-lite train configs/pretrain/cocondenser_tiny.py --data.directory DIR \
        --data.vocabulary vocab.txt --workdir WORKDIR
    t5x-lite plan configs/pretrain/cocondenser_tiny.py --topology v5e:2x2
"""

import dataclasses

from configs.pretrain.bert_tiny import experiment as bert
from t5x_lite import layouts
from t5x_lite.objectives.retromae import CoCondenser

experiment = dataclasses.replace(
    bert,
    objective=CoCondenser(mask_id=103),
    data=dataclasses.replace(
        bert.data, task="tasks.encoder:spans", layout=layouts.Spans(), pack=False
    ),
)
