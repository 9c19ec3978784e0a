import dataclasses
import logging

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.config import Data, TaskArguments
from t5x_lite.data.mixing import Mixing
from t5x_lite.data.mixtures import Member, Mixture, find_mixture, mixture_named
from t5x_lite.data.tasks.names import find_task, parts_of
from t5x_lite.data.vocabularies.byte_level import Bytes
from t5x_lite.data.vocabularies.loading import load_vocabulary
from tests.seqio_module import written

NAME = "seqio:my_seqio.tasks:"


@pytest.fixture(scope="module")
def vocabulary(tiny_vocabulary):
    return load_vocabulary(tiny_vocabulary)


@pytest.fixture(scope="module", autouse=True)
def module(tmp_path_factory, vocabulary):
    with written(tmp_path_factory.mktemp("project"), str(vocabulary.model_path)) as name:
        yield name


@pytest.fixture
def arguments(vocabulary):
    return TaskArguments(
        vocabulary=vocabulary, directory="", inputs_length=24, targets_length=8, seed=0
    )


def test_names():
    assert parts_of("tasks.glue:cola") == ("tasks.glue", "cola")
    assert parts_of("seqio:a.b:name") == ("a.b", "name")
    assert parts_of("seqio:a.b:with:colon") == ("a.b", "with:colon")
    assert Member(task=NAME + "count_first").name == "count_first"


def test_a_task_is_the_registered_one(arguments):
    task = find_task(NAME + "count_length")(arguments)
    assert (task.name, list(task.splits)) == ("count_length", ["train", "validation"])
    lengths = {"inputs": 24, "targets": 8}
    dataset = task.get_dataset(lengths, "validation", shuffle=False)
    first = next(iter(dataset.as_numpy_iterator()))
    assert arguments.vocabulary.decode(first["inputs"].tolist()) == "length two 0"
    assert first["targets"].tolist() == [*arguments.vocabulary.encode("1"), 1]


def test_metrics_and_postprocess_are_the_tasks_own(arguments, caplog):
    from t5x_lite.data.tasks import names

    names._tell_of_others.cache_clear()
    with caplog.at_level(logging.WARNING):
        task = find_task(NAME + "count_length")(arguments)
        find_task(NAME + "count_length")(arguments)
    assert caplog.text.count("count_length: skipping 1 of its metrics") == 1
    [metric] = task.predict_metric_fns
    assert metric(["1", "2"], ["1", "3"]) == {"accuracy": 0.5, "examples": 2.0}
    example = {"line": "two 0\t1"}
    assert task.postprocess_fn(" 1", example=example, is_target=False) == "1"
    assert task.postprocess_fn("1", example=example, is_target=True) == "1"
    assert example == {"line": "two 0\t1"}


def test_a_mixture_is_flattened_to_its_tasks_and_rates():
    found = mixture_named(NAME + "count_both")
    assert found == Mixture(
        members=(
            Member(task=NAME + "count_first", rate=11.0),
            Member(task=NAME + "count_length", rate=3.0),
        )
    )
    nested = mixture_named(NAME + "count_all")
    assert nested is not None
    assert {member.name: member.rate for member in nested.members} == {
        "count_first": 6.0 * 11 / 14,
        "count_length": 6.0 * 3 / 14,
        "count_random": 2.0,
    }
    assert mixture_named(NAME + "count_first") is None


def test_rates_are_those_of_seqio():
    from t5x_lite.data.elements import seqio

    nested = mixture_named(NAME + "count_all")
    assert nested is not None
    theirs = seqio.MixtureRegistry.get("count_all")
    rates = {task.name: theirs.get_rate(task) for task in theirs.tasks}
    assert {member.name: member.rate for member in nested.members} == rates


