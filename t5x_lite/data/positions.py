"""Saved data positions: bytes with a checksum, and the settings that a position depends on."""

import hashlib
import json
import zlib
from collections.abc import Mapping
from typing import Any

from t5x_lite.core.errors import InputError
from t5x_lite.data.config import (
    Data,
    own_negative_caches,
    rows_named,
    shapes_of,
    truncation_of,
    wording_of,
)

ON_THE_FLY = b"t5x_lite iterator 3\n"
FORMER = (b"t5x_lite iterator 1\n", b"t5x_lite iterator 2\n")
"""First bytes of data positions that earlier versions saved for streamed tasks."""
FORMER_LAYOUTS = {"pairs": "groups"}
"""Current name of each layout that positions of earlier versions have under another name."""
FROM_CACHE = b"t5x_lite cache position 1\n"

_SAYS = {
    ON_THE_FLY: "from a task without a cache; unset data.cache or start a new run",
    **dict.fromkeys(FORMER, "from a task without a cache; unset data.cache or start a new run"),
    FROM_CACHE: "from a cache; set data.cache or start a new run",
}


def seal(kind: bytes, body: bytes) -> bytes:
    """Return the bytes of a saved data position: kind, checksum and content."""
    return kind + hashlib.sha256(body).digest() + body


def unseal(kind: bytes, state: bytes) -> bytes:
    """Return the content of a saved data position; raise InputError if it is damaged."""
    for other, says in _SAYS.items():
        if other != kind and state.startswith(other):
            raise InputError(f"the saved data position is {says}")
    start = len(kind) + hashlib.sha256().digest_size
    digest, body = state[len(kind) : start], state[start:]
    if not state.startswith(kind) or hashlib.sha256(body).digest() != digest:
        raise InputError("the saved data position is damaged; restore an older checkpoint")
    return body


def share_of_batch(data: Data, process_count: int) -> int:
    """Return the number of batch rows per process; raise InputError if rows cannot be divided."""
    for shape in shapes_of(data):
        if shape.batch_size % process_count:
            raise InputError(
                f"{rows_named(data, shape)} cannot be divided among {process_count} processes"
            )
    return data.batch_size // process_count


def identity_of(data: Data, *, seed: int) -> dict[str, Any]:
    """Return the settings of the config that a saved data position depends on."""
    names = ("batch_size", "inputs_length", "targets_length", "pack", "shuffle")
    own = {name: getattr(data, name) for name in names}
    if data.final_sentinel:  # positions of earlier versions lack this entry
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


def former_identity(
    state: bytes, current: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the saved settings, and the current settings, for a position of an earlier version."""
    kind = next(kind for kind in FORMER if state.startswith(kind))
    header, _, _ = zlib.decompress(unseal(kind, state)).partition(b"\n")
    saved = json.loads(header)["identity"]
    if "layout" in saved:
        saved["layout"] = FORMER_LAYOUTS.get(saved["layout"], saved["layout"])
    both = [name for name in saved if name in current and name not in ("members", "size", "sizes")]
    return {name: saved[name] for name in both}, {name: current[name] for name in both}


def check_identity(saved: Mapping[str, Any], current: Mapping[str, Any]) -> None:
    """Raise InputError if the saved and the current settings of a data position differ."""
    names = sorted({*saved, *current})
    differing = [name for name in names if saved.get(name) != current.get(name)]
    different = [f"{name} {saved.get(name)!r} (now {current.get(name)!r})" for name in differing]
    if different:
        raise InputError(
            f"the saved data position belongs to data with other settings: {', '.join(different)}"
        )
