"""Train the first stage of BGE-M3: RetroMAE at 8,192 tokens, from XLM-R large with more positions.

From Chen et al. 2024 (arXiv:2402.03216) and FlagEmbedding's fork of RetroMAE: 184M texts of the
Pile, Wudao and mC4 in 105 languages, 32 x 16 x 32 rows of 8,192 tokens, 20,000 steps at 7e-5;
enhanced decoder with normalized queries, 30 % and 50 % masks, 128 masks per row. Warm-up, decay and
the initialization of the new position embeddings are not published. Our choices: warm-up over a
tenth of the steps, linear decay, weight decay 0.01, bfloat16; whole words by the vocabulary's word
marks, special tokens never masked, and unlimited masked tokens, where the fork has at most 512 per
row.

Command; XLMR is the output of `t5x-lite import hf` for xlm-roberta-large:
    t5x-lite extend XLMR LONG --positions 8192
    t5x-lite train configs/pretrain/m3_retromae.py --init LONG --data.directory DIR \
        --data.vocabulary LONG/files/vocabulary --workdir WORKDIR
    t5x-lite plan configs/pretrain/m3_retromae.py --topology v5p:8x8x8
"""

from t5x_lite import layouts
from t5x_lite.config import Checkpoints, Evaluation, Experiment
from t5x_lite.core.sharding import MeshConfig
from t5x_lite.data.config import Data
from t5x_lite.models.published import xlm_r_large
from t5x_lite.objectives.retromae import RetroMAE
from t5x_lite.optim.config import AdamW, Linear

LENGTH = 8192
MODEL = xlm_r_large(max_positions=LENGTH + 2, attention_block=512, remat="full")

experiment = Experiment(
    model=MODEL,
    objective=RetroMAE(mask_id=250_001, query="normalised", mask_pool=128),
    data=Data(
        task="tasks.encoder:documents",
        layout=layouts.Encoder(),
        vocabulary="work/xlmr_long/files/vocabulary",
        batch_size=32 * 16 * 32,
        inputs_length=LENGTH,
        pack=False,
        shuffle_buffer=10_000,
    ),
    optimizer=AdamW(
        schedule=Linear(peak=7e-5, total_steps=20_000, warmup_steps=2_000),
        weight_decay=0.01,
        clip_norm=1.0,
    ),
    steps=20_000,
    compute_dtype="bfloat16",
    log_period=100,
    checkpoints=Checkpoints(period=500, keep=3),
    evaluation=Evaluation(period=1000, max_batches=4, task_metrics=False),
    mesh=MeshConfig(data=-1),
    microbatches=16,
)
