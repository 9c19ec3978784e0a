"""Pretrain the T5 paper's baseline: T5 base by denoising on C4 (Raffel et al. 2020, section 3.1).

The settings are 12 + 12 layers, ReLU, tied embeddings, dropout 0.1; i.i.d. noise on 15 % of the
tokens, with one sentinel per span; 2^19 steps of 128 x 512 packed tokens; Adafactor with the
inverse square root of the step, constant for 10^4 steps. That is 2^35 tokens of inputs, a part of
C4 without repetition.

Command, with C4 in a format of tasks/c4.py, on 16 TPU v5e chips or fewer:
    t5x-lite train configs/pretrain/t5_base_paper.py --data.directory C4 \
        --data.vocabulary spiece.model --workdir WORKDIR
    t5x-lite plan configs/pretrain/t5_base_paper.py --topology v5e:4x4

The paper's other objectives are tasks, with the lengths of their targets:

    table   --data.task tasks.c4:        --data.targets-length
    4       prefix_lm                    512
    4       iid_15_r10s90_f (BERT)       512
    4       all_permute (deshuffling)    512
    5       iid_15_m_f (MASS)            512
    5       iid_15_d_d (drop tokens)     104
    6       iid_10_u_u                   103
    6       iid_25_u_u                   256
    6       iid_50_u_u                   512
    7       span_2_15_u_u                126
    7       span_3_15_u_u                114
    7       span_5_15_u_u                105
    7       span_10_15_u_u               99
    UL2     ul2                          512

Table 2's other architectures are configs/paper/table2_*.py.
"""

from t5x_lite.config import Checkpoints, Evaluation, Experiment
from t5x_lite.core.sharding import MeshConfig
from t5x_lite.data.config import Data
from t5x_lite.models.published import t5_base
from t5x_lite.objectives.likelihood import Seq2Seq
from t5x_lite.optim.config import Adafactor, InverseSquareRoot

experiment = Experiment(
    model=t5_base(dropout_rate=0.1),
    objective=Seq2Seq(),
    data=Data(
        task="tasks.c4:iid_15_u_u",
        vocabulary="spiece.model",
        batch_size=128,
        inputs_length=512,
        targets_length=192,
        shuffle_buffer=10_000,
    ),
    optimizer=Adafactor(schedule=InverseSquareRoot(warmup_steps=10_000)),
    steps=2**19,
    log_period=100,
    checkpoints=Checkpoints(period=5000),
    evaluation=Evaluation(period=5000, max_batches=64),
    mesh=MeshConfig(data=-1),
)
