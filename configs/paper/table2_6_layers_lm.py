"""Pretrain "encoder-decoder, 6 layers, LM" of table 2 (Raffel et al. 2020, section 3.2.3).

The model is from table2_6_layers_denoising.py, on the text of table2_encoder_decoder_lm.py. To
fine-tune it, use configs/finetune/paper.py, glue.py or super_glue.py with
--model.num-encoder-layers 6 --model.num-decoder-layers 6.

Command, with C4 in a format of tasks/c4.py:
    t5x-lite train configs/paper/table2_6_layers_lm.py --data.directory C4 \
        --data.vocabulary spiece.model --workdir WORKDIR
"""

import dataclasses

from configs.paper.table2_encoder_decoder_lm import experiment as base
from t5x_lite.models.published import t5_base_6_layers

experiment = dataclasses.replace(base, model=t5_base_6_layers(dropout_rate=0.1))
