"""A retriever with two encoders, or with two projections, as one directory for each.

    DST/query_model/      as the export of a model alone
    DST/passage_model/

That is the layout of RetroMAE's and Tevatron's checkpoints. A projection is the module 2_Dense of
sentence-transformers.
"""

import dataclasses
from collections.abc import Mapping
from typing import get_args

from t5x_lite.bound import heads_of
from t5x_lite.config import Experiment
from t5x_lite.heads.base import HEADS
from t5x_lite.heads.dense import Dense, Role, dense_of
from t5x_lite.interop.rules import LazyArray
from t5x_lite.models.towers import as_model


def roles_of(experiment: Experiment, *, projections: bool) -> tuple[Role, ...]:
    """The roles that have a directory each; () where one model is for both.

    Args:
      experiment: of the checkpoint.
      projections: whether projections are exported.
    """
    head = dense_of(heads_of(experiment.objective, experiment.heads))
    apart = head is not None and head.projection is not None and not head.tied
    two = experiment.objective.more_towers() or (projections and apart)
    return get_args(Role) if two else ()


def of_role(
    experiment: Experiment, params: Mapping[str, LazyArray], role: Role
) -> tuple[Experiment, dict[str, LazyArray]]:
    """The checkpoint of the encoder of one role alone.

    Args:
      experiment: of the checkpoint.
      params: the learner's, by path.
      role: whose encoder becomes the model.
    """
    objective = experiment.objective.with_one_tower()
    found = as_model(params, tower_named(experiment, role))
    return dataclasses.replace(experiment, objective=objective), found


def tower_named(experiment: Experiment, role: Role) -> str:
    """Return the tower of a role, or "" if its encoder is the model."""
    return role if role in experiment.objective.more_towers() else ""


def projection_of(
    head: Dense, params: Mapping[str, LazyArray], role: Role
) -> tuple[LazyArray, LazyArray | None] | None:
    """The kernel [D, K] and the bias, if any, of a role's projection; None without one."""
    if head.projection is None:
        return None
    start = f"{HEADS}{head.name}/{'query' if head.tied else role}"
    bias = params[f"{start}/bias"] if head.projection_bias else None
    return params[f"{start}/kernel"], bias
