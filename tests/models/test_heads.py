import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.models.heads import ClassHead, Classifier, Mlm, Token, as_before, with_labels

HEADS = [Classifier, Token]


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(
    ("labels", "task", "order"),
    [
        ((), ("no", "yes"), None),
        (("NO", "Yes"), ("no", "yes"), ("no", "yes")),
        (("yes", "no"), ("no", "yes"), ("yes", "no")),
        (("yes", "nope"), ("no", "yes"), None),
        (("yes", "no"), ("no", "yes", "perhaps"), None),
        (("yes", "yes"), ("no", "yes"), None),
    ],
)
def test_a_task_s_labels_in_the_order_of_the_classes(head, labels, task, order):
    assert head(num_classes=2, labels=labels).order_of(task) == order


@pytest.mark.parametrize("head", HEADS)
def test_a_head_gets_the_names_of_its_classes(head):
    own = head(num_classes=2)
    named = head(num_classes=2, labels=("no", "yes"))
    assert with_labels((Mlm(),), own, ("no", "yes")) == (Mlm(), named)
    assert with_labels((Mlm(), named), named, ("no", "yes")) == (Mlm(), named)
    assert with_labels((own,), own, ("a", "b", "c")) == (own,)
    assert with_labels((Mlm(),), Mlm(), ("no", "yes")) == (Mlm(),)
    with pytest.raises(
        InputError, match="has the class order no, yes, but the task has the class order yes, no"
    ):
        with_labels((), named, ("yes", "no"))


@pytest.mark.parametrize("head", HEADS)
def test_a_run_that_goes_on_has_the_names_that_it_got(head):
    own, named = head(num_classes=2), head(num_classes=2, labels=("no", "yes"))
    assert as_before((), (Mlm(), named)) == (Mlm(), named)
    assert as_before((own,), (Mlm(), named)) == (Mlm(), named)
    other = head(num_classes=3)
    assert as_before((other,), (Mlm(), named)) == (Mlm(), other)
    assert as_before((Mlm(),), ()) == (Mlm(),)


def test_what_all_such_heads_refuse():
    with pytest.raises(InputError, match="num_classes must be at least 1: got 0"):
        ClassHead(name="own", num_classes=0)
    with pytest.raises(InputError, match="labels must have 2 entries"):
        ClassHead(name="own", labels=("a",))
    ClassHead(name="own", dropout_rate=None)
    with pytest.raises(InputError, match=r"dropout_rate must be in \[0, 1\): got 1.0"):
        ClassHead(name="own", dropout_rate=1.0)
