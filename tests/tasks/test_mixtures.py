"""T5's recipes, their weights frozen; that their tasks exist."""

import subprocess
import sys

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.data.mixing import Mixing
from t5x_lite.data.tasks.names import find_task

RECIPES = (
    "glue",
    "super_glue",
    "all_proportional",
    "all_mix",
    "t5_all_proportional",
    "t5_all_mix",
    "large_supervised",
    "multi_task_small",
    "multi_task_base",
    "multi_task_large",
    "multi_task_3b",
    "multi_task_11b",
)


@pytest.fixture(scope="module")
def recipes():
    import tasks.mixtures

    return tasks.mixtures


def rates(mixture, **settings):
    def never(member):
        raise AssertionError(f"{member.name} is counted")

    found = mixture.rates(Mixing(**settings), count=never)
    return {m.name: rate for m, rate in zip(mixture.members, found, strict=True) if rate}


def test_glue_weighs_as_in_t5(recipes):
    assert rates(recipes.glue) == {
        "glue_cola": 8_551.0, "glue_sst2": 67_349.0, "glue_mrpc": 3_668.0, "glue_qqp": 363_849.0,
        "glue_stsb": 5_749.0, "glue_mnli": 392_702.0, "glue_qnli": 104_743.0, "glue_rte": 2_490.0,
    }  # fmt: skip
    measured = [member.name for member in recipes.glue.members if member.measured]
    assert "glue_mnli" not in measured
    assert set(measured) > {"glue_mnli_matched", "glue_mnli_mismatched", "glue_wnli", "glue_ax"}


def test_super_glue_weighs_as_in_t5(recipes):
    assert rates(recipes.super_glue) == {
        "super_glue_dpr": 1_322.0, "super_glue_wsc": 259.0, "super_glue_boolq": 9_427.0,
        "super_glue_cb": 250.0, "super_glue_copa": 400.0, "super_glue_multirc": 27_243.0,
        "super_glue_record": 138_854.0, "super_glue_rte": 2_490.0, "super_glue_wic": 5_428.0,
    }  # fmt: skip


def test_all_proportional_limits_the_large_tasks(recipes):
    found = rates(recipes.all_proportional, maximum=2**19)
    assert found["wmt_ende"] == found["wmt_enfr"] == found["wmt_enro"] == 2.0**19
    assert found["c4_iid_15_u_u"] == 2.0**19
    assert found["summarize_cnn_dailymail"] == 287_113.0
    assert found["glue_rte"] == found["super_glue_rte"] == 1_245.0
    assert found["glue_mnli"] == 392_702.0
    assert set(rates(recipes.all_proportional, by="equal").values()) == {1.0}


@pytest.mark.parametrize(
    ("settings", "share"),
    [
        ({"maximum": 2**16}, 0.500),
        ({"maximum": 2**17}, 0.459),
        ({"maximum": 2**18}, 0.392),
        ({"maximum": 2**21, "temperature": 2.0}, 0.327),
        ({"maximum": 2**21, "temperature": 4.0}, 0.505),
        ({"maximum": 2**21, "temperature": 8.0}, 0.615),
    ],
)
def test_glue_and_super_glue_have_the_share_of_the_paper_s_formula(recipes, settings, share):
    found = rates(recipes.all_proportional, **settings)
    of_both = sum(rate for name, rate in found.items() if "glue" in name)
    assert of_both / sum(found.values()) == pytest.approx(share, abs=0.0006)


def test_rte_counts_once_and_is_whole_where_it_is_left_alone(recipes):
    def rte(*left_out, **settings):
        found = rates(recipes.all_proportional.without(left_out), **settings)
        return {name: rate for name, rate in found.items() if name.endswith("_rte")}

    assert rte() == {"glue_rte": 1_245.0, "super_glue_rte": 1_245.0}
    assert rte(temperature=2.0)["glue_rte"] == pytest.approx(2_490**0.5 / 2)
    assert rte(maximum=1_000)["super_glue_rte"] == 500.0
    for left_out in ("tasks.glue", "glue_rte"):
        assert rte(left_out) == {"super_glue_rte": 2_490.0}
    assert rte("tasks.super_glue") == {"glue_rte": 2_490.0}
    assert rte("tasks.super_glue", temperature=2.0)["glue_rte"] == pytest.approx(2_490**0.5)


