"""Fine-tunes BERT base, or another encoder, on a task of GLUE by a head on its [CLS] state.

`t5x-lite glue` trains all tasks of the benchmark by this recipe. Here the task is one, and every
option of a config is open.

The recipe of BERT and its successors: rows of 128 tokens, batches of 32, AdamW at 2e-5 to 5e-5 with
a warm-up over a tenth of the steps, and a linear decay; three epochs of the task, of SST-2 6,314
steps. The encoder comes by --init, what `t5x-lite import hf` wrote or a pretraining run. With
--model init its family and sizes are the checkpoint's. The classes follow from the task, and the
head from the family:

    --data.task tasks.glue:mnli             three classes
    --data.task tasks.glue:stsb             a score
    --optimizer.layer-decay 0.8             as ELECTRA is fine-tuned
    --epochs 10                             as RoBERTa is, on small tasks

The loss on the split is measured next to the task's metrics.

Command:
    t5x-lite import hf bert-base-uncased work/bert_base
    t5x-lite train configs/finetune/encoder_glue.py --init work/bert_base --model init \
        --data.directory GLUE --data.vocabulary work/bert_base/files/vocabulary --workdir WORKDIR
    t5x-lite evaluate WORKDIR/config.json --checkpoint WORKDIR --output OUT
"""

from t5x_lite import layouts
from t5x_lite.config import Checkpoints, Evaluation, Experiment
from t5x_lite.data.config import Data
from t5x_lite.models.published import bert_base
from t5x_lite.objectives.task_heads import Classify
from t5x_lite.optim.config import AdamW
from t5x_lite.optim.schedules import Linear

experiment = Experiment(
    model=bert_base(),
    objective=Classify(num_classes=0, head="auto"),
    data=Data(
        task="tasks.glue:sst2",
        layout=layouts.Labelled(),
        vocabulary="vocab.txt",
        batch_size=32,
        inputs_length=128,
        pack=False,
        shuffle_buffer=100_000,
        extra_ids=0,
    ),
    optimizer=AdamW(
        schedule=Linear(peak=3e-5, total_steps=6300, warmup_steps=630), eps=1e-6, clip_norm=1.0
    ),
    steps=6300,
    epochs=3.0,
    log_period=50,
    checkpoints=Checkpoints(period=2100),
    evaluation=Evaluation(period=2100),
)
