"""Pretrain DeBERTaV3 small: 6 layers with base's width, 141M parameters.

The sizes, and a generator of 3 layers, are from rtd_small.json of microsoft/DeBERTa. Its rtd.sh has
no recipe for small from random weights, so the settings are from deberta_v3_large.py. To
continue from the release as rtd.sh does: --init CHECKPOINT --steps 100000
--optimizer.schedule.total-steps 100000 --optimizer.schedule.peak 5e-5.

Command; spm.model is the release's SentencePiece model:
    t5x-lite train configs/pretrain/deberta_v3_small.py --data.directory DIR \
        --data.vocabulary spm.model --workdir WORKDIR
    t5x-lite plan configs/pretrain/deberta_v3_small.py --topology v5e:4x4
"""

import dataclasses

from configs.pretrain.deberta_v3_large import experiment as large
from t5x_lite.models.published import deberta_v3_generator, deberta_v3_small

experiment = dataclasses.replace(
    large,
    model=deberta_v3_small(),
    objective=dataclasses.replace(
        large.objective, generator=deberta_v3_generator(deberta_v3_small())
    ),
)
