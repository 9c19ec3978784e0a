"""The T5 paper's fine-tuning on one task (Raffel et al. 2020, section 3.1.2); SQuAD unless told.

2^18 steps of 128 sequences of 512 tokens, packed; a constant learning rate of 1e-3; dropout 0.1; a
checkpoint every 5,000 steps, of which the best on the validation set stays and is reported (--step
best); greedy decoding. The model is the baseline, T5-Base as T5 1.0 has it. The length of the
targets is t5's for the task (models/gin/sequence_lengths). configs/finetune/glue.py and
super_glue.py are the same on their mixtures. DECODING is how the paper decodes the tasks of a
mixture that are not greedy, for evaluation.per_task.

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
from t5x_lite.optim.config import Adafactor
from t5x_lite.optim.schedules import Constant

_BEAM = "num_beams=4, length_penalty=0.6, max_decode_length=512"
DECODING = (f"wmt_*: {_BEAM}", f"summarize_cnn_dailymail: {_BEAM}")
"""WMT and CNN/Daily Mail by beam search (section 3.7), of a mixture that is greedy elsewhere."""

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
