"""Table 2, "language model, denoising": a causal decoder alone (Raffel et al. 2020, section 3.2.3).

P parameters, the cost M. Inputs and targets of the baseline's noise stand one behind the other, EOS
behind each, and the model learns both, as section 3.2.1 has it; --data.layout.loss-on-inputs False
leaves the inputs out of the loss. Fine-tune it by configs/finetune/paper_lm.py.

Command, with C4 (tasks/c4.py says in which forms):
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
