"""Fine-tune an encoder such as BERT base on a task of GLUE, with a head on the [CLS] state.

`t5x-lite glue` trains all tasks of the benchmark with this recipe. This config trains one task, and
every option can be changed.

The recipe is the usual one for BERT and similar encoders: rows of 128 tokens, batches of 32, AdamW
at 2e-5 to 5e-5 with warm-up over a tenth of the steps and linear decay, and three epochs of the
task, which are 6,314 steps for SST-2. --init gives the encoder: a pretraining run, or the output of
`t5x-lite import hf`. With --model init, the model family and sizes are the checkpoint's. The number
of classes follows from the task, and the kind of head from the model family:

    --data.task tasks.glue:mnli             three classes
    --data.task tasks.glue:stsb             a score
    --optimizer.layer-decay 0.8             as in ELECTRA's fine-tuning
    --epochs 10                             as in RoBERTa's fine-tuning on small tasks

The loss on the validation split is evaluated in addition to the task's metrics.

Command:
    t5x-lite import hf google-bert/bert-base-uncased work/bert_base
    t5x-lite train configs/finetune/encoder_glue.py --init work/bert_base --model init \
        --data.directory GLUE --data.vocabulary work/bert_base/files/vocabulary --workdir WORKDIR
    t5x-lite evaluate WORKDIR/config.json --checkpoint WORKDIR --output OUT
"""

from t5x_lite import layouts
from t5x_lite.config import Checkpoints, Evaluation, Experiment
from t5x_lite.data.config import Data
from t5x_lite.models.published import bert_base
from t5x_lite.objectives.task_heads import Classify
from t5x_lite.optim.config import AdamW, Linear

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
