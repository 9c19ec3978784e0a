"""Train DPR: one BERT for questions and one for passages (Karpukhin et al. 2020, arXiv:2004.04906).

A batch has 128 questions of Natural Questions. Each question has its passage, and a passage that
BM25 found and that lacks the answer; the passages of the whole batch are negatives. 58,880
questions have a passage, so 40 epochs are 18,400 steps. For small data sets, the paper trains 100
epochs: --epochs 100. If the data can be counted, the epochs determine the steps: 24,740 for
RetroMAE's 79,168 questions.

For other encoders with the same recipe (RoBERTa, DeBERTa, a Condenser): --model init --init
ENCODER. `towers/passage` is initialized like the model, so --init a BERT base. To embed passages,
use `embed` with --role passage.

Command:
    t5x-lite train configs/finetune/dpr.py --init work/bert_base --data.directory NQ_PAIRS \
        --data.vocabulary work/bert_base/files/vocabulary --workdir WORKDIR --tokens-per-part 16384
"""

from t5x_lite import layouts
from t5x_lite.config import Checkpoints, Evaluation, Experiment
from t5x_lite.data.config import Data
from t5x_lite.models.published import bert_base
from t5x_lite.objectives.contrastive import dpr
from t5x_lite.optim.config import AdamW, Linear

experiment = Experiment(
    model=bert_base(),
    objective=dpr(),
    data=Data(
        task="tasks.pairs:jsonl",
        layout=layouts.Groups(negatives=1, positives="sample", negatives_top=100),
        vocabulary="work/bert_base/files/vocabulary",
        batch_size=128,
        inputs_length=32,
        targets_length=256,
        pack=False,
    ),
    optimizer=AdamW(
        schedule=Linear(peak=2e-5, total_steps=18_400, warmup_steps=1_237),
        weight_decay=0.0,
        clip_norm=2.0,
    ),
    steps=18_400,
    epochs=40.0,
    checkpoints=Checkpoints(period=2_300),
    evaluation=Evaluation(period=2_300, task_metrics=False),
)
