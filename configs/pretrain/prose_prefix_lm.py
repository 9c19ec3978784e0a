"""Pretrain a small prefix language model on the text of configs/pretrain/prose.py.

The model is from configs/pretrain/prose_lm.py, with bidirectional attention to the inputs. A row
has two chunks of text, each split at a random position.

Command:
    t5x-lite train configs/pretrain/prose_prefix_lm.py --data.directory DIR \
        --data.vocabulary spiece.model --workdir WORKDIR
    t5x-lite plan configs/pretrain/prose_prefix_lm.py --topology v5e:2x2

The paper's prefix LM objective for an encoder-decoder (Raffel et al. 2020, section 3.3.1) is
another task for configs/pretrain/prose.py:
    t5x-lite train configs/pretrain/prose.py --data.task tasks.text:prefix_lm \
        --data.inputs-length 256 --data.targets-length 256 --data.directory DIR \
        --data.vocabulary spiece.model --workdir WORKDIR
"""

import dataclasses

from configs.pretrain.prose_lm import experiment as causal
from t5x_lite import layouts
from t5x_lite.data.config import Data

experiment = dataclasses.replace(
    causal,
    model=causal.model.replace(prefix=True),
    data=Data(
        task="tasks.text:prefix_lm",
        layout=layouts.PrefixLM(),
        vocabulary="spiece.model",
        batch_size=12,
        inputs_length=144,
        targets_length=144,
    ),
)
