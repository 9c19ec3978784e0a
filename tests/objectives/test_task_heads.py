"""Several heads: each row is read by that of its task, and as a head alone reads it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite.adapters.grammar import parse_trees
from t5x_lite.adapters.lora import Lora
from t5x_lite.config.file import from_json, to_json
from t5x_lite.core.errors import InputError
from t5x_lite.models.heads import Classifier, Span
from t5x_lite.objectives.learner import Learner
from t5x_lite.objectives.task_heads import Classify, Spans, TaskHeads
from tests.adapters.hosts import random
from tests.config_files import saved
from tests.objectives.encoder_rows import MODEL
from tests.objectives.test_classify import batch_of, glue, pretrained, tuned  # noqa: F401

QUIET = MODEL.replace(dropout_rate=0.0, attention_dropout_rate=0.0)
OBJECTIVE = TaskHeads(tasks=("three=3", "score=1", "where=span"), scales=(1.0, 2.0, 1.0))
TERMS = ("three/cross_entropy", "score/squared_error", "where/cross_entropy")
IDS = [0, 1, 2, 0, 1, -1]


def mixed():
    """Six rows: two of each task but for the last one, of none."""
    batch = {name: jnp.concatenate([x, x]) for name, x in batch_of([2, 1, 3]).items()}
    batch["labels"] = jnp.array([[2, 0], [1, 0], [4, 6], [3, 0], [1, 0], [1, 0]])
    batch["scores"] = jnp.array([np.nan, 3.5, np.nan, np.nan, -1.0, 2.0], jnp.float32)
    return {**batch, "adapter_ids": jnp.array(IDS)[:, None]}


def rows_of(batch, number):
    """A task's rows."""
    chosen = np.flatnonzero(np.array(IDS) == number)
    return {name: x[chosen] for name, x in batch.items() if name != "adapter_ids"}


def sums(loss):
    return {name: tuple(map(float, term)) for name, term in loss.terms.items()}


def test_each_term_is_that_of_a_head_alone():
    made = Learner.of(QUIET, OBJECTIVE)
    params = random(made.shapes)
    loss = jax.jit(made.loss)(params, mixed())
    alone = {"three": Classify(num_classes=3), "score": Classify(num_classes=1), "where": Spans()}
    for number, (name, objective) in enumerate(alone.items()):
        one = Learner.of(QUIET, objective)
        [head] = (head.name for head in objective.heads({}))
        own = {**params, "heads": {head: params["heads"][name]}}
        found = jax.jit(one.loss)(own, rows_of(mixed(), number))
        for term, (total, weight, _) in found.terms.items():
            np.testing.assert_allclose(loss.terms[f"{name}/{term}"].total, total, rtol=1e-5)
            assert float(loss.terms[f"{name}/{term}"].weight) == float(weight)
        for metric, (total, weight) in found.metrics.items():
            ours = tuple(map(float, loss.metrics[f"{name}/{metric}"]))
            np.testing.assert_allclose(ours, (float(total), float(weight)), rtol=1e-5)
    scales = {name: float(term.scale) for name, term in loss.terms.items()}
    assert scales == dict(zip(TERMS, (1.0, 2.0, 1.0), strict=True))
    assert float(loss.terms["score/squared_error"].weight) == 2.0
    labels = jnp.minimum(mixed()["labels"], 3)
    without = {**mixed(), "labels": labels, "adapter_ids": jnp.zeros((6, 1), jnp.int32)}
    found = jax.jit(made.loss)(params, without)
    assert float(found.terms["where/cross_entropy"].total) == 0.0
    assert np.isfinite(float(found.value()))


def test_class_weights_are_those_of_a_head_alone():
    """Literals: the weights of the task's rows are summed up; other tasks do not change."""
    weighted = dataclasses.replace(OBJECTIVE, class_weights=("three=0.5,2,1",), label_smoothing=0.1)
    made = Learner.of(QUIET, weighted)
    params = random(made.shapes)
    loss = jax.jit(made.loss)(params, mixed())
    alone = Classify(num_classes=3, class_weights=(0.5, 2.0, 1.0), label_smoothing=0.1)
    own = {**params, "heads": {"classifier": params["heads"]["three"]}}
    [found] = jax.jit(Learner.of(QUIET, alone).loss)(own, rows_of(mixed(), 0)).terms.values()
    total, weight, _ = loss.terms["three/cross_entropy"]
    np.testing.assert_allclose(total, found.total, rtol=1e-5)
    assert float(weight) == float(found.weight) == 2.0 + 1.0  # labels 2 and 3
    assert float(loss.terms["where/cross_entropy"].weight) == 1.0


def test_parts_of_a_batch_are_the_batch():
    made = Learner.of(QUIET, dataclasses.replace(OBJECTIVE, class_weights=("three=1,5,2",)))
    params, batch = random(made.shapes), mixed()

    @jax.jit
    def run(params, batch):
        parts = [{name: x[at : at + 3] for name, x in batch.items()} for at in (0, 3)]
        first, second = (made.loss(params, part) for part in parts)
        return made.loss(params, batch).value(), first.plus(second).value()

    whole, parts = run(params, batch)
    np.testing.assert_allclose(parts, whole, rtol=1e-6)


