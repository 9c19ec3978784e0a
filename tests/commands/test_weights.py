"""Tests of uploads to the hub, against a stub of HfApi."""

import logging
import sys
import types

import pytest

from t5x_lite.commands.weights import exported_files, push
from t5x_lite.core.errors import InputError


@pytest.fixture
def exported(tmp_path):
    directory = tmp_path / "exported"
    (directory / "1_Pooling").mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(bytes(2000))
    (directory / "1_Pooling" / "config.json").write_text("{}")
    (directory / ".hidden").write_text("secret")
    (directory / "README.md").write_text("---\n# license: add one\n---\n")
    return directory


@pytest.fixture
def hub(monkeypatch):
    stub = types.ModuleType("huggingface_hub")
    stub.calls, stub.error = [], None

    class HfApi:
        def create_repo(self, repository, **options):
            stub.calls.append((repository, options))
            if stub.error is not None:
                raise stub.error

        def upload_folder(self, **options):
            stub.calls.append(options)
            return types.SimpleNamespace(commit_url="address-of-the-commit")

    stub.HfApi = HfApi
    monkeypatch.setitem(sys.modules, "huggingface_hub", stub)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: stub)
    return stub


def test_an_exported_directory_is_uploaded(exported, hub, capsys):
    assert push(exported, "me/model", private=True, message="First") == "address-of-the-commit"
    assert capsys.readouterr().out == "address-of-the-commit\n"
    assert hub.calls == [
        ("me/model", {"private": True, "exist_ok": True}),
        {
            "repo_id": "me/model",
            "folder_path": str(exported),
            "commit_message": "First",
            "ignore_patterns": [".*", "**/.*"],
        },
    ]


def test_a_dry_run_says_what_it_would_do(exported, hub, caplog, capsys):
    caplog.set_level(logging.INFO, logger="t5x_lite")
    assert push(str(exported), "me/model", dry_run=True) is None
    assert hub.calls == []
    assert capsys.readouterr().out == ""
    listed = [message.split("  ")[-1] for message in caplog.messages[:4]]
    assert listed == ["1_Pooling/config.json", "README.md", "config.json", "model.safetensors"]
    assert "contains no license" in caplog.messages[-2]
    end = "4 files, 2.03 kB to me/model (a public repository if it is new)"
    assert caplog.messages[-1] == f"dry run: the upload would send {end}"


def test_a_refusal_is_one_line(exported, hub):
    hub.error = RuntimeError("401\nUnauthorized")
    with pytest.raises(
        InputError, match=r"rejected the upload to me/model \(RuntimeError: 401 Unauthorized\); log"
    ):
        push(exported, "me/model")


@pytest.mark.parametrize("name", ["model", "a/b/c", "../x", "me/"])
def test_other_names_are_refused(exported, name):
    with pytest.raises(
        InputError, match="is not a repository name at the Hugging Face Hub; give ORG/NAME"
    ):
        push(exported, name, dry_run=True)


def test_without_the_extra_another_command_is_named(exported, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install .*\[hub\].*`hf upload me/model "):
        push(exported, "me/model")


def test_what_export_did_not_write_is_refused(tmp_path, exported):
    with pytest.raises(InputError, match="does not exist"):
        exported_files(tmp_path / "none")
    with pytest.raises(InputError, match="contains no exported model"):
        exported_files(tmp_path)
    (exported / "params").mkdir()
    with pytest.raises(InputError, match="run `t5x-lite export hf"):
        exported_files(exported)
