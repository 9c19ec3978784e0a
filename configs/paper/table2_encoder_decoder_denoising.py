"""Table 2, "encoder-decoder, denoising": the paper's baseline (Raffel et al. 2020, section 3.2).

2P parameters, the cost M. It is configs/pretrain/t5_base_paper.py, from which the other rows of the
table are made. Fine-tune it by configs/finetune/paper.py, or glue.py and super_glue.py there.

Command, with C4 (tasks/c4.py says in which forms):
    t5x-lite train configs/paper/table2_encoder_decoder_denoising.py --data.directory C4 \
        --data.vocabulary spiece.model --workdir WORKDIR
"""

from configs.pretrain.t5_base_paper import experiment

__all__ = ["experiment"]
