"""XNLI: natural language inference in 15 languages (Conneau et al. 2018, arXiv:1809.05053).

    --data.task tasks.xnli:zero_shot --data.directory XNLI --objective.num-classes 3

XNLI contains the unpacked folders of the release: XNLI-1.0 with xnli.dev.tsv and xnli.test.tsv, and
XNLI-MT-1.0 with multinli/multinli.train.LANG.tsv, machine translations of MNLI. Or it is a
directory of TensorFlow Datasets (`t5x_lite.data.tasks.benchmarks`): xnli has the held-out splits,
and xtreme_xnli has XTREME's machine translations of MNLI for training.

    zero_shot              trains only on English; evaluated in all 15 languages
    translate_train_all    trains on all 15 translations, in proportion to their examples
    en, de, ...            held-out splits of one language
    train_en, ...          training split of one language

Each language is a task with its accuracy, xnli_en and so on; `evaluate` also writes the mean over
the 15 languages. To select a checkpoint of zero_shot by its accuracy in English: --checkpoints.best
validation/xnli_en/accuracy.
"""

from functools import partial

import seqio

from t5x_lite.data.config import TaskArguments
from t5x_lite.data.mixtures import Member, Mixture
from t5x_lite.data.tasks import benchmarks
from t5x_lite.data.tasks.glue_files import EXAMPLES, LANGUAGES, XnliTask


def _task(row: XnliTask, arguments: TaskArguments) -> seqio.Task:
    return benchmarks.task(row.benchmark(), arguments)


train_ar = partial(_task, XnliTask.training("ar"))
train_bg = partial(_task, XnliTask.training("bg"))
train_de = partial(_task, XnliTask.training("de"))
train_el = partial(_task, XnliTask.training("el"))
train_en = partial(_task, XnliTask.training("en"))
train_es = partial(_task, XnliTask.training("es"))
train_fr = partial(_task, XnliTask.training("fr"))
train_hi = partial(_task, XnliTask.training("hi"))
train_ru = partial(_task, XnliTask.training("ru"))
train_sw = partial(_task, XnliTask.training("sw"))
train_th = partial(_task, XnliTask.training("th"))
train_tr = partial(_task, XnliTask.training("tr"))
train_ur = partial(_task, XnliTask.training("ur"))
train_vi = partial(_task, XnliTask.training("vi"))
train_zh = partial(_task, XnliTask.training("zh"))

ar = partial(_task, XnliTask.held_out("ar"))
bg = partial(_task, XnliTask.held_out("bg"))
de = partial(_task, XnliTask.held_out("de"))
el = partial(_task, XnliTask.held_out("el"))
en = partial(_task, XnliTask.held_out("en"))
es = partial(_task, XnliTask.held_out("es"))
fr = partial(_task, XnliTask.held_out("fr"))
hi = partial(_task, XnliTask.held_out("hi"))
ru = partial(_task, XnliTask.held_out("ru"))
sw = partial(_task, XnliTask.held_out("sw"))
th = partial(_task, XnliTask.held_out("th"))
tr = partial(_task, XnliTask.held_out("tr"))
ur = partial(_task, XnliTask.held_out("ur"))
vi = partial(_task, XnliTask.held_out("vi"))
zh = partial(_task, XnliTask.held_out("zh"))

_MEASURED = tuple(Member(task=f"tasks.xnli:{language}", rate=0.0) for language in LANGUAGES)
_TRAINED = {
    language: Member(task=f"tasks.xnli:train_{language}", examples=EXAMPLES, measured=False)
    for language in LANGUAGES
}

zero_shot = Mixture(members=(_TRAINED["en"], *_MEASURED))
translate_train_all = Mixture(members=(*_TRAINED.values(), *_MEASURED))
