"""Fine-tune T5 on CNN/Daily Mail, summaries of news.

The recipe is from configs/finetune/paper.py, with the beam search of the paper's last models
(section 3.7: 4 beams, length penalty 0.6). CNN_DM contains {train,validation,test}.jsonl with
"article" and "highlights", or is a directory of TensorFlow Datasets.

Command:
    t5x-lite train configs/finetune/summarization.py --data.directory CNN_DM \
        --data.vocabulary spiece.model --init PRETRAINED --workdir WORKDIR
    t5x-lite evaluate WORKDIR/config.json --checkpoint WORKDIR --step best --output OUT
"""

import dataclasses

from configs.finetune.paper import experiment as paper

experiment = dataclasses.replace(
    paper,
    data=dataclasses.replace(paper.data, task="tasks.summarize:cnn_dailymail", targets_length=512),
    checkpoints=dataclasses.replace(paper.checkpoints, best="validation/rouge2"),
    evaluation=dataclasses.replace(
        paper.evaluation, max_decode_length=512, num_beams=4, length_penalty=0.6
    ),
)
