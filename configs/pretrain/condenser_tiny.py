"""Pretrain the BERT of configs/pretrain/bert_tiny.py for retrieval, by Condenser.

Rows are packed: each document has its own [CLS]. To start from a masked language model: --init
WORKDIR_OF_BERT_TINY. With --objective.late-mlm False, the late hidden states have no separate loss.

Command:
    t5x-lite train configs/pretrain/condenser_tiny.py --data.directory DIR \
        --data.vocabulary vocab.txt --workdir WORKDIR
    t5x-lite plan configs/pretrain/condenser_tiny.py --topology v5e:2x2
"""

import dataclasses

from configs.pretrain.bert_tiny import experiment as bert
from t5x_lite.objectives.retromae import Condenser

experiment = dataclasses.replace(bert, objective=Condenser(mask_id=103))
