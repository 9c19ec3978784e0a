"""Pretrain a very small T5 1.1 to compare pretraining objectives (docs/benchmarks.md).

Every objective, --data.task tasks.text:NAME, is trained on the same batches of the same text, with
the target length that it needs: 16 for spans and replaced tokens, 64 for objectives that predict
the full text.

Command:
    t5x-lite train configs/pretrain/study.py --data.task tasks.text:span_corruption \
        --data.targets-length 16 --data.directory DIR --data.vocabulary VOCABULARY --workdir WORKDIR
    t5x-lite plan configs/pretrain/study.py --topology v5e:2x2

`scripts/bench/study.py` runs all arms.
"""

from t5x_lite.config import Checkpoints, Evaluation, Experiment
from t5x_lite.data.config import Data
from t5x_lite.models.t5 import T5Config
from t5x_lite.objectives.likelihood import Seq2Seq
from t5x_lite.optim.config import Adafactor, Linear

experiment = Experiment(
    model=T5Config(
        vocab_size=4224,
        d_model=128,
        d_kv=32,
        d_ff=256,
        num_heads=4,
        num_encoder_layers=2,
        num_decoder_layers=2,
        dropout_rate=0.0,
        unroll=True,
    ),
    objective=Seq2Seq(),
    data=Data(
        task="tasks.text:span_corruption",
        vocabulary="vocabulary",
        batch_size=16,
        inputs_length=64,
        targets_length=16,
    ),
    optimizer=Adafactor(
        schedule=Linear(peak=0.02, warmup_steps=200, total_steps=12000), momentum=0.9, clip_norm=1.0
    ),
    steps=12000,
    compute_dtype="bfloat16",
    log_period=100,
    checkpoints=Checkpoints(period=2000, keep=1),
    evaluation=Evaluation(period=12000, max_batches=32, batch_size=64, task_metrics=False),
)
