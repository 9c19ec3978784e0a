"""Pretrain mDeBERTaV3 base: DeBERTaV3 on text in many languages, with one cache per language.

He et al. 2021 (arXiv:2111.09543) train on CC100, 2.5 TB in 100 languages, with a vocabulary of
250,000 tokens, and otherwise as DeBERTaV3 base (configs/pretrain/deberta_v3_base.py), from which
the settings are. The sampling rates of the languages are not published; XLM-R's are q ~ p^0.3, here
temperature 1 / 0.3. The vocabulary is the release's, where [MASK] is 250101, or your own, trained
on a sample with the same rates.

Write a cache of each language's text and mix the caches, so that a position in the data is a
number:
    for l in en sw; do t5x-lite cache configs/pretrain/mdeberta_v3_base.py --output CACHE/$l \
        --data.directory CC100/$l --data.vocabulary spm.model; done
    t5x-lite train configs/pretrain/mdeberta_v3_base.py --data.cache CACHE/en CACHE/sw \
        --data.vocabulary spm.model --workdir WORKDIR
    t5x-lite plan configs/pretrain/mdeberta_v3_base.py --topology v5e:16x16
"""

import dataclasses

from configs.pretrain.deberta_v3_base import experiment as deberta
from t5x_lite.data.mixing import Mixing
from t5x_lite.models.published import deberta_v3_generator, mdeberta_v3_base

experiment = dataclasses.replace(
    deberta,
    model=mdeberta_v3_base(),
    objective=dataclasses.replace(
        deberta.objective, generator=deberta_v3_generator(mdeberta_v3_base()), mask_id=250_101
    ),
    data=dataclasses.replace(deberta.data, mixing=Mixing(temperature=1 / 0.3)),
)
