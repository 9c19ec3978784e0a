"""Fine-tune T5 on one task as in the paper (Raffel et al. 2020, section 3.1.2), SQuAD by default.

The recipe is 2^18 steps of 128 packed sequences of 512 tokens, a constant learning rate of 1e-3,
dropout 0.1, and greedy decoding. A checkpoint is written every 5,000 steps; only the best
checkpoint on the validation set is kept and reported (--step best). The model is the paper's
baseline, T5 1.0 base. The target length is t5's length for the task (models/gin/sequence_lengths).
configs/finetune/glue.py and super_glue.py have the same recipe for mixtures. DECODING is the
paper's decoding of tasks that are not decoded greedily, for evaluation.per_task of a mixture.

Command:
    t5x-lite train configs/finetune/paper.py --data.directory SQUAD \
        --data.vocabulary spiece.model --init PRETRAINED --workdir WORKDIR
    t5x-lite train configs/finetune/paper.py --data.task tasks.wmt:enro --data.directory tfds \
        --data.targets-length 512 --evaluation.max-decode-length 512 \
        --checkpoints.best validation/bleu --data.vocabulary spiece.model --init PRETRAINED \
        --workdir WORKDIR
    t5x-lite evaluate WORKDIR/config.json --checkpoint WORKDIR --step best --output OUT
"""

from t5x_lite.config import Checkpoints, Evaluation, Experiment
from t5x_lite.data.config import Data
from t5x_lite.models.published import t5_base
from t5x_lite.objectives.likelihood import Seq2Seq
from t5x_lite.optim.config import Adafactor, Constant

_BEAM = "num_beams=4, length_penalty=0.6, max_decode_length=512"
DECODING = (f"wmt_*: {_BEAM}", f"summarize_cnn_dailymail: {_BEAM}")
"""Beam search for WMT and CNN/Daily Mail (section 3.7), in a mixture with greedy decoding."""

experiment = Experiment(
    model=t5_base(dropout_rate=0.1),
    objective=Seq2Seq(),
    data=Data(
        task="tasks.squad:squad",
        vocabulary="spiece.model",
        batch_size=128,
        inputs_length=512,
        targets_length=97,
    ),
    optimizer=Adafactor(schedule=Constant(value=1e-3)),
    steps=2**18,
    log_period=100,
    checkpoints=Checkpoints(period=5000, keep=1, best="validation/exact_match"),
    evaluation=Evaluation(period=5000, max_decode_length=64),
)
