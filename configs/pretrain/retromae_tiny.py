"""Pretrain the BERT of configs/pretrain/bert_tiny.py for retrieval, by RetroMAE.

The decoder is the enhanced decoder. A row has one document, because it has one [CLS]. To start from
a masked language model: --init WORKDIR_OF_BERT_TINY.

Command:
    t5x-lite train configs/pretrain/retromae_tiny.py --data.directory DIR \
        --data.vocabulary vocab.txt --workdir WORKDIR
    t5x-lite plan configs/pretrain/retromae_tiny.py --topology v5e:2x2
"""

import dataclasses

from configs.pretrain.bert_tiny import experiment as bert
from t5x_lite.objectives.retromae import RetroMAE

experiment = dataclasses.replace(
    bert,
    objective=RetroMAE(mask_id=103),
    data=dataclasses.replace(bert.data, pack=False),
)
