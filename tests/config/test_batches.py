"""A learner taken apart, and a checkpoint that is ready for use."""

import dataclasses
import re
import shutil
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_lite import layouts
from t5x_lite.config.batches import check_batch, check_devices, with_choices
from t5x_lite.core.errors import InputError
from t5x_lite.core.sharding import MESH_AXES, MeshConfig, make_mesh
from t5x_lite.data.config import Bucketed
from t5x_lite.inference.loading import Loaded, learner_of, read_experiment
from t5x_lite.models.deberta import DebertaConfig
from t5x_lite.models.encoder import BertConfig
from t5x_lite.models.t5 import T5
from t5x_lite.nn import attention as attention_module
from t5x_lite.nn import pallas_attention, pallas_disentangled
from t5x_lite.objectives.contrastive import Contrastive
from t5x_lite.objectives.electra import Electra
from t5x_lite.objectives.masked_lm import MaskedLM
from t5x_lite.objectives.retromae import Condenser, RetroMAE
from t5x_lite.train import planning


@pytest.fixture(scope="module")
def learner(tiny_experiment):
    return learner_of(tiny_experiment)


@pytest.fixture(scope="module")
def loaded(tiny_run):
    return Loaded.from_checkpoint(str(tiny_run), step=None)


def test_shapes_without_arrays(learner):
    leaves = jax.tree.leaves(learner.shapes)
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)
    assert learner.shapes["model"]["token_embedding"]["table"].shape == (400, 16)
    assert learner.axes["model"]["token_embedding"]["table"] == ("vocab", "embed")


def test_initial_parameters_have_the_shapes(learner):
    params = jax.eval_shape(learner.init, jax.random.key(0))
    assert params == learner.shapes


def test_the_learner_is_bound_in_the_compute_dtype(tiny_experiment, learner):
    half = dataclasses.replace(tiny_experiment, compute_dtype="bfloat16")
    params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), learner.shapes)
    for experiment, dtype in ((tiny_experiment, jnp.float32), (half, jnp.bfloat16)):
        model = learner_of(experiment).bind_model(params)
        assert model.token_embedding.table[...].dtype == dtype


def test_the_class_of_the_model(learner):
    assert learner.model_type is T5


def test_a_checkpoint_of_a_work_directory(tiny_run, tiny_experiment, loaded):
    assert loaded.step == 10
    assert loaded.directory == tiny_run / "checkpoints" / "10"
    workdir = str(tiny_run)
    model = tiny_experiment.model.on_cpu()
    assert loaded.experiment == dataclasses.replace(tiny_experiment, workdir=workdir, model=model)
    assert (model.unroll, model.attention) == (True, "heads")
    assert loaded.vocabulary.size == 400
    earlier = Loaded.from_checkpoint(workdir, step=5)
    assert earlier.step == 5
    tables = [run.params["model"]["token_embedding"]["table"] for run in (loaded, earlier)]
    assert not np.array_equal(*tables)


def test_a_moved_step_directory_is_enough(tiny_run, tmp_path, loaded):
    moved = tmp_path / "best"
    shutil.copytree(tiny_run / "checkpoints" / "10", moved)
    again = Loaded.from_checkpoint(str(moved), step=None)
    assert again.step == 0
    assert again.vocabulary.digest == loaded.vocabulary.digest
    jax.tree.map(np.testing.assert_array_equal, again.params, loaded.params)


def test_parameters_go_where_the_mesh_says(tiny_run):
    mesh = make_mesh(MeshConfig())
    params = Loaded.from_checkpoint(str(tiny_run), step=None, mesh=mesh).params
    assert {leaf.sharding.mesh for leaf in jax.tree.leaves(params)} == {mesh}


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        ("files/config.json", "files/config.json is missing"),
        ("files/vocabulary/sentencepiece.model", "is damaged"),
        ("params/_METADATA", "is damaged"),
    ],
)
def test_a_checkpoint_that_lacks_a_part(tiny_run, tmp_path, lost, message):
    step = tmp_path / "step"
    shutil.copytree(tiny_run / "checkpoints" / "10", step)
    (step / lost).unlink()
    with pytest.raises(InputError, match=message):
        Loaded.from_checkpoint(str(step), step=None)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"type": "\xff"}', "config RUN/files/config.json is not valid UTF-8 (byte 10)"),
        (b"[" * 100_000, "RUN/files/config.json: not JSON that can be read (maximum recursion"),
        (
            b'{"type": "t5x_lite.optim.config:Constant"}',
            "config RUN/files/config.json must be an Experiment, but is a Constant",
        ),
    ],
)
def test_a_config_of_something_else(tmp_path, content, message):
    with pytest.raises(InputError) as raised:
        read_experiment(tmp_path, {"config.json": content})
    assert str(raised.value).startswith(message.replace("RUN", str(tmp_path)))


