"""What answers a task: tasks that are answered alike share it; of heads, see test_task_suite.py."""

import dataclasses

import pytest

from t5x_lite.config import Evaluation
from t5x_lite.core.sharding import MeshConfig, make_mesh
from t5x_lite.data.vocabularies.loading import load_vocabulary
from t5x_lite.decoding.sampling import Decoding
from t5x_lite.evaluate.task_suite import Answerers, decoding
from t5x_lite.inference.generate import LabelGenerator
from t5x_lite.inference.loading import learner_of

pytest.importorskip("seqio")


def test_decoding():
    assert decoding(Evaluation()) == Decoding(max_decode_length=32)
    settings = Evaluation(num_beams=4, length_penalty=0.6, max_decode_length=8)
    assert decoding(settings) == Decoding(max_decode_length=8, num_beams=4, length_penalty=0.6)


def test_equal_settings_share_a_program(tiny_experiment, tiny_glue, tiny_vocabulary):
    from t5x_lite.data.loading import load_task

    vocabulary = load_vocabulary(tiny_vocabulary)
    data = dataclasses.replace(
        tiny_experiment.data, task="tasks.glue:sst2", directory=str(tiny_glue)
    )
    experiment = dataclasses.replace(tiny_experiment, data=data)
    task = load_task(data, vocabulary)
    answerers = Answerers(
        experiment,
        vocabulary,
        bind=learner_of(experiment).bind_model,
        mesh=make_mesh(MeshConfig()),
    )
    assert not answerers.reads_labels
    greedy = answerers.of(task, Evaluation())
    assert answerers.of(task, Evaluation(split="test")) is greedy
    assert answerers.of(task, Evaluation(batch_size=data.batch_size)) is greedy
    for other in ({"num_beams": 2}, {"batch_size": 2}, {"max_decode_length": 4}):
        assert answerers.of(task, Evaluation(**other)) is not greedy
    ranked = answerers.of(task, Evaluation(rank=True))
    assert isinstance(ranked, LabelGenerator)
