"""Mixtures of tasks: T5's multi-task recipes (Raffel et al. 2020, section 3.5), without TensorFlow.

    --data.task tasks.mixtures:glue --data.directory GLUE

`glue` and `super_glue` mix the tasks of a benchmark in proportion to their numbers of examples. T5
does not train on WNLI, but learns its form from WSC and DPR. So a run of `super_glue` also predicts
WNLI, for GLUE, if data.directory has WNLI's folder; a run of `glue` does not.

`all_proportional` is the mixture of section 3.5.2: a task of e examples is sampled at the rate
min(e, K) ** (1 / T), where K is --data.mixing.maximum and T is --data.mixing.temperature, or at an
equal rate with --data.mixing.by equal. RTE is in both benchmarks and counts once. data.directory
has the folders glue, super_glue, squad, cnn_dailymail, wmt and c4, or is TFDS's. `all_mix` samples
unlabelled text at a constant rate, independent of K and T. In both mixtures,
--data.mixing.unlabelled sets the rate of unlabelled text. For leave-one-out, use
--data.mixing.leave-out tasks.glue.

`multi_task_small`, `_base`, `_large`, `_3b` and `_11b` are the pretraining mixtures of the released
models (section 3.7): span corruption with spans of 3 tokens and a density of 15 %, which counts as
710 thousand to 133 million examples, and all tasks in proportion to their examples. WMT's English
to German and to French count as a million examples each.

In the registry of the package t5, the tasks of GLUE and SuperGLUE have constant rates, with RTE's
rate halved. `t5_all_proportional` and `t5_all_mix` use these rates and do not support K and T.

Weights: t5 0.9.4, data/glue_utils.py; mixtures: data/mixtures.py. Numbers of examples: TFDS.
"""

import dataclasses

from t5x_lite.data.mixing import rate_unsupervised
from t5x_lite.data.mixtures import Member, Mixture

_WNLI = Member(
    task="tasks.glue:wnli", rate=0.0, form_of=("tasks.super_glue:wsc", "tasks.super_glue:dpr")
)
_GLUE = (
    Member(task="tasks.glue:cola", examples=8_551),
    Member(task="tasks.glue:sst2", examples=67_349),
    Member(task="tasks.glue:mrpc", examples=3_668),
    Member(task="tasks.glue:qqp", examples=363_849),
    Member(task="tasks.glue:stsb", examples=5_749),
    Member(task="tasks.glue:mnli", examples=392_702, measured=False),
    Member(task="tasks.glue:qnli", examples=104_743),
    Member(task="tasks.glue:rte", examples=2_490, shared_examples="rte"),
    Member(task="tasks.glue:mnli_matched", rate=0.0),
    Member(task="tasks.glue:mnli_mismatched", rate=0.0),
    _WNLI,
    Member(task="tasks.glue:ax", rate=0.0),
)
_SUPER_GLUE = (
    Member(task="tasks.super_glue:dpr", examples=1_322),
    Member(task="tasks.super_glue:wsc", examples=259),
    Member(task="tasks.super_glue:boolq", examples=9_427),
    Member(task="tasks.super_glue:cb", examples=250),
    Member(task="tasks.super_glue:copa", examples=400),
    Member(task="tasks.super_glue:multirc", examples=27_243),
    Member(task="tasks.super_glue:record", examples=138_854),
    Member(task="tasks.super_glue:rte", examples=2_490, shared_examples="rte"),
    Member(task="tasks.super_glue:wic", examples=5_428),
    Member(task="tasks.super_glue:axb", rate=0.0),
    Member(task="tasks.super_glue:axg", rate=0.0),
)
_LARGE = (
    Member(task="tasks.summarize:cnn_dailymail", examples=287_113, directory="cnn_dailymail"),
    Member(task="tasks.squad:squad", examples=87_599, directory="squad"),
    Member(task="tasks.wmt:ende", examples=4_592_289, directory="wmt"),
    Member(task="tasks.wmt:enfr", examples=40_853_298, directory="wmt"),
    Member(task="tasks.wmt:enro", examples=610_320, directory="wmt"),
)
_UNSUPERVISED = Member(
    task="tasks.c4:iid_15_u_u", examples=364_868_892, unlabelled=True, directory="c4"
)
_CONSTANT_TEXT = dataclasses.replace(_UNSUPERVISED, examples=None, rate=rate_unsupervised())
_RELEASED_MAXIMUM = 1_000_000
"""Number of examples that the tasks ende and enfr of WMT each count as in the released recipe."""


def _inside(members: tuple[Member, ...], directory: str) -> tuple[Member, ...]:
    return tuple(dataclasses.replace(member, directory=directory) for member in members)


def _constant(members: tuple[Member, ...]) -> tuple[Member, ...]:
    """Return tasks with the constant rates of t5's registry: numbers of examples, RTE's halved."""
    return tuple(
        dataclasses.replace(
            member,
            examples=None,
            shared_examples="",
            rate=member.examples * (0.5 if member.shared_examples else 1.0)
            if member.examples is not None
            else 0.0,
        )
        for member in members
    )


def _released(text: int) -> Mixture:
    """Return the pretraining mixture of a released model, with text counted as `text` examples."""
    capped = tuple(
        dataclasses.replace(member, maximum=_RELEASED_MAXIMUM)
        if member.task in ("tasks.wmt:ende", "tasks.wmt:enfr")
        else member
        for member in _LARGE
    )
    spans = dataclasses.replace(
        _CONSTANT_TEXT, task="tasks.c4:span_3_15_u_u", rate=rate_unsupervised(text)
    )
    return Mixture(members=(*_BENCHMARKS, *capped, spans))


_BENCHMARKS = (*_inside(_GLUE, "glue"), *_inside(_SUPER_GLUE, "super_glue"))
_REGISTRY = (*_constant(_BENCHMARKS), *_LARGE)

glue = Mixture(members=_GLUE)
super_glue = Mixture(members=(*_SUPER_GLUE, _WNLI))
all_proportional = Mixture(members=(*_BENCHMARKS, *_LARGE, _UNSUPERVISED))
all_mix = Mixture(members=(*_BENCHMARKS, *_LARGE, _CONSTANT_TEXT))
t5_all_proportional = Mixture(members=(*_REGISTRY, _UNSUPERVISED))
t5_all_mix = Mixture(members=(*_REGISTRY, _CONSTANT_TEXT))
large_supervised = Mixture(
    members=tuple(m for m in _LARGE if m.task not in ("tasks.squad:squad", "tasks.wmt:enro"))
)
multi_task_small = _released(710_000)
multi_task_base = _released(2_620_000)
multi_task_large = _released(8_660_000)
multi_task_3b = _released(33_500_000)
multi_task_11b = _released(133_000_000)
