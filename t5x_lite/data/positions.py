"""Saved positions of batches: bytes that show damage, and say whose they are."""

import hashlib
import shlex
from collections.abc import Mapping
from typing import Any, NoReturn

from t5x_lite.core.errors import InputError
from t5x_lite.data.config import (
    Data,
    own_negative_caches,
    rows_named,
    shapes_of,
    truncation_of,
    wording_of,
)

ON_THE_FLY = b"t5x_lite iterator 2\n"
ON_THE_FLY_1 = b"t5x_lite iterator 1\n"
"""Of data in an order that is not made any more: that of the files, but for a shuffle buffer."""
FORMER_LAYOUTS = {"pairs": "groups"}
"""Layouts whose data come in another order now, and what they are called: a query of pairs had the
same negatives in every epoch."""
FROM_CACHE = b"t5x_lite cache position 1\n"

_SAYS = {
    ON_THE_FLY: "of data that were read on the fly: leave data.cache away",
    ON_THE_FLY_1: "of data that were read on the fly: leave data.cache away",
    FROM_CACHE: "of a cache: set data.cache",
}


def seal(kind: bytes, body: bytes) -> bytes:
    """A position as it is saved: what it is, a checksum, and its content."""
    return kind + hashlib.sha256(body).digest() + body


def unseal(kind: bytes, state: bytes) -> bytes:
    """The content of a position."""
    for other, says in _SAYS.items():
        if other != kind and state.startswith(other):
            raise InputError(f"the saved data position is {says}, or begin a new run")
    start = len(kind) + hashlib.sha256().digest_size
    digest, body = state[len(kind) : start], state[start:]
    if not state.startswith(kind) or hashlib.sha256(body).digest() != digest:
        raise InputError("the saved data position is damaged: restore an older checkpoint")
    return body


def share_of_batch(data: Data, process_count: int) -> int:
    """Rows of a batch, of the longest where there are several shapes, that each process gets."""
    for shape in shapes_of(data):
        if shape.batch_size % process_count:
            raise InputError(
                f"{rows_named(data, shape)} cannot be divided among {process_count} processes"
            )
    return data.batch_size // process_count


def identity_of(data: Data, *, seed: int) -> dict[str, Any]:
    """What must be equal for a position to fit, wherever the data are read from."""
    names = ("batch_size", "inputs_length", "targets_length", "pack", "shuffle")
    own = {name: getattr(data, name) for name in names}
    if data.final_sentinel:  # positions of earlier versions have none
        own["final_sentinel"] = True
    if data.adapter_of:
        own["adapter_of"] = list(data.adapter_of)
    if alone := own_negative_caches(data):
        own["own_negatives"] = alone
    own |= truncation_of(data) | wording_of(data)
    return {
        **data.layout.identity(),
        **own,
        **data.batches.identity(),
        **data.refresh.identity(),
        **data.augment.identity(),
        "seed": seed,
    }


def check_identity(saved: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Refuses the position of other data."""
    names = sorted({*saved, *current})
    differing = [name for name in names if saved.get(name) != current.get(name)]
    different = [f"{name} {saved.get(name)!r} (now {current.get(name)!r})" for name in differing]
    if different and all(name.startswith("process_") for name in differing):
        raise InputError(
            f"the saved data position is of part {saved.get('process_index')} of "
            f"{saved.get('process_count')} of every batch, and this process now reads part "
            f"{current.get('process_index')} of {current.get('process_count')}: a task that is "
            "read on the fly resumes with the processes and the mesh of before"
        )
    if different:
        raise InputError(f"the saved data position is of other data: {', '.join(different)}")


def refuse_processes(*, step: int, saved: int, here: int, workdir: str) -> NoReturn:
    """Refuses a run that reads a task on the fly in another number of processes than before.

    Each process saves where tf.data is in its own part of the examples, buffers included: of that
    nothing can be made for other parts.
    """
    place = workdir.rstrip("/")
    here_too = place.rpartition("/")[-1] if "://" in place else place  # caches lie on disks
    cached, config = (shlex.quote(f"{here_too}{end}") for end in ("-cache", "/config.json"))
    new = shlex.quote(f"{place}-from-cache")
    copied = f" ({config} is a copy of that in {place})" if here_too != place else ""
    raise InputError(
        f"step {step} holds the data positions of {saved} processes, and there are {here}: a task "
        f"that is read on the fly resumes with as many processes as before. Start {saved}; or make "
        "a cache, whose runs resume in any number of processes, and begin a new run from these "
        f"weights: t5x-lite cache {config} --output {cached} && t5x-lite train {config} "
        f'--data.cache {cached} --data.task "" --init {shlex.quote(place)} --workdir {new}{copied}'
    )
