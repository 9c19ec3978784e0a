"""Pretrain T5 base as released: span corruption on C4, mixed with all labelled tasks.

From Raffel et al. 2020, section 3.7: 10^6 steps of 2^11 x 512 packed tokens, 10^12 in total; 15 %
of C4's tokens in spans of 3; GLUE, SuperGLUE, CNN/DailyMail, SQuAD and WMT in proportion to their
numbers of examples, with English to German and to French as a million each, and C4 as 2.62 million;
ReLU, tied embeddings, dropout 0.1; Adafactor with the inverse square root of the step. Here,
targets have 512 tokens: translations and summaries are longer than the 114 tokens that spans need.

The configs of the other sizes are t5_small.py, t5_large.py, t5_3b.py and t5_11b.py; they differ in
the model's sizes and in the number of examples for C4. --data.mixing.unlabelled changes that
number, and --data.mixing.leave-out excludes tasks.

DATA contains glue, super_glue, squad, cnn_dailymail, wmt and c4, or is a directory of TensorFlow
Datasets. With caches of one task each (docs/guides/mixtures.md), the rates are the same. Commands
for 16 TPU v5e chips, on all workers:
    t5x-lite train configs/paper/t5_base.py --data.directory DATA \
        --data.vocabulary spiece.model --workdir gs://BUCKET/t5_base
    t5x-lite cache configs/paper/t5_base.py --data.directory DATA \
        --data.vocabulary spiece.model --output CACHES
    t5x-lite train configs/paper/t5_base.py --data.cache CACHES/* \
        --data.vocabulary spiece.model --workdir gs://BUCKET/t5_base
    t5x-lite plan configs/paper/t5_base.py --topology v5e:4x4

Then fine-tune on each task separately (configs/paper/README.md, table 14).
"""

from t5x_lite.config import Checkpoints, Evaluation, Experiment
from t5x_lite.core.sharding import MeshConfig
from t5x_lite.data.config import Data
from t5x_lite.models.published import t5_base
from t5x_lite.objectives.likelihood import Seq2Seq
from t5x_lite.optim.config import Adafactor, InverseSquareRoot

experiment = Experiment(
    model=t5_base(dropout_rate=0.1),
    objective=Seq2Seq(),
    data=Data(
        task="tasks.mixtures:multi_task_base",
        vocabulary="spiece.model",
        batch_size=2048,
        inputs_length=512,
        targets_length=512,
        shuffle_buffer=10_000,
    ),
    optimizer=Adafactor(schedule=InverseSquareRoot(warmup_steps=10_000)),
    steps=1_000_000,
    compute_dtype="bfloat16",
    log_period=100,
    checkpoints=Checkpoints(period=5000, keep=3),
    evaluation=Evaluation(period=5000, max_batches=8, task_metrics=False),
    mesh=MeshConfig(data=-1),
    microbatches=16,
)
