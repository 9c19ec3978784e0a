"""Pretrains the BERT of configs/pretrain/bert_tiny.py for retrieval, by coCondenser.

Two spans of a document are a row. To go on from a Condenser, head and all: --init
WORKDIR_OF_CONDENSER_TINY.

Command:
    t5x-lite train configs/pretrain/cocondenser_tiny.py --data.directory DIR \
        --data.vocabulary vocab.txt --workdir WORKDIR
    t5x-lite plan configs/pretrain/cocondenser_tiny.py --topology v5e:2x2
"""

import dataclasses

from configs.pretrain.bert_tiny import experiment as bert
from t5x_lite import layouts
from t5x_lite.objectives.condenser import CoCondenser

experiment = dataclasses.replace(
    bert,
    objective=CoCondenser(mask_id=103),
    data=dataclasses.replace(
        bert.data, task="tasks.encoder:spans", layout=layouts.Spans(), pack=False
    ),
)
