"""Pretrain DeBERTaV3 xsmall: 12 layers of width 384, 71M parameters, 22M of them in the layers.

From microsoft/DeBERTa experiments/language_model/rtd.sh and rtd_xsmall.json: a generator of 6
layers, 64 rows of 512 tokens and 3e-4. All other settings are from deberta_v3_large.py.

Command; spm.model is the release's SentencePiece model:
    t5x-lite train configs/pretrain/deberta_v3_xsmall.py --data.directory DIR \
        --data.vocabulary spm.model --workdir WORKDIR
    t5x-lite plan configs/pretrain/deberta_v3_xsmall.py --topology v5e:2x2
"""

import dataclasses

from configs.pretrain.deberta_v3_large import experiment as large
from t5x_lite.models.published import deberta_v3_generator, deberta_v3_xsmall

experiment = dataclasses.replace(
    large,
    model=deberta_v3_xsmall(),
    objective=dataclasses.replace(
        large.objective, generator=deberta_v3_generator(deberta_v3_xsmall())
    ),
    data=dataclasses.replace(large.data, batch_size=64),
    optimizer=dataclasses.replace(
        large.optimizer, schedule=dataclasses.replace(large.optimizer.schedule, peak=3e-4)
    ),
)
