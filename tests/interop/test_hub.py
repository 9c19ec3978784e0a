"""Tests of models by their name at the hub: a cache as the hub lays it out, and a stub of it."""

import logging
import socket
import sys
import types
from pathlib import Path

import pytest

from t5x_lite.core.errors import InputError
from t5x_lite.interop import hub

COMMIT, OTHER = "0fc9ddf78a1e988dac52e2dac162b0ede4fd74ab", "1" * 40


def write_cache(root: Path, repository: str, commits: dict[str, str], refs: dict[str, str]) -> None:
    """A cache of huggingface_hub: commits map to the content of config.json, refs to commits."""
    folder = root / f"models--{repository.replace('/', '--')}"
    for commit, content in commits.items():
        blob = folder / "blobs" / f"blob{commit[:4]}"
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_text(content)
        snapshot = folder / "snapshots" / commit
        snapshot.mkdir(parents=True)
        (snapshot / "config.json").symlink_to(f"../../blobs/{blob.name}")
    for name, commit in refs.items():
        reference = folder / "refs" / name
        reference.parent.mkdir(parents=True, exist_ok=True)
        reference.write_text(commit)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    root = tmp_path / "hub"
    monkeypatch.setenv("HF_HUB_CACHE", str(root))
    write_cache(root, "google/flan", {COMMIT: "new", OTHER: "old"}, {"main": COMMIT, "v1": OTHER})
    return root


@pytest.fixture
def api(monkeypatch):
    """A stub of huggingface_hub whose hub cannot be reached."""
    pytest.importorskip("huggingface_hub")
    from huggingface_hub import errors

    stub = types.ModuleType("huggingface_hub")
    stub.errors, stub.asked = errors, []
    stub.constants = types.SimpleNamespace(ENDPOINT="https://hub.example")
    monkeypatch.setattr(hub, "why_unreachable", lambda endpoint: "")
    stub.error = ConnectionError("no\nroute")

    class HfApi:
        def list_repo_files(self, repository, *, revision):
            stub.asked.append((repository, revision))
            if stub.error is not None:
                raise stub.error
            return ["config.json", "model.safetensors", "pytorch_model.bin", "README.md"]

    def snapshot_download(repository, *, revision, allow_patterns):
        stub.asked.append(allow_patterns)
        return f"/cache/snapshots/{COMMIT}"

    stub.HfApi, stub.snapshot_download = HfApi, snapshot_download
    monkeypatch.setitem(sys.modules, "huggingface_hub", stub)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: stub)
    return stub


def test_a_directory_of_that_name_wins(tmp_path, monkeypatch, api):
    (tmp_path / "google" / "flan").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert hub.find_source("google/flan") == hub.Found(directory=Path("google/flan"))
    assert api.asked == []
    with pytest.raises(InputError, match="--revision applies only to models of the hub"):
        hub.find_source("google/flan", revision="main")


def test_offline_the_cache_is_used_and_said(cache, api, caplog):
    caplog.set_level(logging.INFO, logger="t5x_lite")
    found = hub.find_source("google/flan")
    assert (found.repository, found.revision) == ("google/flan", COMMIT)
    assert (found.directory / "config.json").read_text() == "new"
    assert "google/flan: using the cached copy" in caplog.text
    assert "(ConnectionError: no route)" in caplog.text
    old = hub.find_source("google/flan", revision="v1")
    assert (old.directory / "config.json").read_text() == "old"
    assert hub.find_source("google/flan", revision=OTHER).directory == old.directory


def test_offline_without_a_copy_the_download_command_is_named(cache, api):
    with pytest.raises(InputError) as error:
        hub.find_source("google/flan", revision="v2")
    command = "hf download google/flan --revision v2 --local-dir flan"
    assert f"run `{command}`" in str(error.value)
    assert "ConnectionError: no route" in str(error.value)
    assert "\n" not in str(error.value)


def test_without_the_extra_the_cache_still_serves(cache, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert hub.find_source("google/flan").revision == COMMIT
    with pytest.raises(
        InputError, match=r"pip install .*\[hub\].*, or run `hf download google/t5 "
    ):
        hub.find_source("google/t5")


def test_online_it_is_downloaded(api):
    api.error = None
    found = hub.find_source("google/flan", revision="main")
    assert found.directory == Path(f"/cache/snapshots/{COMMIT}")
    assert found.revision == COMMIT
    assert api.asked == [("google/flan", "main"), ["config.json", "model.safetensors"]]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("RepositoryNotFoundError", "no such model at the hub; run `hf auth login`"),
        ("GatedRepoError", "is gated: request access"),
        ("RevisionNotFoundError", "has no revision v9 at the hub"),
    ],
)
def test_an_answer_of_the_hub_is_an_error(cache, api, name, message):
    kind = getattr(api.errors, name)
    api.error = kind.__new__(kind)
    with pytest.raises(InputError, match=message):
        hub.find_source("google/flan", revision="v9")


@pytest.mark.parametrize(
    ("names", "generator", "wanted"),
    [
        (
            ["config.json", "model.safetensors", "pytorch_model.bin", "tf_model.h5"],
            False,
            ["config.json", "model.safetensors"],
        ),
        (
            [
                *("config.json", "flax_model.msgpack", "pytorch_model-00001-of-00002.bin"),
                *("spiece.model", "onnx/model.onnx", "1_Pooling/config.json"),
            ],
            False,
            [
                *("config.json", "pytorch_model-00001-of-00002.bin", "spiece.model"),
                "1_Pooling/config.json",
            ],
        ),
        (["config.json", "flax_model.msgpack"], False, ["config.json", "flax_model.msgpack"]),
        (
            ["config.json", "pytorch_model.bin", "pytorch_model.generator.bin", "spm.model"],
            True,
            ["config.json", "pytorch_model.generator.bin", "spm.model"],
        ),
        (["adapter_config.json", "adapter_model.safetensors"], False, None),
        ([], False, None),
    ],
)
def test_one_format_of_the_weights_is_wanted(names, generator, wanted):
    assert hub.wanted_files(names, generator=generator) == (names if wanted is None else wanted)


@pytest.mark.parametrize(
    ("name", "is_id"),
    [
        ("google/flan-t5-small", True),
        ("bert-base-uncased", True),
        ("a/b/c", False),
        ("../up", False),
        ("./flan", False),
        ("/abs/path", False),
        ("a--b", False),
        ("", False),
    ],
)
def test_names_of_the_hub(name, is_id):
    assert hub.is_hub_id(name) == is_id


def test_a_hub_that_takes_no_connection_is_not_asked(api, monkeypatch):
    monkeypatch.setattr(hub, "why_unreachable", lambda endpoint: f"{endpoint}: refused")
    with pytest.raises(
        InputError, match=r"no copy in the hub's cache \(https://hub\.example: refused\); run `hf "
    ):
        hub.find_source("google/flan")
    assert api.asked == []


def test_why_a_server_is_unreachable(monkeypatch):
    monkeypatch.setattr("urllib.request.getproxies", dict)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert hub.why_unreachable(f"http://127.0.0.1:{port}") == ""
    assert "127.0.0.1: " in hub.why_unreachable(f"http://127.0.0.1:{port}")
    monkeypatch.setattr("urllib.request.getproxies", lambda: {"http": "proxy"})
    assert hub.why_unreachable(f"http://127.0.0.1:{port}") == ""


def test_where_the_cache_is(monkeypatch):
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", "/x/hf")
    assert hub.cache_directory() == Path("/x/hf/hub")
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert hub.cache_directory() == Path("/x/huggingface/hub")
