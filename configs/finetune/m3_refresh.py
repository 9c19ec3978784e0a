"""Train the third stage of BGE-M3 with hard negatives that are mined again during training.

The recipe of m3.py has fixed negatives. Here, the dense vectors of every 1,000th step's checkpoint
retrieve new negatives (`data.refresh`). Batches are by length: the longest sampled passage of a row
determines its batch. The period and the lag are our choice. Retrieved passages have no ids in the
data, so known positives are not masked; `refresh` removes positives instead.

Command; `refresh` runs next to `train`, on separate devices:
    t5x-lite cache configs/finetune/m3_refresh.py --data.directory PAIRS \
        --data.vocabulary LONG/files/vocabulary --output CACHE
    t5x-lite train configs/finetune/m3_refresh.py --init STAGE_2 --data.cache CACHE \
        --data.vocabulary LONG/files/vocabulary --workdir work/m3_refresh
    t5x-lite refresh work/m3_refresh --passages CORPUS.jsonl
"""

import dataclasses

from configs.finetune.m3 import experiment as m3
from t5x_lite.data.config import Refresh

experiment = dataclasses.replace(
    m3,
    data=dataclasses.replace(
        m3.data,
        layout=dataclasses.replace(m3.data.layout, known_positives=0),
        refresh=Refresh(period=1_000, top=200, directory="work/m3_refresh/refresh"),
    ),
)
