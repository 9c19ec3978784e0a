"""Fine-tune a language model on SQuAD as in the T5 paper (Raffel et al. 2020, section 3.2.1).

An example is one text, "... context: ... target: Denver Broncos". At inference, the words up to
"target:" are given. The loss covers the full text, as in the paper; --data.layout.loss-on-inputs
False excludes the inputs. Only the target ends in EOS. All other settings, and the target length,
are from configs/finetune/paper.py. The model is from table 2, pretrained by
configs/paper/table2_lm_denoising.py or table2_lm_lm.py. A vocabulary of bytes needs
--data.layout.separator " target: ", with a space at the end.

Command:
    t5x-lite train configs/finetune/paper_lm.py --data.directory SQUAD \
        --data.vocabulary spiece.model --init PRETRAINED --workdir WORKDIR
    t5x-lite train configs/finetune/paper_lm.py --data.task tasks.mixtures:glue \
        --data.targets-length 84 --checkpoints.best 'validation/*/score' \
        --evaluation.max-decode-length 16 --data.directory GLUE \
        --data.vocabulary spiece.model --init PRETRAINED --workdir WORKDIR
    t5x-lite train configs/finetune/paper_lm.py --data.task tasks.wmt:ende --data.directory tfds \
        --data.targets-length 512 --evaluation.max-decode-length 512 \
        --checkpoints.best validation/bleu --data.vocabulary spiece.model --init PRETRAINED \
        --workdir WORKDIR
    t5x-lite evaluate WORKDIR/config.json --checkpoint WORKDIR --step best --output OUT
"""

import dataclasses

from configs.finetune.paper import experiment as paper
from t5x_lite import layouts
from t5x_lite.models.published import lm_v1
from t5x_lite.objectives.likelihood import LanguageModel

experiment = dataclasses.replace(
    paper,
    model=lm_v1(dropout_rate=0.1),
    objective=LanguageModel(),
    data=dataclasses.replace(paper.data, layout=layouts.ConcatLM(separator=" target:")),
)
