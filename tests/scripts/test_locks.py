"""The hashed locks of the two commands, which scripts/lock.sh writes."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCKS = {
    "data": ("data",),
    "test": ("data", "beam", "c4", "metrics", "serve", "docs", "tables", "dev"),
}
OTHERS = {
    *("colorama", "editables", "hatchling", "httpx2-jsfetch", "nest-asyncio", "pathspec"),
    *("pluggy", "pywin32", "tensorflow-io-gcs-filesystem", "tomlkit", "trove-classifiers"),
    "tzdata",
}
"""Packages of the build and of other platforms: the tested environment has none of them."""
ENTRY = re.compile(r"([a-z0-9][a-z0-9.-]*)==(\S+)( ; [^\\]+)? \\")
HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")


def name_of(requirement):
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0]).lower()


def versions_of(text):
    pairs = (line.split(";")[0].split("==") for line in text.splitlines() if "==" in line)
    return {name_of(name): version.split()[0] for name, version in pairs}


@pytest.mark.parametrize("name", LOCKS)
def test_every_entry_has_a_version_and_hashes(name):
    lines = (ROOT / "scripts" / "locks" / f"{name}.txt").read_text().splitlines()
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        assert ENTRY.fullmatch(line) or HASH.fullmatch(line), line
        if line.endswith("\\"):
            assert HASH.fullmatch(after), line


@pytest.mark.parametrize("name", LOCKS)
def test_versions_are_those_of_the_constraints(name):
    locked = versions_of((ROOT / "scripts" / "locks" / f"{name}.txt").read_text())
    pinned = versions_of((ROOT / "constraints.txt").read_text())
    assert {k: v for k, v in locked.items() if pinned.get(k, v) != v} == {}
    assert set(locked) - set(pinned) <= OTHERS


@pytest.mark.parametrize("name", LOCKS)
def test_each_requirement_is_locked(name):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"]]
    for extra in LOCKS[name]:
        wanted += project["optional-dependencies"][extra]
    locked = versions_of((ROOT / "scripts" / "locks" / f"{name}.txt").read_text())
    assert {name_of(one) for one in wanted} <= {*locked, "t5x-lite"}


def test_a_failed_installation_says_how_much_room_is_left(tmp_path):
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    installer = '#!/bin/sh\n[ "$3" = --version ] && exit 0\necho "$TMPDIR"\nexit 3\n'
    python.write_text(installer, encoding="utf-8")
    python.chmod(0o755)
    command = f"set -e; . scripts/environment.sh; make_environment {tmp_path} data"
    found = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 3
    assert found.stdout.splitlines()[1:] == [f"{tmp_path}/tmp"]
    assert re.fullmatch(
        r"error: pip failed; the disk of \S+ has \d+ MiB left, .* puts it elsewhere\n", found.stderr
    )
