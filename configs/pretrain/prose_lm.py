"""Pretrain a small causal language model on the text of configs/pretrain/prose.py.

The model has 7.9M parameters without embeddings: 12 layers of d_model 256, where the T5 of prose.py
has 6 + 6 (9.4M with cross-attention). A step has as much text as in prose.py: 3,740 steps are one
pass over 12.8M tokens.

Command:
    t5x-lite train configs/pretrain/prose_lm.py --data.directory DIR \
        --data.vocabulary spiece.model --workdir WORKDIR
    t5x-lite plan configs/pretrain/prose_lm.py --topology v5e:2x2
"""

import dataclasses

from configs.pretrain.prose import experiment as t5
from t5x_lite import layouts
from t5x_lite.data.config import Data
from t5x_lite.models.lm import LMConfig
from t5x_lite.objectives.likelihood import LanguageModel

experiment = dataclasses.replace(
    t5,
    model=LMConfig(
        vocab_size=32128,
        d_model=256,
        d_kv=64,
        d_ff=512,
        num_heads=4,
        num_layers=12,
        dropout_rate=0.0,
        unroll=True,
    ),
    objective=LanguageModel(),
    data=Data(
        task="tasks.text:language_model",
        layout=layouts.LM(),
        vocabulary="spiece.model",
        batch_size=12,
        targets_length=286,
    ),
)
