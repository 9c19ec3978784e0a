"""Pretrain a small BERT by masked language modelling on your documents.

The model has 4.8M parameters, 4.0M of them embeddings. DIR contains *.txt with blank lines between
documents, *.jsonl, output of `t5x-lite c4`, or Parquet (docs/guides/documents.md). vocab.txt is the
uncased BERT's. Rows are packed: documents do not attend to each other.

Command:
    t5x-lite train configs/pretrain/bert_tiny.py --data.directory DIR \
        --data.vocabulary vocab.txt --workdir WORKDIR
    t5x-lite plan configs/pretrain/bert_tiny.py --topology v5e:2x2
"""

from t5x_lite import layouts
from t5x_lite.config import Checkpoints, Evaluation, Experiment
from t5x_lite.data.config import Data
from t5x_lite.models.encoder import BertConfig
from t5x_lite.objectives.masked_lm import MaskedLM
from t5x_lite.optim.config import AdamW, Linear

experiment = Experiment(
    model=BertConfig(
        vocab_size=30522,
        d_model=128,
        d_ff=512,
        num_heads=2,
        num_layers=4,
        max_positions=512,
        token_types=2,
        unroll=True,
    ),
    objective=MaskedLM(mask_id=103, whole_word=True),
    data=Data(
        task="tasks.encoder:documents",
        layout=layouts.Encoder(),
        vocabulary="vocab.txt",
        batch_size=64,
        inputs_length=128,
    ),
    optimizer=AdamW(
        schedule=Linear(peak=1e-3, total_steps=20_000, warmup_steps=1000), clip_norm=1.0
    ),
    steps=20_000,
    log_period=50,
    checkpoints=Checkpoints(period=1000),
    evaluation=Evaluation(period=1000, max_batches=16, task_metrics=False),
)
