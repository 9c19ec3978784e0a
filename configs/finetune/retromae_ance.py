"""Fine-tune RetroMAE on MS MARCO by ANCE: hard negatives are mined again during training.

The recipe is from retromae_msmarco.py, with new negatives every 2,000 steps: the 200 passages
nearest to a query, without its positives (Xiong et al. 2021, arXiv:2007.00808, `data.refresh`). The
first 4,000 steps use the cache's BM25 negatives. The period and the lag are our choice. Retrieved
passages have no ids in the data, so known positives are not masked; `refresh` removes positives
instead.

Command; `refresh` runs next to `train`, on separate devices:
    t5x-lite cache configs/finetune/retromae_ance.py --data.directory MARCO_PAIRS \
        --data.vocabulary work/retromae/files/vocabulary --output CACHE
    t5x-lite train configs/finetune/retromae_ance.py --init work/retromae --data.cache CACHE \
        --data.vocabulary work/retromae/files/vocabulary --workdir work/retromae_ance \
        --tokens-per-part 16384
    t5x-lite refresh work/retromae_ance --passages MARCO_CORPUS.jsonl
"""

import dataclasses

from configs.finetune.retromae_msmarco import experiment as msmarco
from t5x_lite.data.config import Refresh

experiment = dataclasses.replace(
    msmarco,
    data=dataclasses.replace(
        msmarco.data,
        layout=dataclasses.replace(msmarco.data.layout, known_positives=0),
        refresh=Refresh(period=2_000, top=200, directory="work/retromae_ance/refresh"),
    ),
)
