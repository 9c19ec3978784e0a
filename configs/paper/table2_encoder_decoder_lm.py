"""Table 2, "encoder-decoder, LM": the baseline's model (Raffel et al. 2020, section 3.2.3).

Text is split at a random place: its beginning is read, and its end is written. 2P parameters, the
cost M. Fine-tune it by configs/finetune/paper.py, glue.py or super_glue.py.

Command, with C4 (tasks/c4.py says in which forms):
    t5x-lite train configs/paper/table2_encoder_decoder_lm.py --data.directory C4 \
        --data.vocabulary spiece.model --workdir WORKDIR
"""

import dataclasses

from configs.pretrain.t5_base_paper import experiment as base

experiment = dataclasses.replace(
    base, data=dataclasses.replace(base.data, task="tasks.c4:prefix_lm", targets_length=512)
)
