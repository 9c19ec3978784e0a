"""Commands on runs that hold a module alone: a base elsewhere, and Fisher's merge."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from t5x_lite import config
from t5x_lite.adapters.config import Adapters
from t5x_lite.checkpoints.init import Init
from t5x_lite.checkpoints.items import lazy_params
from t5x_lite.cli import main
from t5x_lite.config import Checkpoints, Evaluation
from t5x_lite.inference import delta_files
from t5x_lite.train.training import train

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory, tiny_run, tiny_experiment, compile_once):
    """A base at "t5", and two runs of it, "a" and "b", that trained LoRA."""
    directory = tmp_path_factory.mktemp("commands")
    shutil.copytree(tiny_run, directory / "t5")
    for seed, name in enumerate("ab"):
        experiment = dataclasses.replace(
            tiny_experiment,
            workdir=str(directory / name),
            steps=2,
            seed=seed,
            init=Init(checkpoint=str(directory / "t5")),
            adapters=Adapters(add=("m = lora(r=2)",)),
            checkpoints=Checkpoints(period=2),
            evaluation=Evaluation(max_batches=1, task_metrics=False),
        )
        train(experiment)
    measured = dataclasses.replace(tiny_experiment, evaluation=Evaluation(max_batches=1))
    config.save(measured, directory / "measured.json")
    (directory / "in.jsonl").write_text('{"inputs": "a film", "targets": "a"}\n')
    return directory


COMMANDS = {
    "predict": (
        "predict --checkpoint {run} --input {at}/in.jsonl --output {out}",
        "--max-decode-length 4",
    ),
    "score": ("score --checkpoint {run} --input {at}/in.jsonl --output {out}", ""),
    "embed": ("embed --checkpoint {run} --input {at}/in.jsonl --output {out}.npy", "--format text"),
    "evaluate": ("evaluate {at}/measured.json --checkpoint {run} --output {out}", ""),
}


def written(command, out):
    """What a command wrote, without the names of places."""
    if command == "embed":
        return np.load(out.with_name(f"{out.name}.npy")).tolist()
    if command == "evaluate":
        return json.loads((out / "metrics.json").read_text())
    return out.read_text()


@pytest.mark.exhaustive
def test_a_base_elsewhere(place, tmp_path, capsys):
    """`--base` finds it; without it, and with another base, a line says what is wrong."""
    at_home, moved = {}, tmp_path / "moved"

    def run(name, out, *more):
        line, options = COMMANDS[name]
        line = line.format(run=place / "a", at=place, out=tmp_path / out)
        capsys.readouterr()
        return main([*line.split(), *options.split(), *more])

    for name in COMMANDS:
        assert run(name, f"{name}.home") == 0
        at_home[name] = written(name, tmp_path / f"{name}.home")
    (place / "t5").rename(moved)
    try:
        for name, expected in at_home.items():
            assert run(name, f"{name}.moved", "--base", str(moved)) == 0
            assert written(name, tmp_path / f"{name}.moved") == expected
            for more, message in (
                ((), "holds only the trained parameters, but its base"),
                (("--base", str(moved / "checkpoints" / "5")), "is not the base of"),
                (("--base", str(place / "none")), "none: no such directory"),
            ):
                assert run(name, f"{name}.no", *more) == 2
                said = capsys.readouterr().err
                assert message in said
                assert (said.count("\n"), said[:6]) == (1, "error:")
                assert not (tmp_path / f"{name}.no").exists()
    finally:
        moved.rename(place / "t5")


def test_diagonals_of_a_task_merge_two_runs(place, tmp_path):
    """By the command line: of each number the weighted mean by both diagonals, as by hand."""
    for name in "ab":
        line = f"fisher {place / name} {tmp_path / name} --examples 4"
        assert main(line.split()) == 0
    pairs = {option: [f"{name}={at / name}" for name in "ab"] for option, at in
             (("--delta", place), ("--fisher", tmp_path))}  # fmt: skip
    line = ["compose", "fisher(a, b)", str(tmp_path / "ab")]
    assert main([*line, "--delta", *pairs["--delta"], "--fisher", *pairs["--fisher"]]) == 0
    merged = delta_files.load(tmp_path / "ab").parts
    deltas = [delta_files.load(place / name).parts for name in "ab"]
    diagonals = [
        {path: x.read() for path, x in lazy_params(tmp_path / name / "params").items()}
        for name in "ab"
    ]
    norms = [np.sqrt(sum(np.sum(np.square(x)) for x in found.values())) for found in diagonals]
    assert merged.keys() == deltas[0].keys() == deltas[1].keys()
    for path, part in merged.items():
        shares = [
            np.maximum(found[f"fisher/{path}"], 1e-6) / norm
            for found, norm in zip(diagonals, norms, strict=True)
        ]
        assert max(share.max() for share in shares) > 1e-3  # the floor is not all that there is
        values = [np.asarray(one[path].dense()) for one in deltas]
        expected = np.average(values, axis=0, weights=shares)
        least = 1e-5 * np.abs(expected).max()
        np.testing.assert_allclose(part.dense(), expected, rtol=1e-4, atol=least)
        assert np.abs(expected - np.mean(values, axis=0)).max() > 10 * least
