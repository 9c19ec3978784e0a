"""Mixtures by name and their rates; that no task is imported for it is part of the test."""

import sys
from types import ModuleType

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.config import Data
from t5x_lite.data.mixing import Mixing
from t5x_lite.data.mixtures import Member, Mixture, find_mixture, member_data

MIXTURE = Mixture(
    members=(
        Member(task="some.glue:cola", examples=8_551),
        Member(task="some.glue:mnli", examples=392_702),
        Member(task="some.squad:all_answers"),
        Member(task="some.c4:spans", rate=710_000.0, unlabelled=True),
        Member(task="some.glue:ax", rate=0.0),
    )
)


def never(_):
    raise AssertionError("counted")


@pytest.fixture
def named(monkeypatch):
    """A module in which data.task finds the mixture and a task."""
    module = ModuleType("some_mixtures")
    vars(module).update(small=MIXTURE, task=lambda arguments: None)
    monkeypatch.setitem(sys.modules, "some_mixtures", module)
    return module


def data(**settings):
    return Data(**{"task": "some_mixtures:small", "vocabulary": "bytes", **settings})


def test_names_are_those_of_module_and_function():
    assert [m.name for m in MIXTURE.members] == [
        "glue_cola", "glue_mnli", "squad_all_answers", "c4_spans", "glue_ax",
    ]  # fmt: skip
    assert [m.is_trained for m in MIXTURE.members] == [True, True, True, True, False]


def test_rates():
    def rates(**settings):
        return MIXTURE.rates(Mixing(**settings), count=lambda member: 87_599)

    assert rates() == [8_551.0, 392_702.0, 87_599.0, 710_000.0, 0.0]
    assert rates(maximum=65_536) == [8_551.0, 65_536.0, 65_536.0, 710_000.0, 0.0]
    assert rates(maximum=65_536, temperature=2.0)[1:] == [256.0, 256.0, 710_000.0, 0.0]
    assert rates(by="equal") == [1.0, 1.0, 1.0, 1.0, 0.0]


def test_examples_are_counted_only_where_they_must_be():
    known = MIXTURE.without(["squad_all_answers"])
    assert known.rates(Mixing(), count=never) == [8_551.0, 392_702.0, 710_000.0, 0.0]
    assert MIXTURE.rates(Mixing(by="equal"), count=never)[2] == 1.0


def test_a_limit_that_changes_nothing_is_refused():
    constant = Mixture(members=(Member(task="a:b", rate=1.0), Member(task="a:c", rate=0.0)))
    assert constant.rates(Mixing(), count=never) == [1.0, 0.0]
    with pytest.raises(InputError, match="have no effect"):
        constant.rates(Mixing(maximum=8), count=never)


def test_a_limit_that_does_not_reach_a_task_is_refused():
    members = (Member(task="a:b", rate=5.0), Member(task="a:c", examples=9), MIXTURE.members[3])
    mixture = Mixture(members=members)
    assert mixture.constants(Mixing()) == []
    for mixing in (Mixing(maximum=8), Mixing(temperature=2.0)):
        assert [member.name for member in mixture.constants(mixing)] == ["a_b", "c4_spans"]
        with pytest.raises(InputError, match="do not change the constant rates of a_b; unset both"):
            mixture.rates(mixing, count=never)
    assert mixture.without(["a_b"]).rates(Mixing(maximum=8), count=never) == [8.0, 710_000.0]
    assert mixture.rates(Mixing(by="equal"), count=never) == [1.0, 1.0, 1.0]


def test_tasks_with_the_same_examples_share_a_rate():
    both = Mixture(
        members=(
            Member(task="a.x:rte", examples=100, shared_examples="rte"),
            Member(task="a.y:rte", examples=100, shared_examples="rte"),
            Member(task="a.y:cb", examples=10),
            Member(task="a.y:axb", rate=0.0),
        )
    )
    assert both.rates(Mixing(), count=never) == [50.0, 50.0, 10.0, 0.0]
    assert both.rates(Mixing(maximum=36, temperature=2.0), count=never)[:2] == [3.0, 3.0]
    assert both.rates(Mixing(by="equal"), count=never) == [1.0, 1.0, 1.0, 0.0]
    assert both.without(["x_rte"]).rates(Mixing(), count=never) == [100.0, 10.0, 0.0]
    with pytest.raises(InputError, match="constant rate, so it cannot have shared_examples"):
        Member(task="a:b", rate=1.0, shared_examples="rte")


def test_a_task_s_own_name_stands_for_it_where_it_is_the_only_one():
    both = Mixture(
        members=tuple(Member(task=name, rate=1.0) for name in ("a.x:rte", "a.y:rte", "a.y:dpr"))
    )
    assert [member.name for member in both.without(["dpr"]).members] == ["x_rte", "y_rte"]
    with pytest.raises(
        InputError, match="'rte' is ambiguous and can mean x_rte or y_rte; give one of these names"
    ):
        both.without(["rte"])


