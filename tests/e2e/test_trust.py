"""Nothing that lies in the current directory is run, whatever the command; unless it is asked for.

Each command is a process of its own, in a directory with modules that have the names of libraries
and leave a mark when they are run.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import t5x_lite
from t5x_lite import config
from t5x_lite.checkpoints import items as checkpoint_manifest
from t5x_lite.core.errors import InputError
from tests.c4.made_up_crawl import write_crawl

ROOT = Path(__file__).resolve().parents[2]
EVIL = (
    "numpy", "jax", "orbax", "tensorstore", "yaml", "json", "evil", "flax", "typing", "socket",
    "random", "tempfile", "torch", "tasks_of_nobody", "duckdb", "multiprocessing",
)  # fmt: skip
PROGRAM = "import sys\nfrom t5x_lite.cli import main\nif __name__ == '__main__': sys.exit(main())"
MODEL = """
import dataclasses
from my_sizes import WIDTH
from t5x_lite.models.t5 import T5Config

@dataclasses.dataclass(frozen=True, kw_only=True)
class MyT5(T5Config):
    width: int = WIDTH
"""
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path_factory) -> Run:
    """Runs the console script in the current directory."""
    script = tmp_path_factory.mktemp("bin") / "t5x-lite"
    script.write_text(PROGRAM)

    def call(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(script), *line.split()],
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            capture_output=True,
            text=True,
        )

    return call


@pytest.fixture
def here(tmp_path, monkeypatch, tiny_run, tiny_experiment) -> Path:
    """The current directory: modules that leave a mark, a config, inputs and work directories."""
    for name in EVIL:
        mark = f"open({str(tmp_path / 'RAN')!r}, 'a').write({name!r})"
        (tmp_path / f"{name}.py").write_text(f"{mark}\nraise ImportError('evil')")
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "__init__.py").write_text((tmp_path / "evil.py").read_text())
    (tmp_path / "my_models.py").write_text(MODEL)
    (tmp_path / "my_sizes.py").write_text("WIDTH = 3")
    for name, model in (("work", ""), ("evil_work", "evil:X"), ("my_work", "my_models:MyT5")):
        shutil.copytree(tiny_run, tmp_path / name)
        for file in (tmp_path / name).rglob("config.json"):
            node = json.loads(file.read_text())
            node["model"]["type"] = model or node["model"]["type"]
            file.write_text(json.dumps(node))
        for manifest in (tmp_path / name).rglob("manifest.json"):
            checkpoint_manifest.write(manifest.parent)
    (tmp_path / "in.jsonl").write_text('{"inputs": "a", "targets": "b"}\n')
    config.save(tiny_experiment, tmp_path / "tiny.json")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "train tiny.json --workdir made --steps 1 --evaluation.period 1 --init work",
        pytest.param("evaluate work/config.json --checkpoint work", marks=pytest.mark.exhaustive),
        pytest.param("cache tiny.json --output made --num-workers 2", marks=pytest.mark.exhaustive),
        pytest.param("plan tiny.json --devices cpu:2", marks=pytest.mark.exhaustive),
        "predict --checkpoint work --input in.jsonl --output - --max-decode-length 2",
        pytest.param(
            "embed --checkpoint work --input in.jsonl --output made.npy --format text",
            marks=pytest.mark.exhaustive,
        ),
        pytest.param("export hf work made", marks=pytest.mark.exhaustive),
        "vocab --input in.jsonl --text inputs --output made --size 5 --no-ascii",
        pytest.param(
            "c4 --input crawl --output made --workers 2 --cleaning.languages",
            marks=pytest.mark.exhaustive,
        ),
        pytest.param("report work", marks=pytest.mark.exhaustive),
    ],
)
def test_no_command_runs_what_lies_beside_it(here, run, line, english_lines):
    if line.startswith("c4"):
        (here / "crawl").mkdir()
        write_crawl(here / "crawl", english_lines, pages=30)
    done = run(line)
    assert (done.returncode, (here / "RAN").exists()) == (0, False), done.stderr[-2000:]


@pytest.mark.slow
def test_an_import_runs_nothing_of_the_directory(here, run):
    done = run("import hf . made")
    assert (done.returncode, (here / "RAN").exists()) == (2, False), done.stderr


@pytest.mark.slow
def test_an_import_of_t5x_runs_nothing_of_the_directory(here, run):
    done = run("import t5x . made --vocabulary bytes")
    assert (done.returncode, (here / "RAN").exists()) == (2, False), done.stderr


@pytest.mark.slow
def test_a_checkpoint_that_names_a_module_is_refused(here, run):
    for line in (
        "predict --checkpoint evil_work --input in.jsonl --output -",
        "evaluate tiny.json --checkpoint evil_work",
        "train tiny.json --workdir made --init evil_work",
        "train tiny.json --workdir evil_work",
    ):
        done = run(line)
        assert done.returncode == 2, done.stderr
        [error] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        assert (
            "config.json: the config uses the class evil:X, which is not part of t5x_lite, "
            in error
        )
        assert "pass --trust-project" in error
        assert not (here / "RAN").exists()


@pytest.mark.exhaustive
@pytest.mark.slow
def test_classes_of_one_s_own_project(here, run):
    """Trusted where the command's own config names them, or where it is said."""
    predict = "predict --checkpoint my_work --input in.jsonl --output - --max-decode-length 2"
    assert run(predict).returncode == 2
    for line in (
        f"{predict} --trust-project",
        "evaluate my_work/config.json --checkpoint my_work",
        "evaluate tiny.json --checkpoint my_work --trust-project",
    ):
        done = run(line)
        assert done.returncode == 0, done.stderr
    assert not (here / "RAN").exists()


def test_python_leaves_no_traces(here, run):
    before = list(sys.path), list(sys.meta_path), dict(os.environ)
    with pytest.raises(InputError, match="trust_project=True"):
        t5x_lite.load("my_work")
    assert "my_models" not in sys.modules
    model = t5x_lite.load("my_work", trust_project=True)
    assert type(model._model.members[0].experiment.model).__name__ == "MyT5"
    t5x_lite.load("work")
    assert (sys.path, sys.meta_path, dict(os.environ)) == before
    for name in ("my_models", "my_sizes"):
        del sys.modules[name]
