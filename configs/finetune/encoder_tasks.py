"""Fine-tune BERT base on several tasks of GLUE at once, with a separate head for each task.

Each task has a cache, and a number in data.adapter_of that selects its head in objective.tasks:
NAME=1 is a score, NAME=3 three classes. The caches are mixed in proportion to their sizes
(docs/guides/mixtures.md). --data.task "" is needed, because the config's task, SST-2, has no cache.
After training, each task is evaluated with the head of the same name.

Command:
    for task in mnli stsb rte; do t5x-lite cache configs/finetune/encoder_glue.py \
        --data.task tasks.glue:$task --data.directory GLUE --data.vocabulary vocab.txt \
        --splits train --output CACHES/$task; done
    t5x-lite train configs/finetune/encoder_tasks.py --init work/bert_base --data.task "" \
        --data.cache CACHES/mnli CACHES/stsb CACHES/rte --data.adapter-of mnli=0 stsb=1 rte=2 \
        --objective.tasks mnli=3 stsb=1 rte=2 --data.vocabulary vocab.txt --workdir WORKDIR
    t5x-lite evaluate WORKDIR/config.json --checkpoint WORKDIR --evaluation.task-metrics True \
        --data.cache "" --data.adapter-of --data.task tasks.glue:rte --data.directory GLUE
"""

import dataclasses

from configs.finetune.encoder_glue import experiment as glue
from t5x_lite.config import Evaluation
from t5x_lite.objectives.task_heads import TaskHeads

experiment = dataclasses.replace(
    glue,
    objective=TaskHeads(tasks=("mnli=3", "stsb=1", "rte=2")),
    evaluation=Evaluation(period=2100, loss=False, task_metrics=False),
)