def test_every_batch_fits_one_device(tiny_experiment):
    check_batch(tiny_experiment, make_mesh(MeshConfig()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, None),
        ({"inputs_length": 9}, "data.inputs_length is 9 tokens, but model has only 8 positions"),
        (
            {"targets_length": 9, "layout": layouts.Groups(), "pack": False},
            "data.targets_length is 9 tokens, but model has only 8 positions",
        ),
    ],
)
def test_rows_longer_than_the_table_of_positions(tiny_experiment, changes, message):
    model = BertConfig(vocab_size=400, d_model=8, d_ff=8, num_heads=1, num_layers=1)
    objective = Contrastive() if "pack" in changes else MaskedLM()
    lengths = {"layout": layouts.Encoder(), "inputs_length": 8, "targets_length": 8, **changes}
    experiment = dataclasses.replace(
        tiny_experiment,
        model=model.replace(max_positions=10, position_offset=2),
        objective=objective,
        data=dataclasses.replace(tiny_experiment.data, **lengths),
    )
    mesh = make_mesh(MeshConfig(), devices=jax.devices()[:1])
    if message is None:
        check_batch(experiment, mesh)
        short = Electra(generator=model.replace(max_positions=7), sharing="nes")
        experiment = dataclasses.replace(experiment, objective=short)
        message = "but objective.generator has only 7 positions"
    with pytest.raises(InputError, match=re.escape(message)):
        check_batch(experiment, mesh)


def test_every_shape_of_batches_must_divide(tiny_experiment):
    data = dataclasses.replace(
        tiny_experiment.data,
        layout=layouts.Encoder(),
        batches=Bucketed({4: 6, 8: 2}),
        batch_size=2,
        inputs_length=8,
        pack=False,
    )
    model = BertConfig(vocab_size=400, d_model=8, d_ff=8, num_heads=1, num_layers=1)
    experiment = dataclasses.replace(
        tiny_experiment, model=model, objective=MaskedLM(), data=data, microbatches=2
    )
    devices = list(jax.devices()[:1])
    check_batch(experiment, make_mesh(MeshConfig(), devices=devices))
    with pytest.raises(
        InputError, match=re.escape("data.batches of 2 rows of 8 tokens is not divisible by")
    ):
        check_batch(
            dataclasses.replace(experiment, microbatches=3),
            make_mesh(MeshConfig(), devices=devices),
        )
    mesh = mesh_of(4, sequence=1)
    message = "data.batches of 6 rows of 4 tokens is not divisible by the 4 devices that share a b"
    with pytest.raises(InputError, match=re.escape(message)):
        check_batch(experiment, mesh)
    message = "data.batches of 6 rows of 4 tokens is not divisible by the 3 devices that share a r"
    with pytest.raises(InputError, match=re.escape(message)):
        check_batch(experiment, mesh_of(1, sequence=3))
    long = dataclasses.replace(model, max_positions=7)
    with pytest.raises(
        InputError, match=r"data\.inputs_length is 8 tokens, but model has only 7 positions"
    ):
        check_batch(
            dataclasses.replace(experiment, model=long), make_mesh(MeshConfig(), devices=devices)
        )


def mesh_of(data, *, sequence):
    """A mesh of one device again and again, of which the sizes count."""
    sizes = dict.fromkeys(MESH_AXES, 1) | {"data": data, "sequence": sequence}
    devices = np.array(jax.devices()[:1] * (data * sequence)).reshape(*sizes.values())
    return jax.sharding.Mesh(devices, MESH_AXES)


