"""scripts/docker/Dockerfile: what it names is there. No builder is asked."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "scripts" / "docker" / "Dockerfile"


def instructions(name: str) -> list[str]:
    text = DOCKERFILE.read_text().replace("\\\n", " ")
    return re.findall(rf"^{name} (.*)$", text, re.MULTILINE)


def test_what_is_copied_is_there_and_reaches_the_builder():
    ignored = DOCKERFILE.with_name("Dockerfile.dockerignore").read_text().split()
    sources = [source for line in instructions("COPY") for source in line.split()[:-1]]
    assert {"pyproject.toml", "constraints.txt", "t5x_lite", "tasks", "configs"} <= set(sources)
    for source in sources:
        assert (ROOT / source).exists(), source
        assert f"!{source.split('/')[0]}" in ignored, source


def test_the_extras_are_ours():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = dict(line.split("=") for line in instructions("ARG"))["EXTRAS"]
    named = re.findall(r"EXTRAS=([\w,]+)", DOCKERFILE.read_text())
    assert extras == "tpu"
    assert {extra for words in named for extra in words.split(",")} == {"tpu", "gpu", "data"}
    assert {"tpu", "gpu", "data"} <= set(project["optional-dependencies"])
    assert '-e ".[${EXTRAS},zst]" gcsfs -c constraints.txt' in instructions("RUN")[0]


def test_the_process_that_gets_the_signal_is_the_run():
    assert instructions("ENTRYPOINT") == ['["t5x-lite"]']
