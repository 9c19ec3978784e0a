"""New directories that are there whole or not at all."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from t5x_lite.errors import InputError
from t5x_lite.files import unfinished


@contextlib.contextmanager
def new_directory(destination: str | Path) -> Iterator[Path]:
    """Yields a directory beside the destination, which gets that name when the block ends.

    If the block raises, or the process is interrupted, what it wrote is removed.

    Args:
      destination: must not exist, or be an empty directory; parents are made.

    Raises:
      InputError: the destination holds something, or cannot be written.
    """
    target = Path(destination).absolute()
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise InputError(f"{destination} exists and is not a directory; give another name")
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        if target.is_dir() and any(target.iterdir()):
            raise InputError(f"{destination} exists and is not empty; give another name")
        made = [parent for parent in target.parents if not parent.exists()]
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.rmtree(temporary, ignore_errors=True)  # of a dead process with this id
            temporary.mkdir()
            with unfinished(temporary, parents=made):
                yield temporary
                os.rename(temporary, target)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            for parent in made:
                with contextlib.suppress(OSError):
                    parent.rmdir()
            raise
    except OSError as error:
        reason = error.strerror or error
        where = target if error.filename is None else Path(os.fsdecode(error.filename)).absolute()
        if temporary not in (where, *where.parents) and where not in (target, *target.parents):
            raise InputError(f"{where}: {reason}") from error  # what the block reads
        raise InputError(f"{destination} cannot be written: {where}: {reason}") from error