def test_devices_that_a_model_is_not_trained_on(tiny_experiment):
    fused = tiny_experiment.model.replace(attention="cudnn", d_kv=8)
    experiment = dataclasses.replace(tiny_experiment, model=fused)
    mesh = make_mesh(MeshConfig(), devices=jax.devices()[:1])
    check_devices(tiny_experiment, mesh)
    with pytest.raises(InputError, match="'cudnn' needs NVIDIA GPUs"):
        check_devices(experiment, mesh)
    generator = BertConfig(
        vocab_size=32, d_model=16, d_ff=8, num_heads=2, num_layers=1, attention="cudnn",
        share_attention_dropout=True,
    )  # fmt: skip
    electra = dataclasses.replace(
        tiny_experiment,
        model=generator.replace(attention="plain"),
        objective=Electra(generator=generator, sharing="nes"),
        data=dataclasses.replace(tiny_experiment.data, layout=layouts.Encoder()),
    )
    with pytest.raises(InputError, match="'cudnn' needs NVIDIA GPUs"):
        check_devices(electra, mesh)


H200, TPU = "NVIDIA H200", "TPU v5 lite"


@pytest.mark.parametrize(
    ("kind", "model", "data", "attention", "one_text"),
    [
        # The kernel on TPU; cuDNN on NVIDIA GPUs in bfloat16; on CPU all heads, or one by one.
        (TPU, {"family": "t5"}, {}, "pallas", False),
        (H200, {"family": "t5"}, {}, "cudnn", False),
        (H200, {"family": "t5"}, {"pack": False}, "cudnn", True),
        ("cpu", {"family": "t5"}, {"pack": False}, "plain", False),
        ("cpu", {"family": "t5", "dtype": "float32"}, {}, "heads", False),
        ("cpu", {"family": "bert", "dtype": "float32"}, {}, "heads", False),
        # The kernel for TPUs draws dropout for each query and key.
        (TPU, {"family": "bert", "attention_dropout_rate": 0.1}, {}, "pallas", False),
        (TPU, {"family": "bert", "dtype": "float32"}, {"inputs_length": 4096}, "pallas", False),
        (TPU, {"family": "deberta"}, {}, "pallas", False),
        (TPU, {"family": "deberta"}, {"inputs_length": 4096}, "pallas", False),
        # What has no kernel: float32 on GPUs, heads of 4, draws for each query, disentangled.
        (H200, {"family": "t5", "dtype": "float32"}, {}, "plain", False),
        (H200, {"family": "t5", "d_kv": 4}, {}, "plain", False),
        (H200, {"family": "bert", "attention_dropout_rate": 0.1}, {}, "plain", False),
        (H200, {"family": "bert", "attention_dropout_rate": 0.0}, {}, "cudnn", False),
        (TPU, {"family": "bert", "share_attention_dropout": True}, {}, "pallas", False),
        (H200, {"family": "deberta"}, {}, "plain", False),
        ("TPU v4", {"family": "deberta"}, {}, "plain", False),
        # Logits of long rows are never whole.
        ("cpu", {"family": "t5"}, {"inputs_length": 4096}, "blocked", False),
        (H200, {"family": "bert"}, {"inputs_length": 4096}, "blocked", False),
        (H200, {"family": "deberta"}, {"inputs_length": 4096}, "blocked", False),
        (H200, {"family": "t5"}, {"inputs_length": 4096, "pack": False}, "cudnn", True),
    ],
)
def test_what_auto_is(tiny_experiment, kind, model, data, attention, one_text):
    fields = dict(model)
    family, dtype = fields.pop("family"), fields.pop("dtype", "bfloat16")
    if family == "t5":
        config = tiny_experiment.model.replace(**fields)
    else:
        made = {"bert": BertConfig, "deberta": DebertaConfig}[family]
        config = made(vocab_size=32, d_model=16, d_ff=8, num_heads=2, num_layers=1, **fields)
    config = config.replace(attention="auto", unroll="auto")
    experiment = dataclasses.replace(
        tiny_experiment,
        model=config,
        compute_dtype=dtype,
        data=dataclasses.replace(tiny_experiment.data, **data),
    )
    found, (line,) = with_choices(experiment, kind)
    assert (found.model.attention, found.model.one_text_rows) == (attention, one_text)
    if attention == "pallas":
        assert found.model.attention_block == 512
    assert found.model.unroll is True
    assert line.startswith(f"model: attention {attention} (")
    assert line.endswith("unroll True (1 layers)")
    # What was chosen is kept on other devices, and what the config says itself is not touched.
    assert with_choices(experiment, "cpu", earlier=found) == (found, [])
    assert with_choices(found, "cpu") == (found, [])


