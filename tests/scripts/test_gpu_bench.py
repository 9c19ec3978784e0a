"""scripts/bench/gpu.sh where nothing is installed but what a bare machine has."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "bench" / "gpu.sh"
MISSING = "array_record grain seqio sentencepiece tensorboardX tensorflow torch transformers tyro"


def bare(folder):
    """The environment of a machine that lacks what the scripts must not need."""
    for name in MISSING.split():
        (folder / f"{name}.py").write_text(f"raise ImportError('there is no {name}')\n")
    return {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(folder)}


@pytest.mark.slow
def test_the_dry_run_on_a_bare_machine(tmp_path):
    environment = bare(tmp_path)
    rows = np.random.default_rng(0).integers(2, 64, (6, 20)).astype(np.uint16)
    ones = np.ones_like(rows)
    np.savez_compressed(
        tmp_path / "rows.npz",
        encoder_input_tokens=rows,
        encoder_segment_ids=ones,
        encoder_positions=rows,
        decoder_input_tokens=rows[:, :8],
        decoder_target_tokens=rows[:, 1:9],
        decoder_loss_weights=ones[:, :8],
        decoder_segment_ids=ones[:, :8],
        decoder_positions=rows[:, :8],
    )
    command = [str(SCRIPT), "--dry-run", "--dropout", "0", "--tokens", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    matrix, train, decode = map(json.loads, done.stdout.splitlines())
    assert not any("error" in line for line in (matrix, train, decode))
    assert matrix["flops_per_second"] > 0
    assert (train["size"], train["dropout"], train["rows"]) == ("tiny", 0.0, 4)
    assert train["parameters"] > 0 < train["mfu_of_measured_peak"]
    assert 3 < train["last_loss"] < 6  # of 64 tokens, log 64 is 4.2
    assert decode["tokens_per_second"] > 0


@pytest.mark.exhaustive
@pytest.mark.slow
def test_kinds_of_attention_beside_each_other_and_a_killed_run(tmp_path):
    command = [str(SCRIPT), "compare", "--dry-run", "--attention", "blocked", "cudnn"]
    command += ["--trace", str(tmp_path / "trace"), "--dropout", "0.1"]
    done = subprocess.run(command, env=bare(tmp_path), capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:])
    blocked, cudnn, agreement, killed, resumed = map(json.loads, done.stdout.splitlines())
    assert (len(blocked["losses"]), blocked["cudnn_calls"]) == (8, 0)
    assert len(set(blocked["losses"])) == 8  # batches differ
    assert any(name.endswith(".xplane.pb") for name in cudnn["trace_bytes"])
    assert agreement["apart"]["cudnn"] < 1e-2
    assert (killed["code"], killed["saved"]) == (-9, [3])
    assert (resumed["from_step"], resumed["losses"]) == (3, cudnn["losses"][3:])


@pytest.mark.slow
@pytest.mark.exhaustive
def test_steps_of_encoders_and_modules(tmp_path):
    command = [str(SCRIPT), "encoders", "--dry-run", "--only", "cached", "lora"]
    done = subprocess.run(command, env=bare(tmp_path), capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:])
    cached, lora = map(json.loads, done.stdout.splitlines())
    assert (cached["parts"], lora["parts"]) == (2, 1)
    assert all(line["flops"] > 0 < line["tokens_per_second"] for line in (cached, lora))
    assert lora["losses"][-1] < lora["losses"][0]


@pytest.fixture
def pretraining(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import gpu_pretrain

    return gpu_pretrain


def test_rows_of_an_encoder_on_the_device_are_those_of_the_layout(pretraining):
    from t5x_lite.layouts import Encoder
    from t5x_lite.layouts.base import EncoderTokens

    kinds = np.array([0, 3, 0, 0, 0, 1, 1, 2, 2, 1], np.uint8)
    special = EncoderTokens(cls_id=2, sep_id=3, mask_id=4, pad_id=0, unk_id=1, kinds=kinds)
    pieces = [[2, 5, 7, 8, 1, 7, 3], [2, 9, 3], [2, 7, 6, 5, 8, 6, 8, 8, 9, 3]]
    examples = [{"inputs": np.array(piece, np.int32)} for piece in pieces]
    wanted = Encoder().lay_out(
        examples,
        np.array([0, 0, 1]),
        num_rows=2,
        lengths={"inputs": 12},
        pack=True,
        tokens=special,
    )
    info = {"cls": 2, "pad": 0}
    tokens = wanted["encoder_input_tokens"].astype(np.uint16)
    found = pretraining.bert_batch(tokens, info=info, kinds=kinds.astype(np.int32))
    assert set(found) == set(wanted)
    for name, rows in wanted.items():
        np.testing.assert_array_equal(found[name], rows, err_msg=name)


def test_spans_cut_on_the_device_are_those_of_the_recipe(pretraining):
    import jax

    from t5x_lite.data.denoising import replace_spans

    tokens = np.arange(10, 10 + 3 * 47).reshape(3, 47).astype(np.uint16)
    info = {"sentinel_start": 999, "eos": 1}
    batch = pretraining.t5_batch(tokens, info=info, key=jax.random.key(0))
    masks = set()
    for row, inputs, targets, given in zip(
        tokens,
        *(np.asarray(batch[f"{n}_tokens"]) for n in ("encoder_input", "decoder_target")),
        np.asarray(batch["decoder_input_tokens"]),
        strict=True,
    ):
        mask = ~np.isin(row, inputs)
        wanted = replace_spans(row.astype(np.int32), mask, 999)
        assert inputs.tolist() == [*wanted["inputs"], 1]
        assert targets.tolist() == [*wanted["targets"], 1]
        assert given.tolist() == [0, *targets[:-1]]
        assert mask.sum() == 7
        masks.add(tuple(mask))
    assert len(masks) == 3


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", "t5"])
def test_pretraining_within_a_budget_on_a_bare_machine(family, pretraining, tmp_path):
    output = tmp_path / "pieces"
    command = [str(SCRIPT), "pretrain", "train", "--dry-run", family, "--output", str(output)]
    done = subprocess.run(command, env=bare(tmp_path), capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:])
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    losses = [line["held_out"]["loss"] for line in lines if "held_out" in line]
    assert len(losses) == 3
    assert losses[-1] < losses[0]
    assert lines[-1]["done"] == lines[-1]["total"] == 40
    info, params = pretraining.load(output)
    assert sum(array.size for array in params.values()) == lines[0]["parameters"]
    assert set(info["gates"]) == set(lines[-1]["gates"])


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("name", ["labels", "retrieval"])
def test_a_study_resumes_and_is_reported(name, tmp_path):
    output = tmp_path / "results.jsonl"
    command = [str(SCRIPT), "study", name, "--dry-run", "--seeds", "1", "--output", str(output)]
    command += ["--rates", "1e-3", "3e-3"]
    done = subprocess.run(command, env=bare(tmp_path), capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:])
    lines = output.read_text().splitlines()
    assert len({json.loads(line)["run"] for line in lines}) == len(lines)
    again = subprocess.run(command, env=bare(tmp_path), capture_output=True, text=True)
    assert again.returncode == 0, again.stderr[-3000:]
    assert output.read_text().splitlines() == lines  # a run that is there is not made again
    report = [
        sys.executable,
        str(SCRIPT.parent / "gpu_study.py"),
        "report",
        "--results",
        str(output),
    ]
    table = subprocess.run(report, capture_output=True, text=True)
    assert table.returncode == 0, table.stderr[-3000:]
    assert len(table.stdout.splitlines()) >= 4


def test_a_linear_probe_finds_the_vectors_that_know_the_label(tmp_path):
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, 160)
    texts = [json.dumps({"text": "t", "label": str(label)}) for label in labels]
    (tmp_path / "texts.jsonl").write_text("\n".join(texts))
    noise = random.normal(size=(160, 4))
    np.save(tmp_path / "noise.npy", noise)
    np.save(tmp_path / "known.npy", noise + 3 * np.eye(4)[labels])
    command = [sys.executable, str(SCRIPT.parent / "gpu_study.py"), "probe", "--labels", "60"]
    command += ["--texts", str(tmp_path / "texts.jsonl"), "--tests", "80", "--seeds", "2"]
    command += ["--vectors", str(tmp_path / "known.npy"), str(tmp_path / "noise.npy")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    row = done.stdout.splitlines()[-1].split("|")
    assert float(row[2]) > 85 > 60 > float(row[3])
