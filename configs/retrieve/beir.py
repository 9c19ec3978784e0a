"""Measures how an encoder retrieves documents, zero-shot, and nothing else; it trains nothing.

All but the evaluation is the checkpoint's. DIR is in BEIR's format. Texts become vectors as the
checkpoint's objective says, or by the mean of the states and length 1:
--evaluation.retrieval.pooling cls and .normalize False change it, .document-length 256 the tokens.

Command:
    t5x-lite evaluate configs/retrieve/beir.py --evaluation.retrieval.directory DIR \
        --checkpoint WORKDIR --output RESULTS
"""

import dataclasses

from configs.pretrain.bert_tiny import experiment as bert
from t5x_lite.config import Evaluation

experiment = dataclasses.replace(
    bert,
    evaluation=Evaluation(
        split="test",
        loss=False,
        task_metrics=False,
        batch_size=32,
    ),
)
