import dataclasses
import logging

import ml_dtypes
import numpy as np
import pytest

from t5x_lite.checkpoints import items
from t5x_lite.commands.deltas import _in_bytes, _named, compose, merge
from t5x_lite.core import trees
from t5x_lite.core.errors import InputError
from t5x_lite.inference.delta_files import load, open_delta, save
from t5x_lite.inference.loading import learner_of, read_experiment
from tests.adapters.delta_directories import experiment, nested, write_base, write_run, write_step
from tests.adapters.hosts import HOSTS, outputs

LORA = "lora(r=2, alpha=3.0)"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A base and three runs of it: two with LoRA, one with all weights."""
    directory = tmp_path_factory.mktemp("composing")
    base = write_base(directory / "t5", "t5")
    write_run(directory / "a", "t5", base, f"rte = {LORA}", seed=1)
    write_run(directory / "b", "t5", base, f"mrpc = {LORA}", seed=2)
    write_run(directory / "bn", "t5", base, "sst = seq_bn(reduction=2)", seed=3)
    union = "both = lora(r=2) + seq_bn(reduction=2)"
    write_run(directory / "both", "t5", base, union, seed=4)
    return directory


def params(directory):
    """Arrays of a whole checkpoint by path."""
    return {p: a.read() for p, a in items.lazy_params(directory / "params").items()}


def config(directory):
    text = (directory / "files" / "config.json").read_bytes()
    return read_experiment(directory, {"config.json": text})


def logits(directory, host="t5"):
    learner = learner_of(config(directory))
    return outputs(learner, nested(params(directory)), HOSTS[host][2])


@pytest.mark.slow
def test_a_merged_run_is_a_plain_checkpoint(place, tmp_path):
    merge(str(place / "a"), str(tmp_path / "merged"))
    after, base = params(tmp_path / "merged"), params(place / "t5")
    assert after.keys() == base.keys()
    changed = load(place / "a").parts
    for path, x in after.items():
        assert x.dtype == np.float32
        assert np.array_equal(x, base[path]) == (path not in changed)
    found = config(tmp_path / "merged")
    assert (found.adapters.add, found.init.checkpoint) == ((), "")
    assert (tmp_path / "merged/files/vocabulary/bytes.json").read_bytes() == b"{}"
    # It answers what the run answers.
    run = config(place / "a")
    whole = nested({**params(place / "t5"), **params(place / "a")})
    expected = outputs(learner_of(run), whole, HOSTS["t5"][2])
    np.testing.assert_allclose(logits(tmp_path / "merged"), expected, atol=1e-4)
    with pytest.raises(InputError, match="merged exists and is not empty"):
        merge(str(place / "a"), str(tmp_path / "merged"))


@pytest.mark.slow
def test_composed_and_merged(place, tmp_path):
    places = [f"{name}={place / name}" for name in "ab"]
    compose("ties(a, b, density=0.2) - 0.5 * b", str(tmp_path / "abc"), delta=places)
    merge(str(tmp_path / "abc"), str(tmp_path / "merged"))
    delta, base = load(tmp_path / "abc"), params(place / "t5")
    expected = trees.flatten(delta.apply(nested(base)))
    for path, x in params(tmp_path / "merged").items():
        np.testing.assert_array_equal(x, np.asarray(expected[path]), err_msg=path)
    np.testing.assert_allclose(logits(tmp_path / "merged"), logits(tmp_path / "merged"))
    # A delta of deltas is one as well.
    compose("abc - abc", str(tmp_path / "none"), delta=[f"abc={tmp_path / 'abc'}"])
    merge(str(tmp_path / "none"), str(tmp_path / "base"))
    for path, x in params(tmp_path / "base").items():
        np.testing.assert_array_equal(x, base[path])


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.gate("float32")
@pytest.mark.slow
def test_an_empty_delta_is_bitwise_the_base(place, tmp_path, dtype):
    base = write_base(tmp_path / "t5", "t5", dtype=dtype)
    write_run(tmp_path / "a", "t5", base, f"rte = {LORA}")
    compose("0 * a", str(tmp_path / "empty"), delta=[f"a={tmp_path / 'a'}"])
    merge(str(tmp_path / "empty"), str(tmp_path / "merged"))
    for path, x in params(tmp_path / "merged").items():
        assert x.dtype == dtype
        np.testing.assert_array_equal(x, base[1][path])


@pytest.mark.slow
def test_each_command_says_what_it_wrote(place, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    compose("a", str(tmp_path / "a"), delta=[f"a={place / 'a'}"])
    kilobytes = load(tmp_path / "a").nbytes / 1e3
    number = len(load(tmp_path / "a").parts)
    assert (
        f"wrote the delta {tmp_path}/a (contents: {number} changed arrays; size: "
        f"{kilobytes:.3g} kB)" in caplog.text
    )
    merge(str(place / "a"), str(tmp_path / "merged"))
    assert (
        f"wrote {tmp_path}/merged: checkpoint {place}/t5 merged with {number} changed arrays"
        in caplog.text
    )
    merge(str(place / "bn"), str(tmp_path / "kept"))
    told = f"merged into the weights and is stored as an adapter of checkpoint {tmp_path}/kept"
    assert f"sst (Bottleneck) cannot be {told}" in caplog.text
    assert (
        f"{place}/t5 merged with 0 changed arrays and the adapter sst (Bottleneck)" in caplog.text
    )


@pytest.mark.slow
def test_a_union_that_stays_is_named(place, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    merge(str(place / "both"), str(tmp_path / "merged"))
    assert (
        "both (Lora and Bottleneck) cannot be merged into the weights and is stored as an adapter"
        in caplog.text
    )


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1234, "1.23 kB"),
        (45_678_901, "45.7 MB"),
        (2_000_000_000, "2 GB"),
    ],
)
def test_sizes(number, shown):
    assert _in_bytes(number) == shown


@pytest.mark.slow
def test_bfloat16_says_what_it_loses(place, tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="t5x_lite"):
        merge(str(place / "a"), str(tmp_path / "half"), dtype="bfloat16")
    assert {x.dtype for x in params(tmp_path / "half").values()} == {np.dtype(ml_dtypes.bfloat16)}
    assert "in bfloat16, the changed arrays have a relative rounding error of 0.00" in caplog.text
    assert "of the change" in caplog.text


@pytest.mark.exhaustive
def test_modules_that_no_kernel_holds_stay(place, tmp_path):
    merge(str(place / "bn"), str(tmp_path / "merged"))
    found = config(tmp_path / "merged")
    assert found.adapters.add == ("sst = seq_bn(reduction=2.0)",)
    whole = nested({**params(place / "t5"), **params(place / "bn")})
    expected = outputs(learner_of(found), whole, HOSTS["t5"][2])
    np.testing.assert_allclose(logits(tmp_path / "merged"), expected, atol=1e-6)
    # Twice its branch, as a number and as a sum.
    for text in ("2 * m", "m + m"):
        name = text.replace(" ", "")
        compose(text, str(tmp_path / name), delta=[f"m={place / 'bn'}"])
        merge(str(tmp_path / name), str(tmp_path / f"{name}.merged"))
    assert config(tmp_path / "m+m.merged").adapters.modules[0].scale == 1.0
    twice = logits(tmp_path / "2*m.merged")
    np.testing.assert_allclose(logits(tmp_path / "m+m.merged"), twice, atol=1e-5)
    assert np.max(np.abs(twice - expected)) > 1e-3
    with pytest.raises(InputError, match="adapter sst is not a change of the model"):
        compose("ties(m, a)", str(tmp_path / "no"), delta=[f"{n}={place / d}" for n, d in
                                                       (("m", "bn"), ("a", "a"))])  # fmt: skip


@pytest.mark.slow
def test_a_whole_run_with_its_base(place, tmp_path):
    base = params(place / "t5")
    tuned = {path: x + np.float32(0.5) for path, x in base.items()}
    write_step(tmp_path / "tuned", experiment("t5"), tuned)
    compose(
        "-0.5 * t",
        str(tmp_path / "away"),
        delta=[f"t={tmp_path / 'tuned'}"],
        base=str(place / "t5"),
    )
    merge(str(tmp_path / "away"), str(tmp_path / "merged"))
    for path, x in params(tmp_path / "merged").items():
        np.testing.assert_allclose(x, base[path] - 0.25, atol=1e-5)


@pytest.mark.exhaustive
def test_heads_of_two_runs(tmp_path):
    base = write_base(tmp_path / "bert", "bert")
    for name, seed in (("a", 1), ("b", 2)):
        write_run(tmp_path / name, "bert", base, f"m = {LORA}", seed=seed)
    places = [f"{name}={tmp_path / name}" for name in "ab"]
    with pytest.raises(InputError, match="both deltas have the head parameter heads/classifier/"):
        compose("a + b", str(tmp_path / "no"), delta=places)
    assert not (tmp_path / "no").exists()
    compose("a + without_heads(b)", str(tmp_path / "ab"), delta=places)
    merge(str(tmp_path / "ab"), str(tmp_path / "merged"))
    head = next(p for p in params(tmp_path / "a") if p.startswith("heads/"))
    np.testing.assert_array_equal(params(tmp_path / "merged")[head], params(tmp_path / "a")[head])
    # Its config is that of the run whose head it is.
    opened = {name: open_delta(tmp_path / name) for name in "ab"}
    for name, one in opened.items():
        config_file = {
            "config.json": one.files["config.json"].replace(b'"steps": 5', b'"steps": 7')
        }
        save(one.delta, tmp_path / f"{name}7", files=config_file if name == "b" else one.files)
    seven = [f"a={tmp_path / 'a7'}", f"b={tmp_path / 'b7'}"]
    compose("without_heads(a) + b", str(tmp_path / "of_b"), delta=seven)
    assert b'"steps": 7' in open_delta(tmp_path / "of_b").files["config.json"]
    # A head needs a place in the config.
    homeless = dataclasses.replace(opened["a"].delta, extra={"heads/other/bias": np.zeros(2)})
    save(homeless, tmp_path / "homeless")
    with pytest.raises(
        InputError, match=r"the parameter heads/other/bias, but the config of the delta does not"
    ):
        merge(str(tmp_path / "homeless"), str(tmp_path / "no"))
    wide = {**opened["a"].delta.extra, head: np.zeros((3, 3, 3))}
    save(dataclasses.replace(opened["a"].delta, extra=wide), tmp_path / "wide")
    with pytest.raises(
        InputError,
        match=rf"wide: the array {head} has the shape \(3, 3, 3\), but the config requires",
    ):
        merge(str(tmp_path / "wide"), str(tmp_path / "no"))


@pytest.mark.exhaustive
@pytest.mark.slow
def test_another_base_is_refused(place, tmp_path):
    base = write_base(tmp_path / "t5", "t5", dtype=ml_dtypes.bfloat16)
    write_run(tmp_path / "a", "t5", base, f"rte = {LORA}")
    places = [f"a={place / 'a'}", f"b={tmp_path / 'a'}"]
    with pytest.raises(
        InputError, match=r"column 1: the deltas have different base models.*digest"
    ):
        compose("a + b", str(tmp_path / "no"), delta=places)
    with pytest.raises(InputError, match=r"t5 is not the base model of .*/a: .* model/.* differs"):
        merge(str(place / "a"), str(tmp_path / "no"), base=str(tmp_path / "t5"))
    merge(str(place / "a"), str(tmp_path / "yes"), base=str(tmp_path / "t5"), allow_other_base=True)
    other = {"base": str(tmp_path / "t5"), "allow_other_base": True}
    compose("materialise(a)", str(tmp_path / "sums"), delta=[f"a={place / 'a'}"], **other)
    assert load(tmp_path / "sums").base.checkpoint == str(tmp_path / "t5")
    merge(str(tmp_path / "sums"), str(tmp_path / "same"))  # it is a change of the other one now
    assert not (tmp_path / "no").exists()


def test_what_is_wrong_is_said_before_anything_is_read(place, tmp_path):
    places = [f"a={place / 'a'}"]
    for text, given, reason in (
        ("a + b", places, "column 5: unknown delta b; name a delta with --delta b=DIR"),
        ("tie(a)", places, "column 1: unknown function tie; did you mean ties?"),
        ("a", [*places, "b=nowhere"], "--delta b is not used in the expression 'a'"),
        ("a", ["a"], "--delta must be NAME=DIR, such as a=work/a, got 'a'"),
        ("a", [*places, *places], "--delta has the name a twice"),
        ("a", ["a=nowhere"], "nowhere: no such directory"),
    ):
        with pytest.raises(InputError, match=reason.replace("?", r"\?")):
            compose(text, str(tmp_path / "no"), delta=given)
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="file exists and is not empty"):
        compose("a", str(tmp_path / "file"), delta=places)
    assert _named(["a=x=y"], option="--delta") == {"a": "x=y"}
    with pytest.raises(InputError, match="contains no Fisher diagonal"):
        compose("fisher(a)", str(tmp_path / "no"), delta=places, fisher=places)
    with pytest.raises(
        InputError, match="--fisher names the delta b, but no --delta option has this name"
    ):
        compose("fisher(a)", str(tmp_path / "no"), delta=places, fisher=["b=nowhere"])


@pytest.mark.exhaustive
def test_a_delta_without_a_name_of_its_base(place, tmp_path):
    delta = load(place / "a")
    save(type(delta)(delta.parts), tmp_path / "plain")
    with pytest.raises(InputError, match="does not record its base model; give --base DIR"):
        merge(str(tmp_path / "plain"), str(tmp_path / "no"))
    merge(str(tmp_path / "plain"), str(tmp_path / "yes"), base=str(place / "t5"))
    merge(str(place / "a"), str(tmp_path / "same"))
    ours, theirs = params(tmp_path / "yes"), params(tmp_path / "same")
    assert all(np.array_equal(x, theirs[path]) for path, x in ours.items())
    assert open_delta(tmp_path / "plain").files == {}


@pytest.mark.exhaustive
def test_a_delta_without_files_brings_its_modules(place, tmp_path):
    save(load(place / "bn"), tmp_path / "bn")
    merge(str(tmp_path / "bn"), str(tmp_path / "merged"))
    merge(str(place / "bn"), str(tmp_path / "same"))
    assert config(tmp_path / "merged").adapters.add == ("sst = seq_bn(reduction=2.0)",)
    assert params(tmp_path / "merged").keys() == params(tmp_path / "same").keys()
