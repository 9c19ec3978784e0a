"""Pretrain "encoder-decoder, denoising" of table 2, the baseline (Raffel et al. 2020, section 3.2).

The model has 2P parameters and cost M. The config equals configs/pretrain/t5_base_paper.py, on
which the other rows of the table are based. To fine-tune it, use configs/finetune/paper.py, glue.py
or super_glue.py.

Command, with C4 in a format of tasks/c4.py:
    t5x-lite train configs/paper/table2_encoder_decoder_denoising.py --data.directory C4 \
        --data.vocabulary spiece.model --workdir WORKDIR
"""

from configs.pretrain.t5_base_paper import experiment

__all__ = ["experiment"]
