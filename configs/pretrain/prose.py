"""Pretrains a small T5 1.1 by span corruption on text files: English novels (ELTeC-eng, 49 MB).

About 9.4M parameters without embeddings (d_model 256, 6 + 6 layers), T5's own vocabulary; 3,740
steps are one pass over 12.8M tokens. AdamW and not T5's Adafactor: in so few steps Adafactor,
whose step is relative to the parameter's size, stays at the frequencies of the words
(docs/benchmarks.md).

Command:
    t5x-lite train configs/pretrain/prose.py --data.directory DIR --data.vocabulary spiece.model \
        --workdir WORKDIR
"""

from t5x_lite.config import Checkpoints, Evaluation, Experiment
from t5x_lite.data.config import Data
from t5x_lite.models.t5 import T5Config
from t5x_lite.objectives.seq2seq import Seq2Seq
from t5x_lite.optim.config import AdamW
from t5x_lite.optim.schedules import Linear

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
        batch_size=12,
        inputs_length=256,
        targets_length=58,
    ),
    optimizer=AdamW(
        schedule=Linear(peak=1e-3, warmup_steps=100, total_steps=3740),
        clip_norm=1.0,
        weight_decay=0.01,
    ),
    steps=3740,
    compute_dtype="bfloat16",
    log_period=20,
    checkpoints=Checkpoints(period=500, keep=2),
    evaluation=Evaluation(period=935, max_batches=32),
)
