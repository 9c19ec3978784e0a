"""Evaluate how well an encoder retrieves documents, zero-shot, without training.

All settings except the evaluation are from the checkpoint. DIR is in BEIR's format. The
checkpoint's objective defines how texts become vectors; without one, a vector is the mean of the
hidden states, normalized to length 1. To change this, use --evaluation.retrieval.pooling cls,
.normalize False, or .document-length 256 (tokens).

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
