"""`t5x-lite push`: uploads what `export` wrote to the Hugging Face Hub (extra `hub`).

huggingface_hub logs in by its own rules: `hf auth login`, or HF_TOKEN.
"""

import importlib.util
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from t5x_lite.errors import InputError
from t5x_lite.extras import install_command
from t5x_lite.interop.hub import is_hub_id
from t5x_lite.options import suggesting
from t5x_lite.report.c4 import size
from t5x_lite.run.model_card import CARD

_logger = logging.getLogger(__name__)

_EXPORTED = ("config.json", "adapter_config.json")
_WEIGHTS = ("*.safetensors", "*.bin")
_STEP = ("checkpoints", "params")
"""What a work directory or a step directory holds, and an exported one does not."""


@suggesting
def push(
    directory: str | Path,
    repository: str,
    *,
    private: bool = False,
    message: str | None = None,
    dry_run: bool = False,
) -> str | None:
    """Uploads a directory that `export hf` or `export adapter` wrote, and prints its address.

    Args:
      directory: the exported directory.
      repository: ORG/NAME at the hub; it is made if it is missing.
      private: whether a repository that is made is private.
      message: of the commit; None is "Upload by t5x-lite".
      dry_run: whether only what would be uploaded is said, and nothing is sent.

    Returns:
      The address of the commit; None of a dry run.

    Raises:
      InputError: the directory is no exported one, the name is none of the hub, the extra is not
        installed, or the hub refuses.
    """
    files = exported_files(Path(directory))
    if not is_hub_id(repository) or repository.count("/") != 1:
        raise InputError(f"{repository!r} is no name of the hub: give ORG/NAME")
    for name, number in files.items():
        _logger.info("%10s  %s", size(number), name)
    total = f"{len(files)} files, {size(sum(files.values()))}"
    if CARD not in files:
        _logger.warning("%s has no %s: the hub will show no model card", directory, CARD)
    elif "\n# license:" in f"\n{(Path(directory) / CARD).read_text(encoding='utf-8')}":
        _logger.warning("%s/%s names no licence yet: edit its head", directory, CARD)
    if dry_run:
        kind = "private" if private else "public"
        _logger.info("dry run: would upload %s to %s (%s if it is new)", total, repository, kind)
        return None
    if importlib.util.find_spec("huggingface_hub") is None:
        raise InputError(
            f"push needs huggingface_hub: {install_command('hub')}; or run `hf upload {repository} "
            f"{directory}`"
        )
    address = _upload(
        Path(directory), repository, private=private, message=message or "Upload by t5x-lite"
    )
    _logger.info("uploaded %s", total)
    print(address)
    return address


def exported_files(directory: Path) -> Mapping[str, int]:
    """The files of an exported directory with their bytes, sorted; hidden ones are left out.

    Raises:
      InputError: it is missing, or not what `export` writes.
    """
    if not directory.is_dir():
        raise InputError(f"{directory}: no such directory")
    if any((directory / name).is_dir() for name in _STEP):
        raise InputError(
            f"{directory} is a checkpoint of t5x_lite: run `t5x-lite export hf {directory} DIR` "
            "and push DIR"
        )
    has_weights = any(True for pattern in _WEIGHTS for _ in directory.glob(pattern))
    if not has_weights or not any((directory / name).is_file() for name in _EXPORTED):
        raise InputError(
            f"{directory} holds no model that `t5x-lite export` wrote: config.json and "
            "model.safetensors"
        )
    return {
        path.relative_to(directory).as_posix(): path.stat().st_size
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not any(p.startswith(".") for p in path.relative_to(directory).parts)
    }


def _upload(directory: Path, repository: str, *, private: bool, message: str) -> str:
    import huggingface_hub

    api: Any = huggingface_hub.HfApi()
    try:
        api.create_repo(repository, private=private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repository,
            folder_path=str(directory),
            commit_message=message,
            ignore_patterns=[".*", "**/.*"],
        )
    except Exception as error:  # whatever the transport raises
        raise InputError(
            f"the hub refused {repository} ({type(error).__name__}: "
            f"{' '.join(str(error).split())[:200]}): log in by `hf auth login` with a token that "
            "may write there"
        ) from error
    return str(getattr(commit, "commit_url", commit))
