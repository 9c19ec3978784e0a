"""BGE-M3's third stage with hard negatives that are searched again while training goes on.

The recipe of m3.py. Its negatives are mined once; here the dense vectors of the checkpoint of every
1,000th step find them again (`data.refresh`), beside batches by length: a row goes by the longest
passage that is drawn for it. The period and the lag are ours. Found passages have no ids in the
data, so known positives are not masked; `refresh` removes answers.

Command; `refresh` runs next to `train`, on devices of its own:
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
