"""Pretrain BERT base for retrieval by RetroMAE, with the settings of its English models.

From Xiao et al. 2022 (arXiv:2205.12035) and its code: start from BERT base; Wikipedia and books, 8
x 32 rows of 512 tokens, 8 epochs, AdamW at 1e-4, warm-up over a tenth of the steps, linear decay,
weight decay 0.01, 30 % and 50 % masks, 16-bit numbers. Our choices: bfloat16, dropout as in BERT.
If the text can be counted, as in a cache, the epochs determine the steps; otherwise there are
260,000 steps, 8 epochs of about 4.3 billion tokens in full rows. On MS MARCO's passages the paper
has 8 x 128 rows of 150 tokens and 20 epochs: --data.task tasks.encoder:passages
--data.inputs-length 150 --data.batch-size 1024 --epochs 20. BGE's models have --objective.query
normalised; DupMAE adds --objective.bag-of-words 0.1.

Command; BERT is the output of `t5x-lite import hf` for bert-base-uncased:
    t5x-lite train configs/pretrain/retromae_base.py --init BERT --data.directory DIR \
        --data.vocabulary vocab.txt --workdir WORKDIR
    t5x-lite plan configs/pretrain/retromae_base.py --topology v5e:4x4
"""

from t5x_lite import layouts
from t5x_lite.config import Checkpoints, Evaluation, Experiment
from t5x_lite.core.sharding import MeshConfig
from t5x_lite.data.config import Data
from t5x_lite.models.published import bert_base
from t5x_lite.objectives.retromae import RetroMAE
from t5x_lite.optim.config import AdamW, Linear

experiment = Experiment(
    model=bert_base(),
    objective=RetroMAE(mask_id=103),
    data=Data(
        task="tasks.encoder:documents",
        layout=layouts.Encoder(),
        vocabulary="vocab.txt",
        batch_size=256,
        inputs_length=512,
        pack=False,
        shuffle_buffer=10_000,
    ),
    optimizer=AdamW(
        schedule=Linear(peak=1e-4, total_steps=260_000, warmup_steps=26_000),
        weight_decay=0.01,
        clip_norm=1.0,
    ),
    steps=260_000,
    epochs=8.0,
    compute_dtype="bfloat16",
    log_period=100,
    checkpoints=Checkpoints(period=5000, keep=3),
    evaluation=Evaluation(period=5000, max_batches=64, task_metrics=False),
    mesh=MeshConfig(data=-1),
)
