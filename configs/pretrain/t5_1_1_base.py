"""Pretrains T5 1.1 base by span corruption, as on C4, on a slice of 16 TPU v5e chips.

T5's recipe (Raffel et al. 2020, sections 3.1.2 and 3.3; t5x's t5_1_1): Adafactor, inverse square
root from 10,000 steps, no dropout, packed rows of 512 and 114 tokens. The layers are unrolled: a
loop over them would keep 12 GiB for the backward pass, and this keeps 5, with a step that the
compiler estimates at 0.6 of the loop's (docs/benchmarks.md). With --model.attention pallas
--model.attention-block 256, a kernel that no TPU has run yet, the estimate is 0.4 of it.

Command, on all workers (docs/guides/scale.md), with text files or with a cache of them:
    t5x-lite train configs/pretrain/t5_1_1_base.py --data.directory DIR \
        --data.vocabulary spiece.model --workdir gs://BUCKET/t5_1_1_base
    t5x-lite plan configs/pretrain/t5_1_1_base.py --topology v5e:4x4
"""

from t5x_lite.config import Checkpoints, Evaluation, Experiment
from t5x_lite.data.config import Data
from t5x_lite.models.presets import t5_1_1_base
from t5x_lite.objectives.seq2seq import Seq2Seq
from t5x_lite.optim.config import Adafactor
from t5x_lite.optim.schedules import InverseSquareRoot
from t5x_lite.sharding import MeshConfig

experiment = Experiment(
    model=t5_1_1_base(dropout_rate=0.0, unroll=True),
    objective=Seq2Seq(),
    data=Data(
        task="tasks.text:span_corruption",
        vocabulary="spiece.model",
        batch_size=256,
        inputs_length=512,
        targets_length=114,
        shuffle_buffer=10_000,
    ),
    optimizer=Adafactor(schedule=InverseSquareRoot(warmup_steps=10_000)),
    steps=1_000_000,
    compute_dtype="bfloat16",
    log_period=100,
    checkpoints=Checkpoints(period=5000, keep=3),
    evaluation=Evaluation(period=5000, max_batches=64),
    mesh=MeshConfig(data=-1),
)
