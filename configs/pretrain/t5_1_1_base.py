"""Pretrain T5 1.1 base by span corruption, as on C4, on a slice of 16 TPU v5e chips.

The recipe is T5's (Raffel et al. 2020, sections 3.1.2 and 3.3; t5x's t5_1_1): Adafactor, inverse
square root from 10,000 steps, no dropout, rows of 512 and 114 tokens. Span corruption fills its
rows, so the rows are not packed. Attention and the layer layout are "auto": the TPU kernel, which
has not run on a TPU yet (--model.attention plain disables it), or cuDNN's on a GPU, and unrolled
layers. By the compiler's estimate, a step on the slice takes a third of the time of a loop with
plain attention (docs/experiments/012-tpu-plans.md). With --mesh.fsdp 4, each chip updates a quarter
of the parameters.

Command, on all workers (docs/guides/scale.md), with text files or with a cache of them:
    t5x-lite train configs/pretrain/t5_1_1_base.py --data.directory DIR \
        --data.vocabulary spiece.model --workdir gs://BUCKET/t5_1_1_base --mesh.fsdp 4
    t5x-lite plan configs/pretrain/t5_1_1_base.py --topology v5e:4x4 --mesh.fsdp 4
"""

from t5x_lite.config import Checkpoints, Evaluation, Experiment
from t5x_lite.core.sharding import MeshConfig
from t5x_lite.data.config import Data
from t5x_lite.models.published import t5_1_1_base
from t5x_lite.objectives.likelihood import Seq2Seq
from t5x_lite.optim.config import Adafactor, InverseSquareRoot

experiment = Experiment(
    model=t5_1_1_base(dropout_rate=0.0),
    objective=Seq2Seq(),
    data=Data(
        task="tasks.text:span_corruption",
        vocabulary="spiece.model",
        batch_size=256,
        inputs_length=512,
        targets_length=114,
        pack=False,
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