def test_the_registry_s_constants_have_a_name_of_their_own(recipes):
    for mixture in (recipes.t5_all_proportional, recipes.t5_all_mix):
        found = rates(mixture)
        assert found["glue_rte"] == found["super_glue_rte"] == 1_245.0
        assert found["glue_mnli"] == 392_702.0
        with pytest.raises(InputError, match="do not change the constant rates of glue_cola, "):
            rates(mixture, maximum=2**19)
    assert rates(recipes.t5_all_mix)["c4_iid_15_u_u"] == 1e6
    assert rates(recipes.t5_all_proportional)["c4_iid_15_u_u"] == 364_868_892.0


def test_large_supervised_is_what_t5_calls_large(recipes):
    assert rates(recipes.large_supervised) == {
        "summarize_cnn_dailymail": 287_113.0,
        "wmt_ende": 4_592_289.0,
        "wmt_enfr": 40_853_298.0,
    }


def test_all_mix_has_a_constant_rate_of_text(recipes):
    found = rates(recipes.all_mix, maximum=2**16, temperature=2.0)
    assert found["c4_iid_15_u_u"] == 1e6
    assert found["glue_mnli"] == 256.0
    assert [m.name for m in recipes.all_mix.constants(Mixing(maximum=2**16))] == ["c4_iid_15_u_u"]


@pytest.mark.parametrize(
    ("size", "text"),
    [
        ("small", 710_000.0),
        ("base", 2_620_000.0),
        ("large", 8_660_000.0),
        ("3b", 33_500_000.0),
        ("11b", 133_000_000.0),
    ],
)
def test_the_released_recipe(recipes, size, text):
    mixture = getattr(recipes, f"multi_task_{size}")
    found = rates(mixture)
    assert found == {
        "glue_cola": 8_551.0, "glue_sst2": 67_349.0, "glue_mrpc": 3_668.0, "glue_qqp": 363_849.0,
        "glue_stsb": 5_749.0, "glue_mnli": 392_702.0, "glue_qnli": 104_743.0, "glue_rte": 1_245.0,
        "super_glue_dpr": 1_322.0, "super_glue_wsc": 259.0, "super_glue_boolq": 9_427.0,
        "super_glue_cb": 250.0, "super_glue_copa": 400.0, "super_glue_multirc": 27_243.0,
        "super_glue_record": 138_854.0, "super_glue_rte": 1_245.0, "super_glue_wic": 5_428.0,
        "summarize_cnn_dailymail": 287_113.0, "squad_squad": 87_599.0,
        "wmt_ende": 1_000_000.0, "wmt_enfr": 1_000_000.0, "wmt_enro": 610_320.0,
        "c4_span_3_15_u_u": text,
    }  # fmt: skip
    # K and T reach the labelled tasks, and T comes after the limit of WMT's tasks.
    changed = rates(mixture, maximum=2**16, temperature=2.0)
    assert changed["wmt_enfr"] == changed["glue_mnli"] == 256.0
    assert changed["c4_span_3_15_u_u"] == text
    assert rates(mixture, temperature=2.0)["wmt_enfr"] == 1_000.0
    # A K of a million, which t5 gives its all_mix, says the same.
    assert rates(mixture, maximum=1_000_000) == found


def test_the_rate_of_unlabelled_text_is_set(recipes):
    def text(mixture, **settings):
        return rates(mixture.with_unlabelled(710_000), **settings)["c4_iid_15_u_u"]

    assert text(recipes.all_mix) == 710_000.0
    assert text(recipes.all_proportional, maximum=2**16, temperature=4.0) == 710_000.0
    assert text(recipes.t5_all_proportional) == 710_000.0
    with pytest.raises(InputError, match="the mixture has no unlabelled text"):
        recipes.glue.with_unlabelled(710_000)


def test_glue_is_left_out_as_one(recipes):
    left = recipes.all_mix.without(["tasks.glue"])
    assert not any(member.name.startswith("glue_") for member in left.members)
    assert any(member.name.startswith("super_glue_") for member in left.members)


def test_wnli_is_answered_by_what_trains_on_its_form(recipes):
    def answers(mixture):
        (wnli,) = [member for member in mixture.members if member.name == "glue_wnli"]
        return not mixture.unanswered(wnli)

    assert not answers(recipes.glue)
    assert answers(recipes.super_glue)
    assert answers(recipes.all_proportional)
    assert answers(recipes.super_glue.without(["super_glue_wsc"]))  # DPR is left
    assert not answers(recipes.all_proportional.without(["tasks.super_glue"]))


def test_the_tasks_exist(recipes):
    for name in RECIPES:
        for member in getattr(recipes, name).members:
            assert callable(find_task(member.task)), member.task


def test_reading_a_mixture_loads_no_tensorflow():
    code = "import sys, tasks.mixtures; sys.exit(bool({'tensorflow', 'seqio'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