@pytest.mark.parametrize("name", ["count_first", NAME + "count_first"])
def test_a_task_of_a_mixture_is_left_out_by_its_name(name):
    data = Data(task=NAME + "count_all", vocabulary="", mixing=Mixing(leave_out=(name,)))
    found = find_mixture(data)
    assert found is not None
    assert [member.name for member in found.members] == ["count_length", "count_random"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("seqio:count_first", "must be seqio:module:name, where importing module adds name to"),
        ("seqio::count_first", "must be seqio:module:name"),
        (
            "seqio:my_seqio.task:count_first",
            "module 'my_seqio.task' does not exist; did you mean my_seqio.tas",
        ),
        (
            NAME + "count_frist",
            "my_seqio.tasks registers no task 'count_frist' in seqio's registry; did",
        ),
        (NAME + "count_frist", "did you mean count_first?"),
        (NAME + "zzz", "registers no task 'zzz' in seqio's registry; it has "),
        (NAME + "count_broken", "mixture count_broken has no rate for its task count_first (Attr"),
    ],
)
def test_what_is_wrong_is_one_line(name, message):
    with pytest.raises(InputError) as error:
        find_task(name)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_another_vocabulary_is_refused(arguments, vocabulary, tiny_vocabulary):
    fewer = dataclasses.replace(
        arguments, vocabulary=load_vocabulary(tiny_vocabulary, extra_ids=90)
    )
    task = find_task(NAME + "count_length")
    with pytest.raises(InputError) as error:
        task(fewer)
    assert str(error.value) == (
        "seqio task count_length: the vocabulary of its feature inputs is "
        f"{vocabulary.model_path} (400 tokens, sentinels included), but data.vocabulary is "
        f"{vocabulary.model_path} (390 tokens, sentinels included); set "
        f"--data.vocabulary {vocabulary.model_path} --data.extra-ids 100"
    )
    with pytest.raises(InputError, match=r"but data\.vocabulary is bytes"):
        task(dataclasses.replace(arguments, vocabulary=Bytes()))


def test_one_of_two_vocabularies_is_not_enough(arguments, vocabulary):
    from t5x_lite.data.elements import seqio

    task = find_task(NAME + "count_length")(arguments)
    features = dict(task.output_features)
    features["targets"] = seqio.Feature(vocabulary=seqio.ByteVocabulary())
    from t5x_lite.data.tasks.names import OtherVocabulary, check_vocabularies

    with pytest.raises(OtherVocabulary, match="different vocabularies for inputs and targets"):
        check_vocabularies(task.replace(output_features=features), vocabulary)
    ids = {name: seqio.Feature(seqio.PassThroughVocabulary(size=9)) for name in features}
    check_vocabularies(task.replace(output_features=ids), vocabulary)
    gone = seqio.Feature(seqio.SentencePieceVocabulary("gone.model"))
    with pytest.raises(InputError, match="count_length: its vocabulary cannot be read"):
        check_vocabularies(task.replace(output_features={"targets": gone}), vocabulary)


def test_bytes_are_compared_by_their_sentinels(arguments):
    from t5x_lite.data.elements import seqio
    from t5x_lite.data.tasks.names import check_vocabularies

    task = find_task(NAME + "count_length")(arguments)
    plain = task.replace(output_features={"targets": seqio.Feature(seqio.ByteVocabulary())})
    check_vocabularies(plain, Bytes(extra_ids=100))
    more = seqio.Feature(seqio.ByteVocabulary(extra_ids=7))
    with pytest.raises(InputError, match=r"--data\.vocabulary bytes --data\.extra-ids 7"):
        check_vocabularies(task.replace(output_features={"targets": more}), Bytes())


def test_a_task_of_seqios_own_cache_alone_is_refused(arguments):
    from t5x_lite.data.elements import seqio
    from t5x_lite.data.tasks import names

    task = find_task(NAME + "count_length")(arguments)
    steps = [seqio.preprocessors.tokenize, seqio.CacheDatasetPlaceholder(required=True)]
    with pytest.raises(InputError, match="requires seqio's own cache"):
        names._task(task.replace(preprocessors=steps), arguments)
