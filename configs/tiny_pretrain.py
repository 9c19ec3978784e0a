"""Pretrain a tiny T5 1.1 by span corruption on the documentation in the Python installation.

Command:
    python -m t5x_lite.data.tasks.python_docs CORPUS
    t5x-lite vocab --input CORPUS/documents.txt --output VOCABULARY --size 4000
    t5x-lite train configs/tiny_pretrain.py --data.directory CORPUS \
        --data.vocabulary VOCABULARY --workdir WORKDIR

Part of scripts/quickstart.sh.
"""

from t5x_lite.config import Checkpoints, Evaluation, Experiment
from t5x_lite.data.config import Data
from t5x_lite.models.t5 import T5Config
from t5x_lite.objectives.likelihood import Seq2Seq
from t5x_lite.optim.config import Adafactor, InverseSquareRoot

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
        task="tasks.python_docs:span_corruption",
        directory="work/quickstart/corpus",
        vocabulary="work/quickstart/vocabulary",
        batch_size=16,
        inputs_length=128,
        targets_length=32,
    ),
    optimizer=Adafactor(schedule=InverseSquareRoot(warmup_steps=1000)),
    steps=400,
    log_period=25,
    checkpoints=Checkpoints(period=200, keep=2),
    evaluation=Evaluation(period=200, max_batches=8),
)
