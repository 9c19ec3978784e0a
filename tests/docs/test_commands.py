"""Every command in the documentation: its options are those of today, and a test runs it or not."""

import gzip
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from t5x_lite import cli, config
from t5x_lite.commands import COMMANDS
from t5x_lite.data.vocabularies.loading import load_vocabulary
from tests.c4.made_up_crawl import BAD_WORDS, write_crawl
from tests.docs.commands import ROOT, blocks, command_lines, with_extra

SITE = sorted(path for path in (ROOT / "docs").rglob("*.md") if "adr" not in path.parts)
PAGES = [ROOT / "README.md", ROOT / "configs/paper/README.md", *SITE]
RUN = ("first_run", "own_table", "adapters", "composition", "encoder")
"""Tutorials whose commands are run, one after the other in one directory."""
RUN_ALONE = ("c4",)
"""Tutorials that have a test of their own."""


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_options_are_those_of_the_command_line(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for block in blocks(page):
        for args in command_lines(block):
            if {"--help", "--version"} & set(args):
                continue
            command, overrides = cli._parse_command(args)
            path = getattr(command, "config", "")
            if path.startswith("configs/") and Path(path).is_file():
                own = [f"--{name.replace('_', '-')}" for name in command.__dataclass_fields__]
                own += ["--init"]
                end = overrides.index("--") if "--" in overrides else len(overrides)
                shown = [*overrides[:end]]
                if "--model" in shown:  # `--model init` reads the checkpoint of --init
                    at = shown.index("--model")
                    assert shown[at + 1] == "init", block.where
                    del shown[at : at + 2]
                config.load(path, shown, prog=block.where, other_options=own)


@pytest.mark.parametrize("page", SITE, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_block_is_run_or_says_why_not(page):
    silent = [
        block.where
        for block in blocks(page)
        if block.has_command and block.not_run is None and page.stem not in (*RUN, *RUN_ALONE)
    ]
    assert silent == [], "put <!-- not run: REASON --> in front of the block"


def test_every_command_is_in_the_documentation():
    shown = {" ".join(args[:n]) for page in PAGES for block in blocks(page)
             for args in command_lines(block) for n in (1, 2)}  # fmt: skip
    assert set(COMMANDS) - shown == set()


@pytest.fixture
def shell(tmp_path):
    """Runs blocks of a tutorial in a directory beside the checkout's configs and tasks."""
    for name in ("configs", "tasks", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    programs = tmp_path / "programs"
    programs.mkdir()
    program = programs / "t5x-lite"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m t5x_lite "$@"\n')
    program.chmod(0o755)
    python = Path(sys.executable).parent
    environment = os.environ | {
        "PATH": f"{programs}:{python}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "compiled"),
    }

    def run(name):
        for block in blocks(ROOT / "docs" / "tutorials" / f"{name}.md"):
            if block.language != "bash" or block.not_run is not None:
                continue
            if "t5x-lite plan" in block.text and importlib.util.find_spec("libtpu") is None:
                continue
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", with_extra(block)],
                cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900,
            )  # fmt: skip
            assert done.returncode == 0, f"{block.where}\n{done.stdout}\n{done.stderr}"

    return run


@pytest.mark.slow
@pytest.mark.exhaustive  # scripts/docs.sh runs it
def test_the_tutorials_run(tmp_path, shell):
    for name in RUN:
        shell(name)
    for made in ("work/finetune/report.html", "work/evaluation/metrics.json", "vectors.npy",
                 "work/answers.jsonl"):  # fmt: skip
        assert (tmp_path / made).is_file()


@pytest.mark.slow
def test_the_tutorial_of_c4_runs(tmp_path, shell, english_lines):
    """From WET files to the held-out losses of a T5 and of a BERT, on a crawl that is made here."""
    (tmp_path / "crawl").mkdir()
    write_crawl(tmp_path / "crawl", english_lines, pages=300)
    (tmp_path / "en.txt").write_text(BAD_WORDS)
    shell("c4")
    work = tmp_path / "work"
    shards = sorted((work / "c4").glob("c4-train.*.json.gz"))
    pages = [line for shard in shards for line in gzip.decompress(shard.read_bytes()).splitlines()]
    assert np.load(work / "vectors.npy").shape == (len(pages), 128)
    for name in ("t5", "bert"):
        metrics = json.loads((work / f"{name}_held_out/metrics.json").read_text())
        assert 0 < metrics["validation/loss"] < 10
    vocabulary = load_vocabulary(work / "tiny_c4_vocabulary")
    pieces = {vocabulary.decode([piece]) for piece in range(600)}
    assert not {"https", "://", "timestamp", "site1"} & pieces