def test_deep_stacks_are_a_loop_where_compiling_takes_long(tiny_experiment):
    deep = tiny_experiment.model.replace(num_encoder_layers=24, unroll="auto")
    experiment = dataclasses.replace(tiny_experiment, model=deep)
    unrolled = [with_choices(experiment, kind)[0].model.unroll for kind in ("cpu", H200, TPU)]
    assert unrolled == [1, True, True]


ENCODER: Any = {"vocab_size": 400, "d_model": 128, "d_ff": 16, "num_heads": 2, "num_layers": 1}
LARGE_HEADS: Any = {"d_model": 128, "d_kv": 64}
FAMILIES: Any = {
    "t5": (lambda tiny: tiny.model.replace(**LARGE_HEADS), None),
    "bert": (lambda _: BertConfig(**ENCODER, token_types=2), MaskedLM(mask_id=3)),
    "bert, relative": (
        lambda _: BertConfig(**ENCODER, positions="relative_bias"),
        MaskedLM(mask_id=3),
    ),
    "bert, shared dropout": (
        lambda _: BertConfig(**ENCODER, share_attention_dropout=True),
        MaskedLM(mask_id=3),
    ),
    "roberta": (lambda _: BertConfig(**ENCODER, position_offset=2), MaskedLM(mask_id=3)),
    "electra": (
        lambda _: BertConfig(**ENCODER),
        Electra(generator=BertConfig(**ENCODER, attention="auto"), sharing="nes", mask_id=3),
    ),
    "condenser": (
        lambda _: BertConfig(**{**ENCODER, "num_layers": 2}),
        Condenser(mask_id=3, head_layers=1, skip_from=1),
    ),
    "retromae": (lambda _: BertConfig(**ENCODER), RetroMAE(mask_id=3)),
    "deberta": (lambda _: DebertaConfig(**ENCODER), MaskedLM(mask_id=3)),
}
KERNELS = {"tpu": "tpu_custom_call", "cuda": "__cudnn$fmha"}


@pytest.mark.gate("bert-tpu-pallas", "electra-tpu-pallas", "bert-cuda-plain", "bert-cpu-plain")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "platform", "attention"),
    [
        *((family, "tpu", "pallas") for family in FAMILIES),
        *((family, "cpu", "plain") for family in FAMILIES),
        ("t5", "cuda", "cudnn"),
        ("bert, shared dropout", "cuda", "cudnn"),
        *(
            (family, "cuda", "plain")
            for family in FAMILIES
            if family not in ("t5", "bert, shared dropout")
        ),
    ],
)
def test_the_kernel_that_auto_picks_is_in_the_step(
    tiny_experiment, monkeypatch, family, platform, attention
):
    """The whole train step, traced and lowered for devices that are not there."""
    kind = {"tpu": TPU, "cuda": H200, "cpu": "cpu"}[platform]
    versions = "jax._src.cudnn.fused_attention_stablehlo.cuda_versions"
    monkeypatch.setattr(versions, types.SimpleNamespace(cudnn_get_version=lambda: 91300))
    for module in (attention_module, pallas_attention, pallas_disentangled):
        monkeypatch.setattr(module, "traced_kind", lambda: kind)
    make, objective = FAMILIES[family]
    layout = tiny_experiment.data.layout if objective is None else layouts.Encoder()
    experiment = dataclasses.replace(
        tiny_experiment,
        model=make(tiny_experiment).replace(attention="auto"),
        objective=objective or tiny_experiment.objective,
        compute_dtype="bfloat16",
        data=dataclasses.replace(
            tiny_experiment.data, layout=layout, inputs_length=128, pack=family == "t5"
        ),
    )
    mesh = make_mesh(MeshConfig(), devices=jax.devices()[:1])
    experiment, _ = with_choices(experiment, kind)
    model: Any = experiment.model
    assert model.attention == attention
    step, state = planning._step(experiment, learner_of(experiment), mesh)
    with jax.set_mesh(mesh):
        traced = step.trace(state, planning._batch(experiment, mesh))
        text = traced.lower(lowering_platforms=(platform,)).as_text()
    for name, call in KERNELS.items():
        expected = name == platform and attention in ("pallas", "cudnn")
        assert (call in text) == expected, name
