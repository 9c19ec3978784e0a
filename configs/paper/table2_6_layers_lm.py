"""Table 2, "encoder-decoder, 6 layers, LM" (Raffel et al. 2020, section 3.2.3).

The model of table2_6_layers_denoising.py, with the text of table2_encoder_decoder_lm.py. Fine-tune
it by configs/finetune/paper.py, glue.py or super_glue.py with --model.num-encoder-layers 6
--model.num-decoder-layers 6.

Command, with C4 (tasks/c4.py says in which forms):
    t5x-lite train configs/paper/table2_6_layers_lm.py --data.directory C4 \
        --data.vocabulary spiece.model --workdir WORKDIR
"""

import dataclasses

from configs.paper.table2_encoder_decoder_lm import experiment as base
from t5x_lite.models.published import t5_base_6_layers

experiment = dataclasses.replace(base, model=t5_base_6_layers(dropout_rate=0.1))