@pytest.mark.parametrize("use", ["MultiTask(a, b, None)", "Parallel(a, b, None)"])
def test_tasks_with_modules_of_their_own(use):
    """Of Parallel the child of a row's task answers, and the others do not count."""
    lora = [Lora(name=name, rank=2, sites=("attention/.*",)) for name in "ab"]
    made = Learner.of(QUIET, OBJECTIVE, adapters=lora, use=parse_trees(use))
    params = random(made.shapes)
    found = sums(jax.jit(made.loss)(params, mixed()))
    for number, name in enumerate(("a", "b", None)):
        adapters = [each for each in lora if each.name == name]
        one = Learner.of(QUIET, OBJECTIVE, adapters=adapters)
        own = {k: x for k, x in params.items() if k != "adapters" or name}
        if name:
            own["adapters"] = {name: params["adapters"][name]}
        alone = sums(jax.jit(one.loss)(own, mixed()))
        term = TERMS[number]
        np.testing.assert_allclose(found[term], alone[term], rtol=1e-5)


def test_its_heads_and_what_is_refused():
    labels = ("no", "perhaps", "yes")
    known = Classifier(name="three", num_classes=3, labels=labels)
    three, score, where = OBJECTIVE.heads({"three": known})
    assert (three, score.num_classes, where) == (known, 1, Span(name="where"))
    weighted = dataclasses.replace(OBJECTIVE, class_weights=("three=1,2,1",))
    for objective in (OBJECTIVE, weighted):
        assert from_json(to_json(objective), source="here") == objective
    for fields, match in (
        ({"tasks": ("mnli",)}, "must be NAME=CLASSES or NAME=span"),
        ({"tasks": ("a=2", "a=3")}, "names the task a twice"),
        ({"tasks": ("a=0",)}, "num_classes must be at least 1"),
        ({"tasks": ("a=2",), "scales": (1.0, 2.0)}, "one scale for each of 1 tasks"),
        ({"tasks": ("abc=2",), "class_weights": ("abd=1,2",)}, "no task is called 'abd'.*abc"),
        ({"tasks": ("a=2",), "class_weights": ("a=1,2", "a=1,2")}, "the task a is named twice"),
        ({"tasks": ("a=1",), "class_weights": ("a=1",)}, "the task a=1 has no classes"),
        ({"tasks": ("a=span",), "class_weights": ("a=1",)}, "the task a=span has no classes"),
        ({"tasks": ("a=2",), "class_weights": ("a=balanced",)}, "must be NAME=W1,W2,..."),
        ({"tasks": ("a=2",), "class_weights": ("a",)}, "must be NAME=W1,W2,..."),
        ({"tasks": ("a=2",), "class_weights": ("a=1,2,3",)}, "each of 2 classes: got 3"),
        ({"tasks": ("a=2",), "class_weights": ("a=-1,2",)}, "weights must be at least 0"),
        ({"tasks": ("a=2",), "class_weights": ("a=0,0",)}, "one of them above 0"),
        ({"tasks": ("a=2",), "class_weights": ("a=1,inf",)}, "weights must be at least 0"),
    ):
        with pytest.raises(InputError, match=match):
            TaskHeads(**fields)
    with pytest.raises(InputError, match=r"objective\.tasks is empty"):
        Learner.of(QUIET, TaskHeads())
    batch = mixed()
    del batch["adapter_ids"]
    made = Learner.of(QUIET, OBJECTIVE)
    with pytest.raises(InputError, match="needs the task number of each row"):
        made.loss(random(made.shapes), batch)


@pytest.mark.slow
def test_two_tasks_are_learned_and_each_is_measured_by_its_head(pretrained, glue, tmp_path):  # noqa: F811
    from t5x_lite.commands.texts import cache
    from t5x_lite.train.measuring import evaluate
    from t5x_lite.train.training import train

    caches = []
    for name, num_classes in (("rte", 2), ("stsb", 1)):
        one = tuned(pretrained, glue, tmp_path / name, task=f"tasks.glue:{name}",
                    num_classes=num_classes)  # fmt: skip
        caches.append(str(tmp_path / "caches" / name))
        cache(saved(one, tmp_path), output=caches[-1], splits=("train", "validation"))
    experiment = dataclasses.replace(
        one,
        objective=TaskHeads(tasks=("rte=2", "stsb=1")),
        data=dataclasses.replace(one.data, cache=tuple(f"{c}=1" for c in caches),
                                 adapter_of=("rte=0", "stsb=1")),
        checkpoints=dataclasses.replace(one.checkpoints, best=None),
        workdir=str(tmp_path / "both"),
    )  # fmt: skip
    metrics = train(experiment)
    del metrics
    for name, metric, least in (("rte", "accuracy", 0.99), ("stsb", "pearson_corrcoef", 0.99)):
        data = dataclasses.replace(one.data, task=f"tasks.glue:{name}")
        settings = dataclasses.replace(experiment.evaluation, loss=False)
        own = dataclasses.replace(experiment, data=data, evaluation=settings)
        found = evaluate(own, [experiment.workdir])
        assert found[f"validation/{metric}"] > least
    wrong = dataclasses.replace(experiment.data, adapter_of=("rte=0", "stsb=2"))
    with pytest.raises(
        InputError, match="the objective has the tasks 0 to 1, but the cache stsb has the number 2"
    ):
        train(dataclasses.replace(experiment, data=wrong, workdir=str(tmp_path / "x")))
    none = dataclasses.replace(experiment.data, adapter_of=())
    with pytest.raises(InputError, match="TaskHeads requires the task number of each example"):
        train(dataclasses.replace(experiment, data=none, workdir=str(tmp_path / "x")))