@pytest.mark.parametrize(
    ("names", "left"),
    [
        (["some.glue:cola"], ["glue_mnli", "squad_all_answers", "c4_spans", "glue_ax"]),
        (["some.glue"], ["squad_all_answers", "c4_spans"]),
        (["glue_mnli", "some.c4"], ["glue_cola", "squad_all_answers", "glue_ax"]),
        ([], ["glue_cola", "glue_mnli", "squad_all_answers", "c4_spans", "glue_ax"]),
    ],
)
def test_leave_out(names, left):
    assert [member.name for member in MIXTURE.without(names).members] == left


def test_leave_out_refuses_what_is_not_there_and_everything():
    with pytest.raises(InputError, match=r"no task 'glue_colla'; did you mean glue_cola\?"):
        MIXTURE.without(["glue_colla"])
    with pytest.raises(InputError, match="its tasks are glue_cola, glue_mnli"):
        MIXTURE.without(["zzz"])
    with pytest.raises(InputError, match="removes all tasks to train on"):
        MIXTURE.without(["some.glue", "some.c4", "some.squad"])


def test_a_mixture_that_is_none_is_refused():
    with pytest.raises(InputError, match="each task only once, but b_c occurs twice"):
        Mixture(members=(Member(task="a.b:c", rate=1.0), Member(task="x.b:c", rate=1.0)))
    with pytest.raises(InputError, match="a rate above 0"):
        Mixture(members=(Member(task="a:b", rate=0.0),))
    with pytest.raises(InputError, match="a rate and a number"):
        Member(task="a:b", rate=1.0, examples=5)
    with pytest.raises(InputError, match="must not be negative"):
        Member(task="a:b", rate=-1.0)


def test_a_task_has_a_limit_of_its_own():
    both = Mixture(
        members=(Member(task="a:b", examples=100, maximum=64), Member(task="a:c", maximum=10))
    )
    rates = both.rates
    assert rates(Mixing(), count=lambda member: 25) == [64.0, 10.0]
    assert rates(Mixing(maximum=49, temperature=2.0), count=lambda member: 4) == [7.0, 2.0]
    assert rates(Mixing(by="equal"), count=never) == [1.0, 1.0]
    for wrong in ({"maximum": 0}, {"maximum": 5, "rate": 1.0}):
        with pytest.raises(InputError, match="maximum of task a:b must be at least 1, or"):
            Member(task="a:b", **wrong)


def test_unlabelled_text_has_the_rate_that_is_set():
    members = (
        Member(task="a:b", examples=100),
        Member(task="a:c", examples=900, unlabelled=True, maximum=9),
        Member(task="a:d", rate=0.0, unlabelled=True),
    )
    mixture = Mixture(members=members)
    changed = mixture.with_unlabelled(7)
    assert changed.rates(Mixing(maximum=4, temperature=2.0), count=never) == [2.0, 7.0, 0.0]
    assert [member.name for member in changed.constants(Mixing(maximum=4))] == ["a_c"]
    assert mixture.with_unlabelled(None) is mixture
    with pytest.raises(InputError, match="unlabelled is 7, but the mixture has no"):
        mixture.without(["a_c"]).with_unlabelled(7)


@pytest.mark.usefixtures("named")
def test_find_mixture():
    assert find_mixture(data()) == MIXTURE
    assert find_mixture(data(mixing=Mixing(leave_out=("some.glue",)))) == MIXTURE.without(
        ["some.glue"]
    )
    changed = find_mixture(data(mixing=Mixing(unlabelled=5)))
    assert changed == MIXTURE.with_unlabelled(5) != MIXTURE
    assert find_mixture(data(task="some_mixtures:task")) is None
    assert find_mixture(data(task="", cache="c")) is None
    with pytest.raises(InputError, match="is a single task, not a mixture"):
        find_mixture(data(task="some_mixtures:task", mixing=Mixing(by="equal")))
    with pytest.raises(InputError, match=r"data\.template is for one task, but data\.task .* is"):
        find_mixture(data(template="{text}"))
    assert find_mixture(data(task="some_mixtures:task", template="{text}")) is None
    assert "some" not in sys.modules


@pytest.mark.usefixtures("named")
def test_a_member_is_read_alone(tmp_path):
    member = Member(task="some.glue:cola", examples=1, directory="glue")
    mixed = data(directory=str(tmp_path), mixing=Mixing(by="equal"), cache=("a", "b"))
    alone = member_data(mixed, member)
    assert (alone.task, alone.directory, alone.mixing, alone.cache) == (
        "some.glue:cola", str(tmp_path), Mixing(), "",
    )  # fmt: skip
    (tmp_path / "glue").mkdir()
    assert member_data(mixed, member).directory == str(tmp_path / "glue")
    for elsewhere in ("", "tfds", "gs://bucket/tfds"):
        assert member_data(data(directory=elsewhere), member).directory == elsewhere
