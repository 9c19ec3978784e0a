import types

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.config import TaskArguments
from t5x_lite.data.tasks.names import Wording, is_marked, mark
from t5x_lite.data.vocabularies.byte_level import Bytes

MNLI = Wording(prefix="mnli", template="hypothesis: {hypothesis} premise: {premise}")


def changed(own=MNLI, **words):
    arguments = TaskArguments(
        vocabulary=Bytes(), directory="", inputs_length=8, targets_length=8, **words
    )
    return own.changed(arguments).inputs


def test_what_a_config_leaves_alone_is_the_task_s():
    assert changed() == MNLI.inputs == "mnli hypothesis: {hypothesis} premise: {premise}"
    assert changed(template="{premise} So {hypothesis}?") == "mnli {premise} So {hypothesis}?"
    assert changed(prefix="nli:") == "nli: hypothesis: {hypothesis} premise: {premise}"
    assert changed(prefix="", template="{premise}") == "{premise}"


def test_a_prefix_is_no_template():
    assert changed(prefix="{nli}", template="{premise}") == "{{nli}} {premise}"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (
            "premise: {sentence}",
            "data.template 'premise: {sentence}' names 'sentence'; the task's columns are "
            "hypothesis, premise",
        ),
        ("premise", "data.template 'premise' names no column in braces; the task's columns are h"),
        ("{premise} }", "the template '{premise} }' has a single brace }; write }}"),
    ],
)
def test_a_wrong_template_is_refused(template, message):
    with pytest.raises(InputError) as error:
        changed(template=template)
    assert message in str(error.value)


def test_any_column_will_do_where_they_are_not_known():
    own = Wording(prefix="", template="", columns=None)
    assert changed(own, template="{anything}", prefix="read") == "read {anything}"


def test_a_task_says_that_it_is_reached():
    task = types.SimpleNamespace()
    assert not is_marked(task)
    assert mark(task) is task
    assert is_marked(task)
