"""Pretrain a small T5 1.1 by span corruption on text files: English novels (ELTeC-eng, 49 MB).

The model has about 9.4M parameters without embeddings (d_model 256, 6 + 6 layers) and T5's
vocabulary. 11,220 steps are one pass over 12.8M tokens. The optimizer is T5's Adafactor with
momentum and a decaying rate, with batches of 4: an hour on a CPU allows few tokens, and these
settings learn most from them (docs/benchmarks.md).

Command:
    t5x-lite train configs/pretrain/prose.py --data.directory DIR --data.vocabulary spiece.model \
        --workdir WORKDIR
    t5x-lite plan configs/pretrain/prose.py --topology v5e:2x2
"""

from t5x_lite.config import Checkpoints, Evaluation, Experiment
from t5x_lite.data.config import Data
from t5x_lite.models.t5 import T5Config
from t5x_lite.objectives.likelihood import Seq2Seq
from t5x_lite.optim.config import Adafactor, Linear

experiment = Experiment(
    model=T5Config(
        vocab_size=32128,
        d_model=256,
        d_kv=64,
        d_ff=512,
        num_heads=4,
        num_encoder_layers=6,
        num_decoder_layers=6,
        dropout_rate=0.0,
        unroll=True,
    ),
    objective=Seq2Seq(),
    data=Data(
        task="tasks.text:span_corruption",
        vocabulary="spiece.model",
        batch_size=4,
        inputs_length=256,
        targets_length=58,
    ),
    optimizer=Adafactor(
        schedule=Linear(peak=0.02, warmup_steps=200, total_steps=11220), momentum=0.9, clip_norm=1.0
    ),
    steps=11220,
    compute_dtype="bfloat16",
    log_period=60,
    checkpoints=Checkpoints(period=1500, keep=2),
    evaluation=Evaluation(period=2805, max_batches=32, batch_size=12),
)
