"""Heads in PEFT's directories: what modules_to_save keeps beside the adapter.

    base_model.model.classifier.weight            heads/classifier/out/kernel
    base_model.model.bert.pooler.dense.weight     heads/classifier/dense/kernel

A directory need not hold all of a head: PEFT leaves BERT's pooler to the base by default.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from t5x_lite.errors import InputError
from t5x_lite.heads.base import Head
from t5x_lite.interop.encoder_families import is_encoder, with_family
from t5x_lite.interop.encoder_heads import SUFFIXES
from t5x_lite.interop.module_hosts import Hosts
from t5x_lite.interop.rules import check_shape
from t5x_lite.models.base import ModelConfig

TASKS = {"SEQ_CLS": "classifier", "TOKEN_CLS": "token", "QUESTION_ANS": "span"}
"""task_type -> our head."""


def head_of(
    where: Path,
    config: Mapping[str, Any],
    kept: Mapping[str, np.ndarray],
    *,
    model: ModelConfig,
    model_type: str | None,
    heads: Mapping[str, Head],
) -> Head | None:
    """The head of which a directory keeps tensors; None where it keeps none.

    Args:
      where: its adapter_config.json, for messages.
      config: the content of that.
      kept: the tensors by name.
      model: the base.
      model_type: of the base, where it is known.
      heads: those of the base by name. One with as many classes is the head: it has their names.

    Raises:
      InputError: the tensors are of no head.
    """
    if not kept:
        return None
    if not is_encoder(model):
        raise InputError(
            f"{where}: modules_to_save: {min(kept)} is of the base, which a module leaves as it is"
        )
    encoder, family = with_family(model, where=where)
    task = TASKS.get(str(config.get("task_type")))
    known = [name for name in heads if name in SUFFIXES]
    if task is None and len(known) == 1:
        [task] = known
    kind = model_type or str(family.from_model(encoder, None, None)["model_type"])
    said = {"architectures": [SUFFIXES[task]]} if task else {}
    head = family.head_of(where, {"model_type": kind, **said}, kept)
    if head is None or head.name not in SUFFIXES:
        raise InputError(
            f"{where}: modules_to_save: {min(kept)} is of no head for a task; task_type may be "
            f"{', '.join(TASKS)}"
        )
    own = heads.get(head.name)
    return own if own is not None and _classes(own) == _classes(head) else head


def _classes(head: Head) -> Any:
    """The number of a head's classes; None where it has none."""
    return next((v for k, v in vars(head).items() if k == "num_classes"), None)


def head_arrays(where: Path, kept: Mapping[str, np.ndarray], hosts: Hosts) -> dict[str, np.ndarray]:
    """The arrays of a head, by our path, that a directory keeps.

    Args:
      where: the file, for messages.
      kept: the tensors by name.
      hosts: of the base with that head.

    Raises:
      InputError: there are tensors of something else, or of another shape.
    """
    left, arrays = dict(kept), {}
    for piece in hosts.pieces:
        names = [name for name in (piece.name, *piece.aliases) if name in left]
        if names:
            tensor = left.pop(names[0])
            check_shape(where, piece, tensor.shape)
            arrays[piece.path] = np.ascontiguousarray(piece.to_ours(tensor))
    if left:
        raise InputError(
            f"{where}: {min(left)} (modules_to_save) is of no head that the base has or that "
            "task_type names, and the rest of the base stays as it is"
        )
    return arrays
