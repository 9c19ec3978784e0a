import json
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite import deltas
from t5x_lite.adapters.delta import Delta, Identity
from t5x_lite.adapters.delta_parts import Dense, Dora, LowRank, Replace, Scale, Several, Sparse
from t5x_lite.checkpoints import items
from t5x_lite.checkpoints import reading as checkpointing
from t5x_lite.checkpoints.init import base_at
from t5x_lite.core import trees
from t5x_lite.core.errors import InputError
from t5x_lite.inference.delta_files import load, open_delta, save
from t5x_lite.inference.loading import learner_of
from t5x_lite.models.published import t5_base
from tests.adapters.delta_directories import (
    experiment,
    nested,
    params_of,
    write_base,
    write_run,
    write_step,
)
from tests.tiny_checkpoint import flip

RNG = np.random.default_rng(0)


def array(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_base(tmp_path_factory.mktemp("deltas") / "t5", "t5")


@pytest.fixture(scope="module")
def lora(base):
    return write_run(base[0].parent / "lora", "t5", base, "a = lora(r=2, alpha=3.0)")


def equal(ours, theirs):
    assert ours.keys() == theirs.keys()
    for path, x in ours.items():
        np.testing.assert_array_equal(np.asarray(x), np.asarray(theirs[path]), err_msg=path)


def test_every_part_comes_back(tmp_path):
    parts = {
        "model/a/kernel": LowRank(array(2, 4, 1), array(2, 1, 3), 1 / 3),
        "model/b/kernel": Sparse.of(array(4, 3), np.array([2, 11])),
        "model/c/kernel": Scale(array(2, 4), -2),
        "model/d/kernel": Dora(array(4, 1), array(1, 3), array(3), 0.5),
        "model/e/bias": Replace(array(3)),
        "model/f/bias": Dense(array(3)),
        "model/g/kernel": Several((LowRank(array(4, 1), array(1, 3)), Scale(array(3)))),
    }
    identity = Identity(str(tmp_path / "t5"), {"model/a/kernel": "aa"}, {"model/a/kernel": "old"})
    delta = Delta(parts, {"heads/mlm/bias": array(3)}, identity)
    deltas.save(delta, tmp_path / "d", files={"config.json": b"{}"})
    back = deltas.load(tmp_path / "d")
    assert back.base == identity
    equal(back.extra, delta.extra)
    base = {
        path: array(*(part.shape or {"c": (2, 4, 3)}.get(path[6], (4, 3))))
        for path, part in parts.items()
    }
    equal(
        trees.flatten(back.apply(trees.unflatten(base))),
        trees.flatten(delta.apply(trees.unflatten(base))),
    )
    assert isinstance(back.parts["model/b/kernel"].indices, np.ndarray)
    assert open_delta(tmp_path / "d").files == {"config.json": b"{}"}
    with pytest.raises(InputError, match="exists and is not empty"):
        save(delta, tmp_path / "d")
    empty = tmp_path / "empty"
    save(Delta(), empty)
    assert load(empty).parts == {}
    # Other commands say that it is none of theirs.
    with pytest.raises(InputError, match=r"is a delta.*`t5x-lite merge .*empty DST`"):
        checkpointing.step_files(empty)


def test_a_run_with_lora(base, lora):
    delta = load(lora[0])
    assert all(isinstance(part, LowRank) and part.scale == 1.5 for part in delta.parts.values())
    assert {path.split("/")[1] for path in delta.parts} == {"encoder", "decoder"}
    assert (delta.extra, delta.config) == ({}, ())
    assert delta.base.arrays.keys() == base[1].keys()
    learner = learner_of(experiment("t5", "a = lora(r=2, alpha=3.0)"))
    merged = trees.flatten({"model": learner.merged(nested(lora[1]))})
    ours = trees.flatten(delta.apply(nested(base[1])))
    for path, x in ours.items():
        np.testing.assert_allclose(x, merged[path], atol=1e-6)


@pytest.mark.exhaustive
def test_a_run_saved_whole_is_its_own_base(base, lora, tmp_path):
    config = experiment("t5", "a = lora(r=2, alpha=3.0)")
    whole = write_step(tmp_path / "whole", config, lora[1])
    delta, partial = load(whole), load(lora[0])
    assert delta.base.digest == partial.base.digest
    assert delta.parts.keys() == partial.parts.keys()
    with pytest.raises(InputError, match="is a full model, not a delta; pass --base DIR"):
        load(base[0])


@pytest.mark.slow
def test_trained_biases_are_differences_and_bottlenecks_stay_modules(tmp_path):
    base = write_base(tmp_path / "bert", "bert")
    bias = next(path for path in base[1] if path.endswith("mlp/wi/bias"))
    changes = {bias: base[1][bias] + 1.0}
    # Its own head, and not that of the base.
    module = "b = seq_bn(reduction=2)"
    run = write_run(tmp_path / "run", "bert", base, module, seed=5, **changes)
    delta = load(run[0])
    assert set(delta.parts) == {bias}
    np.testing.assert_allclose(delta.parts[bias].dense(), 1.0, rtol=1e-6)
    assert [adapter.name for adapter in delta.config] == ["b"]
    kinds = {path.split("/")[0] for path in delta.extra}
    assert kinds == {"adapters", "heads"}
    assert bias in delta.base.arrays
    # A sum of two branches from one input is one branch of both widths.
    both = delta + 2 * delta.without_heads()
    [joined] = both.config
    assert joined.scale == 1.0
    config = experiment("bert", module)
    learner = learner_of(config)
    up = "adapters/b/encoder/after_mlp/up/kernel"
    assert both.extra[up].shape[-2] == 2 * delta.extra[up].shape[-2]
    assert learner.adapters == delta.config


@pytest.mark.slow
def test_a_whole_run_and_its_base_give_a_task_vector(base, tmp_path):
    config = experiment("t5")
    tuned = {path: x + array(*x.shape) for path, x in base[1].items()}
    tuned["model/token_embedding/table"] = base[1]["model/token_embedding/table"]
    run = write_step(tmp_path / "tuned", config, tuned)
    delta = load(run, base=base[0])
    assert set(delta.parts) == set(base[1]) - {"model/token_embedding/table"}
    assert delta.base.checkpoint == str(base[0])
    after = trees.flatten(delta.apply(nested(base[1])))
    for path, x in after.items():
        np.testing.assert_allclose(x, tuned[path], rtol=1e-5, atol=1e-6)
    deltas.save(delta.sparsify(density=0.01), tmp_path / "sparse")
    few = load(tmp_path / "sparse")
    assert sum(p.values.size for p in few.parts.values()) == round(0.01 * delta.size)


@pytest.mark.slow
def test_another_base_is_refused_with_both_digests(base, lora, tmp_path, caplog):
    other = {**base[1], "model/token_embedding/table": base[1]["model/token_embedding/table"] + 1}
    where = write_step(tmp_path / "other", experiment("t5"), other)
    digests = load(lora[0]).base.digest[:16]
    prefix = r"other is not the base model of .*lora: the array model/token_embedding/table differs"
    message = rf"{prefix} .*{digests}.*--allow"
    with pytest.raises(InputError, match=message):
        load(lora[0], base=where)
    allowed = load(lora[0], base=where, allow_other_base=True)
    assert "because --allow-other-base is set: " in caplog.text
    assert allowed.parts.keys() == load(lora[0]).parts.keys()
    assert load(lora[0], base=base[0]).base == load(lora[0]).base
    # As other commands have it: the recorded base does not stand in for what --base names.
    with base_at(str(where)), pytest.raises(InputError, match="is not the base of"):
        checkpointing.lazy_params(lora[0])["model/token_embedding/table"].read()
    with base_at(str(tmp_path)), pytest.raises(InputError, match="holds no checkpoint"):
        checkpointing.lazy_params(lora[0])
    with base_at(str(base[0])):
        checkpointing.lazy_params(lora[0])["model/token_embedding/table"].read()


def test_damaged_and_missing_directories(base, lora, tmp_path):
    made = tmp_path / "made"
    save(load(lora[0]), made)
    for name, change in (
        ("params/manifest.ocdbt", flip),
        ("files/delta.json", flip),
        ("files/base.json", flip),
    ):
        copy = tmp_path / f"damaged-{name.rpartition('/')[2]}"
        shutil.copytree(made, copy)
        change(copy / name)
        with pytest.raises(InputError, match=f"{copy.name}.*{name}"):
            load(copy)
    for content, reason in (
        ({"version": 2}, "version is 2, but must be 1"),
        ({"version": 1, "parts": {"model/a": {"kind": "odd"}}, "modules": []}, "'odd'"),
        ({"version": 1, "parts": {"model/a": {"kind": "dense"}}, "modules": []}, "value"),
    ):
        (made / "files" / "delta.json").write_text(json.dumps(content))
        items.write(made)
        with pytest.raises(InputError, match=f"delta.json is damaged .*{reason}"):
            load(made)
    with pytest.raises(InputError, match="no such directory"):
        load(tmp_path / "nowhere")


def test_bytes_of_a_lora_of_the_size_of_t5_base(tmp_path):
    """LoRA of rank 8 has 884,736 numbers there; the files are 100 KB more at most."""
    config = t5_base()
    width, shape = config.d_model, (config.num_encoder_layers, config.d_model)
    sites = ("encoder/layers/attention", "decoder/layers/attention")
    sites += ("decoder/layers/cross_attention",)
    parts = {
        f"model/{site}/{name}/kernel": LowRank(array(*shape, 8), array(shape[0], 8, width))
        for site in sites
        for name in ("query", "value")
    }
    delta = Delta(parts)
    assert delta.nbytes == 4 * 884_736
    save(delta, tmp_path / "lora")
    files = [path for path in (tmp_path / "lora" / "params").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 4 * 884_736 + 100_000


def test_what_orbax_reads_is_what_was_saved(tmp_path):
    save(Delta({"model/a": Dense(array(3).astype(jnp.bfloat16))}), tmp_path / "half")
    arrays = items.lazy_params(tmp_path / "half" / "params")
    assert list(arrays) == ["parts/0/value"]


def test_params_of_a_run_are_those_of_its_base(base, lora):
    assert {p: x for p, x in lora[1].items() if p.startswith("model/")}.keys() == base[1].keys()
    assert params_of(experiment("t5")).keys() == base[1].keys()


@pytest.mark.slow
def test_trained_arrays_that_the_base_lacks(base, lora, tmp_path):
    table = "model/token_embedding/table"
    less = {path: x for path, x in base[1].items() if path != table}
    where = write_step(tmp_path / "less", experiment("t5"), less)
    run = write_step(tmp_path / "run", experiment("t5"), base[1])
    with pytest.raises(
        InputError, match=f"run: the base model .*less has no array {table}, so the change"
    ):
        load(run, base=where)


@pytest.mark.exhaustive
def test_a_base_by_a_relative_path(base, tmp_path, monkeypatch):
    tuned = {path: x + 1.0 for path, x in base[1].items()}
    run = write_step(tmp_path / "tuned", experiment("t5"), tuned)
    monkeypatch.chdir(base[0].parent)
    assert load(run, base=base[0].name).base.checkpoint == str(base[0])


@pytest.mark.slow
def test_paths_and_files_of_today(base, tmp_path):
    save(Delta({"model/encoder/layers/wi/kernel": Dense(array(3))}), tmp_path / "old")
    assert set(load(tmp_path / "old").parts) == {"model/encoder/layers/mlp/wi/kernel"}
    run = write_run(tmp_path / "run", "t5", base, "a = lora(r=2)")[0]
    (run / "files" / "huggingface").mkdir()
    (run / "files" / "huggingface" / "config.json").write_text("{}")
    items.write(run)
    assert open_delta(run).files["huggingface/config.json"] == b"{}"
