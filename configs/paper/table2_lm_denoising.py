"""Pretrain "language model, denoising" of table 2, a causal decoder (Raffel et al. 2020, 3.2.3).

The model has P parameters and cost M. Inputs and targets of the baseline's denoising are
concatenated, each ending in EOS, and the loss covers both, as in section 3.2.1;
--data.layout.loss-on-inputs False excludes the inputs. To fine-tune it, use
configs/finetune/paper_lm.py.

Command, with C4 in a format of tasks/c4.py:
    t5x-lite train configs/paper/table2_lm_denoising.py --data.directory C4 \
        --data.vocabulary spiece.model --workdir WORKDIR
"""

import dataclasses

from configs.pretrain.t5_base_paper import experiment as base
from t5x_lite import layouts
from t5x_lite.models.published import lm_v1
from t5x_lite.objectives.likelihood import LanguageModel

experiment = dataclasses.replace(
    base,
    model=lm_v1(dropout_rate=0.1),
    objective=LanguageModel(),
    data=dataclasses.replace(base.data, layout=layouts.ConcatLM()),
)
